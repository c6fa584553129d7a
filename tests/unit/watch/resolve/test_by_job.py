"""Any job id of a chain of ours leads to its run directory, or to one line that says why it does not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, NvrxError, RecordError, SlurmError, Unobserved, UsageError
from nvrx_watch.layout import OwnLayout
from nvrx_watch.resolve.watched import ForeignHints, Watched
from tests.unit.ops.conftest import ChainOnDisk, World, give_away
from tests.unit.watch.resolve.conftest import Desk


def is_of(watched: Watched, chain: ChainOnDisk) -> bool:
    subject, layout = watched.subject, watched.layout
    assert isinstance(layout, OwnLayout)
    assert (layout.run_directory, layout.chain_id, layout.owner_uid) == (chain.run.path, chain.chain_id, os.getuid())
    assert (subject.key, subject.name, subject.user, subject.uid) == (chain.chain_id, "train", "alice", os.getuid())
    assert (subject.is_ours, subject.cluster, subject.max_restarts) == (True, "fake", 5)
    assert subject.run_directory == chain.run.path
    return True


@pytest.mark.parametrize("form", ["{}", "{}_0", "{}_[2-4]", "{}_[2-4%2]"])
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_every_form_of_every_generation_leads_to_the_chain(
    desk: Desk, chain: ChainOnDisk, form: str, generation: int
) -> None:
    job = chain.submit_three()[generation]
    watched = desk.resolve(form.format(job))
    assert is_of(watched, chain)
    assert watched.asked_job_id == job


def test_the_own_id_of_an_array_task_leads_to_its_array(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    own = desk.world.slurm.task(f"{job}_1").job_id
    assert own != job
    watched = desk.resolve(own)
    assert is_of(watched, chain)
    assert watched.asked_job_id == job


def test_a_task_whose_comment_was_changed_hides_nothing(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    details = desk.world.slurm.show_job(job)
    assert isinstance(details, tuple)
    assert len(details) > 1
    changed = (replace(details[0], comment="mine"), *details[1:])
    desk.world.slurm.show_job = lambda job_id: changed  # type: ignore[method-assign]
    assert is_of(desk.resolve(job), chain)


@pytest.mark.parametrize("stores_comments", [True, False])
def test_an_ended_generation_that_slurm_forgot_is_found_through_accounting(
    desk: Desk, chain: ChainOnDisk, stores_comments: bool
) -> None:
    desk.world.slurm.stores_comments = stores_comments
    job = chain.submit(1)
    desk.world.slurm.finish(f"{job}_0", 1)
    desk.world.slurm.cancel([str(job)])
    desk.world.clock.advance(1000)
    assert desk.world.slurm.show_job(job) is None
    watched = desk.resolve(f"{job}_0")
    assert is_of(watched, chain)
    assert watched.asked_job_id == job


def test_with_the_controller_away_accounting_is_asked(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    desk.world.slurm.always("show_job", Unobserved("scontrol did not answer in 25 s"))
    assert is_of(desk.resolve(job), chain)


@pytest.mark.parametrize("where", ["here", "below"])
def test_without_any_slurm_the_records_near_the_user_are_asked(world: World, desk: Desk, where: str) -> None:
    chain = world.make_chain(desk.here if where == "here" else desk.here / "nvrx-chains" / "a b")
    job = chain.submit(1)
    for operation in ("show_job", "accounting"):
        world.slurm.always(operation, Unobserved("no answer"))
    assert is_of(desk.resolve(job), chain)


def test_two_chains_with_the_same_id_on_record_are_listed(world: World, desk: Desk) -> None:
    for name, chain_id in (("a", "aa"), ("b", "bb")):
        world.make_chain(desk.here / "nvrx-chains" / name, chain_id=chain_id).record_id(1, 777)
    with pytest.raises(UsageError, match=r"2 chains have it on record.*--run-dir"):
        desk.resolve(777)


def test_a_job_that_slurm_does_not_show_is_not_called_ended(desk: Desk) -> None:
    with pytest.raises(SlurmError, match="cannot see job 999: Slurm does not show it") as caught:
        desk.resolve(999)
    assert "private to its owner" in str(caught.value)
    assert "ended" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_answer_is_not_an_ended_job_either(desk: Desk, chain: ChainOnDisk) -> None:
    """As PrivateData leaves it: scontrol and sacct answer, and show nothing of somebody else's job."""
    job = chain.submit(1)
    desk.world.slurm.show_job = lambda job_id: ()  # type: ignore[method-assign]
    desk.world.slurm.accounting = lambda ids, since: ()  # type: ignore[method-assign]
    with pytest.raises(SlurmError, match=f"cannot see job {job}: Slurm does not show it"):
        desk.resolve(job)


