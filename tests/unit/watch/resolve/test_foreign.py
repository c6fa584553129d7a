"""A chain that nvrx-chain did not submit is known by user and name, and its files by hints or by its batch script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import SlurmError, Unobserved, UsageError
from nvrx_watch.layout import NvrxLayout
from nvrx_watch.resolve.watched import ForeignHints, Watched
from tests.unit.ops.conftest import World
from tests.unit.watch.resolve.conftest import Desk

SCRIPT = """#!/bin/bash
BASE=/scratch/run
srun ft_launcher --ft-cycle-info-dir $BASE/nvrx/$SLURM_ARRAY_JOB_ID/cycle_infos --max-restarts 4 \\
    --ft-checkpoint-iteration-file $BASE/ckpt/it.txt train.py
"""


def submit(world: World, script: str, *, user: str = "alice", chdir: str = "/w", name: str = "llama") -> int:
    argv = ["--array=0-2%2", f"--job-name={name}", "--dependency=singleton", f"--chdir={chdir}", script]
    return world.slurm.submit_as(user, argv)


def files(watched: Watched) -> NvrxLayout:
    assert isinstance(watched.layout, NvrxLayout)
    return watched.layout


def from_script(watched: Watched) -> bool:
    layout = files(watched)
    assert layout.cycle_info_glob == "/scratch/run/nvrx/*/cycle_infos/cycle_info.*"
    assert layout.iteration_file == Path("/scratch/run/ckpt/it.txt")
    return watched.subject.max_restarts == 4


def test_slurms_own_copy_of_the_script_tells_the_paths(desk: Desk) -> None:
    job = submit(desk.world, "/gone/job.sh")
    desk.scripts[job] = SCRIPT
    watched = desk.resolve(f"{job}_1")
    assert from_script(watched)
    subject = watched.subject
    assert (subject.key, subject.name, subject.user, subject.uid) == ("fake:alice:llama", "llama", "alice", os.getuid())
    assert (subject.is_ours, subject.chain_id, subject.run_directory) == (False, None, None)
    assert files(watched).owner_uid == os.getuid()
    assert watched.asked_job_id == job


@pytest.mark.parametrize("answer", [Unobserved("job script retrieval failed: Invalid user id"), "", "no script"])
@pytest.mark.parametrize("arguments", ["", " 7 a b", " --x='1'"])
def test_another_users_script_is_read_where_it_was_submitted_from(
    desk: Desk, tmp_path: Path, answer: str | Unobserved, arguments: str
) -> None:
    script = tmp_path / "my job #1.sh"
    script.write_text(SCRIPT)
    job = submit(desk.world, f"{script}{arguments}")
    desk.scripts[job] = answer
    assert from_script(desk.resolve(job))


def test_a_script_of_a_third_user_is_not_believed(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    job = submit(desk.world, str(script), user="mallory")
    if os.getuid() == 0:
        os.chown(script, 7, 7)
    watched = desk.resolve(job)
    assert (files(watched).cycle_info_glob, watched.subject.user, watched.subject.uid) == (None, "mallory", 54321)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "huge", "binary"])
def test_a_command_that_is_no_script_tells_nothing(desk: Desk, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "job.sh"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#!/bin/sh\n" + b"#" * (1 << 21) if kind == "huge" else b"\x7fELF\xff\xfe")
    layout = files(desk.resolve(submit(desk.world, str(path))))
    assert (layout.cycle_info_glob, layout.iteration_file) == (None, None)


def test_the_script_of_an_ended_generation_is_that_of_a_live_one(desk: Desk) -> None:
    ended, live = submit(desk.world, "/gone"), submit(desk.world, "/gone")
    desk.world.slurm.cancel([str(ended)])
    desk.world.clock.advance(1000)
    desk.scripts[live] = SCRIPT
    assert desk.world.slurm.show_job(ended) is None
    assert from_script(desk.resolve(ended))
    assert desk.asked_scripts == [ended, live]


def test_the_work_directory_stands_for_options_that_the_script_does_not_give(desk: Desk) -> None:
    job = submit(desk.world, "/gone", chdir="/w d/[x]")
    desk.scripts[job] = '#!/bin/bash\nNVRX_WORK_DIR="${NVRX_WORK_DIR:-${PWD}/nvrx-run}"\n. $LIB\n'
    layout = files(desk.resolve(job))
    assert layout.cycle_info_glob == "/w d/[[]x]/nvrx-run/nvrx/*/cycle_infos/cycle_info.*"
    assert layout.iteration_file == Path("/w d/[x]/nvrx-run/checkpoints/latest_checkpointed_iteration.txt")
    assert layout.work_directory == Path("/w d/[x]/nvrx-run")


def test_an_option_that_cannot_be_told_is_not_replaced_by_a_guess(desk: Desk) -> None:
    job = submit(desk.world, "/gone")
    desk.scripts[job] = "#!/bin/bash\nWORK_DIR=/a\nft_launcher --ft-cycle-info-dir $(mktemp -d)\n"
    assert files(desk.resolve(job)).cycle_info_glob is None


def test_hints_win_over_the_script(desk: Desk) -> None:
    job = submit(desk.world, "/gone")
    desk.scripts[job] = SCRIPT
    watched = desk.resolve(job, ForeignHints(cycle_info_glob="/g/*/c.*", max_restarts=9))
    assert files(watched).cycle_info_glob == "/g/*/c.*"
    assert files(watched).iteration_file == Path("/scratch/run/ckpt/it.txt")
    assert watched.subject.max_restarts == 9


def test_a_given_work_directory_is_seen_from_the_current_one_and_no_script_is_read(desk: Desk) -> None:
    job = submit(desk.world, "/gone")
    watched = desk.resolve(job, ForeignHints(work_directory=Path("w [1]"), max_restarts=3))
    layout = files(watched)
    assert layout.work_directory == desk.here / "w [1]"
    assert layout.cycle_info_glob == f"{desk.here}/w [[]1]/nvrx/*/cycle_infos/cycle_info.*"
    assert layout.iteration_file == desk.here / "w [1]/checkpoints/latest_checkpointed_iteration.txt"
    assert desk.asked_scripts == []


def test_relative_hints_are_seen_from_the_current_directory(desk: Desk) -> None:
    job = submit(desk.world, "/gone")
    hints = ForeignHints(cycle_info_glob="*/c.*", iteration_file=Path("it.txt"), max_restarts=1)
    layout = files(desk.resolve(job, hints))
    assert (layout.cycle_info_glob, layout.iteration_file) == (f"{desk.here}/*/c.*", desk.here / "it.txt")


def test_a_job_that_slurm_forgot_is_watched_by_its_name(desk: Desk) -> None:
    watched = desk.resolve(999, ForeignHints(job_name="llama", user="alice", work_directory=Path("/w")))
    assert (watched.subject.key, watched.asked_job_id) == ("fake:alice:llama", 999)


def test_a_name_that_the_job_does_not_have_is_refused(desk: Desk) -> None:
    job = submit(desk.world, "/gone")
    with pytest.raises(UsageError, match="its name is 'llama', not 'other'"):
        desk.resolve(job, ForeignHints(job_name="other"))


def test_the_key_is_the_same_for_every_generation_and_never_without_the_cluster(desk: Desk) -> None:
    first, second = submit(desk.world, "/gone"), submit(desk.world, "/gone")
    assert desk.resolve(first).subject.key == desk.resolve(second).subject.key
    desk.world.slurm.always("config", Unobserved("no answer"))
    with pytest.raises(SlurmError, match="cannot see on which cluster"):
        desk.resolve(first)


def test_an_unknown_user_is_watched_and_no_file_is_believed(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    watched = desk.resolve(submit(desk.world, str(script), user="stranger"))
    assert (watched.subject.uid, files(watched).cycle_info_glob) == (None, None)


@pytest.mark.parametrize("name", ["a|b", "x UserId=root(0)", "-n", "a\x1b[2Jb", "', rm", "$(rm -rf /)"])
def test_an_odd_name_is_only_a_name(desk: Desk, name: str) -> None:
    job = submit(desk.world, "/gone", name=name)
    desk.scripts[job] = '#!/bin/bash\nWORK_DIR="/a/$SLURM_JOB_NAME"\n'
    watched = desk.resolve(job)
    assert watched.subject.key == f"fake:alice:{name}"
    assert files(watched).work_directory == Path("/a") / name