def test_a_slurm_that_does_not_answer_is_quoted(desk: Desk) -> None:
    desk.world.slurm.always("show_job", Unobserved("scontrol failed with 1: Unable to contact slurm controller"))
    desk.world.slurm.always("accounting", Unobserved("sacct failed"))
    with pytest.raises(SlurmError, match="cannot see job 999: scontrol failed with 1: Unable to contact"):
        desk.resolve(999)


@pytest.mark.parametrize("text", ["", "abc", "12a", "123.batch", "0", "-5", "9" * 15, "1_[", "x\x1b[31m", "１２"])
def test_a_text_that_is_no_job_id_is_bad_usage(desk: Desk, text: str) -> None:
    with pytest.raises(UsageError, match="is no job id") as caught:
        desk.resolve(text)
    assert str(caught.value).isprintable()
    assert desk.world.slurm.calls == []


def test_a_directory_that_holds_a_newer_chain_says_so(desk: Desk, world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.make_chain(chain.run.path, chain_id="newer")
    with pytest.raises(IdentityError, match=r"of chain c0ffee, and .* now holds chain newer .*--run-dir"):
        desk.resolve(job)


def test_a_newer_chain_is_told_by_its_records_where_no_comment_is_kept(
    desk: Desk, world: World, chain: ChainOnDisk
) -> None:
    job = chain.submit(1)
    world.slurm.always("show_job", Unobserved("down"))
    world.make_chain(chain.run.path, chain_id="newer")
    with pytest.raises(IdentityError, match="now holds chain newer"):
        desk.resolve(job)


def test_a_directory_without_a_manifest_is_a_clear_error(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.run.manifest.unlink()
    with pytest.raises(RecordError, match="no chain was submitted into this directory"):
        desk.resolve(job)


def test_a_manifest_of_another_users_file_is_not_believed(desk: Desk, chain: ChainOnDisk, world: World) -> None:
    job = chain.submit(1)
    if os.getuid() != 0:
        world.make_chain(chain.run.path, uid=give_away(chain.run.manifest))
    else:
        give_away(chain.run.manifest)
    with pytest.raises(NvrxError, match="uid"):
        desk.resolve(job)


def test_a_manifest_that_names_another_user_is_not_believed(desk: Desk, chain: ChainOnDisk, world: World) -> None:
    """Whoever can write into the directory must not speak for mallory, whose uid this is not."""
    job = chain.submit(1)
    world.make_chain(chain.run.path, user="mallory")
    with pytest.raises(IdentityError, match="mallory"):
        desk.resolve(job)


def test_a_job_of_another_user_with_a_copied_comment_is_refused(desk: Desk, chain: ChainOnDisk) -> None:
    job = desk.world.slurm.submit_as("mallory", chain.argv(1))
    with pytest.raises(IdentityError, match="belongs to mallory, and the chain to alice"):
        desk.resolve(job)


def test_a_working_directory_that_slurm_does_not_show_asks_for_the_run_directory(
    desk: Desk, chain: ChainOnDisk
) -> None:
    argv = [word for word in chain.argv(1) if not word.startswith("--chdir")]
    job = desk.world.slurm.submit([*argv[:1], "--chdir=", *argv[1:]]).array_job_id
    with pytest.raises(RecordError, match="--run-dir"):
        desk.resolve(job)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000])
def test_a_damaged_manifest_is_one_clear_line(desk: Desk, chain: ChainOnDisk, content: bytes) -> None:
    job = chain.submit(1)
    chain.run.manifest.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        desk.resolve(job)
    assert "\n" not in str(caught.value)


def test_a_fifo_in_place_of_the_manifest_does_not_hang(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.run.manifest.unlink()
    os.mkfifo(chain.run.manifest)
    with pytest.raises(RecordError, match="not a regular file"):
        desk.resolve(job)


@pytest.mark.parametrize("chain_id", ["", "../../etc", "a/b", "a" * 65, "x\n"])
def test_a_chain_id_that_could_name_another_file_is_refused(world: World, tmp_path: Path, chain_id: str) -> None:
    from nvrx_watch.resolve.by_directory import resolve_run_directory

    chain = world.make_chain(tmp_path / "run", chain_id=chain_id)
    with pytest.raises(RecordError, match="not one that nvrx-chain writes"):
        resolve_run_directory(chain.run.path)


def test_hints_change_nothing_of_a_chain_of_ours(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    hints = ForeignHints(work_directory=Path("/x"), job_name="other", user="mallory", max_restarts=99)
    assert is_of(desk.resolve(job, hints), chain)
    assert desk.asked_scripts == []


def test_a_live_job_of_ours_costs_one_question(desk: Desk, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    before = len(desk.world.slurm.calls)
    desk.resolve(job)
    assert [call.operation for call in desk.world.slurm.calls[before:]] == ["show_job"]
