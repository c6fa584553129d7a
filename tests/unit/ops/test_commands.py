"""The commands as they are typed: options, questions, exit codes, and what they print."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvrx_chain.cli import cli
from nvrx_chain.commands.ops import cancel
from nvrx_chain.errors import IdentityError
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.fakes.fake_slurm import Act
from tests.fakes.pyslurm_bench import STAND_IN
from tests.fakes.pyslurm_world import pyslurm_world
from tests.unit.ops.conftest import ChainOnDisk, World

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_the_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    monkeypatch.setenv("COLUMNS", "80")


def run(world: World, *words: str, answer: str | None = None, is_interactive: bool = False) -> Result:
    return CliRunner().invoke(
        cli, [*words], obj=world.desk(is_interactive=is_interactive), input=answer, catch_exceptions=False
    )


def test_status_shows_the_chain_by_path_by_job_and_by_option(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    by_path = run(world, "status", str(chain.run.path))
    assert by_path.exit_code == 0
    assert "train (chain c0ffee): running" in by_path.stdout
    assert run(world, "status", f"{job}_[0-4%3]").stdout == by_path.stdout
    assert run(world, "status", "--run-dir", str(chain.run.path)).stdout == by_path.stdout


def test_status_json_is_one_object(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    seen = json.loads(run(world, "status", str(chain.run.path), "--json").stdout)
    assert [generation["array_job_id"] for generation in seen["generations"]] == [*jobs]
    assert (seen["schema"], seen["state"]) == (1, "running")


def test_cancel_asks_a_person_and_does_nothing_on_no(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    result = run(world, "cancel", str(chain.run.path), answer="n\n", is_interactive=True)
    assert result.exit_code == 1
    assert "for good?" in result.stderr
    assert not chain.run.outcome.exists()
    assert not world.slurm.asked("cancel")


@pytest.mark.parametrize(
    ("words", "answer", "is_interactive"), [((), "y\n", True), (("--yes",), None, True), ((), None, False)]
)
def test_cancel_goes_on_with_yes_and_without_a_person(
    world: World, chain: ChainOnDisk, words: tuple[str, ...], answer: str | None, is_interactive: bool
) -> None:
    jobs = chain.submit_three()
    result = run(world, "cancel", str(chain.run.path), *words, "--json", answer=answer, is_interactive=is_interactive)
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[-1])["gone"] == [*jobs]
    assert ("for good?" in result.stderr) == (answer is not None)


def test_cancel_ends_with_1_when_something_is_still_there(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.always("cancel", Act.IGNORED)
    result = run(world, "cancel", str(chain.run.path), "--timeout", "5", "--reason", "wrong data")
    assert result.exit_code == 1
    assert "still there  11: 3 running, 2 pending" in result.stdout
    assert json.loads(chain.run.outcome.read_text())["why"] == "wrong data"


def test_another_users_chain_is_refused_before_the_question(world: World, chain: ChainOnDisk) -> None:
    desk = world.desk(uid=os.getuid() + 1, is_interactive=True)
    with pytest.raises(IdentityError, match="refused"):
        CliRunner().invoke(cancel, [str(chain.run.path)], obj=desk, catch_exceptions=False)


def test_hold_and_release_and_their_exit_codes(world: World, chain: ChainOnDisk) -> None:
    _, second, third = chain.submit_three()
    held = run(world, "hold", str(second), "--reason", "look at the loss")
    assert held.exit_code == 0
    assert f"held         {second} {third}" in held.stdout
    assert "look at the loss" in run(world, "status", str(second)).stdout
    world.slurm.always("release", Act.IGNORED)
    assert run(world, "release", str(second), "--timeout", "2").exit_code == 1
    world.slurm.always("release", Act.NORMAL)
    released = json.loads(run(world, "release", str(second), "--json").stdout)
    assert released["done"] == [second, third]


def test_logs_have_the_name_of_their_file_before_each_line(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    chain.log(first, "task_0.log", b"loss 1.5\n\xff\xfe broken \x1b[2J\n")
    chain.log(first, "launcher_1.log", b"started\n")
    chain.log(second, "task_0.log", b"newer\n")
    result = run(world, "logs", f"{first}_0", "-n", "5")
    assert result.stdout == f"{first}/task_0 | loss 1.5\n{first}/task_0 | \\xff\\xfe broken \\x1b[2J\n"
    assert run(world, "logs", str(chain.run.path)).stdout == f"{second}/task_0 | newer\n"
    assert run(world, "logs", str(chain.run.path), "--generation", str(first), "--task", "1").stdout == (
        f"{first}/launcher_1 | started\n"
    )


def test_following_ends_with_the_chain(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    path = chain.log(job, "task_0.log", b"one\n")

    def write() -> None:
        with open(path, "ab") as stream:
            stream.write(b"two\n")

    world.clock.after(3, write)
    world.clock.after(5, lambda: chain.decide(Verdict.COMPLETED))
    result = run(world, "logs", "-f", str(chain.run.path))
    assert result.exit_code == 0
    assert result.stdout == f"{job}/task_0 | one\n{job}/task_0 | two\n"


def test_an_interrupt_ends_following_without_a_fuss(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.log(job, "task_0.log", b"one\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.clock.after(3, interrupt)
    result = run(world, "logs", "-f", str(chain.run.path))
    assert result.exit_code == 0
    assert "Aborted" not in result.output


NO_SLURM = {"PATH": "/nowhere", "HOME": "/", "COLUMNS": "80"}


def real_process(
    *words: str, code: str | None = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code is not None else ["-m", "nvrx_chain"]
    return subprocess.run(
        [sys.executable, *start, *words],
        env={**NO_SLURM, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )


def test_status_json_imports_neither_rich_nor_torch_nor_watchdog(chain: ChainOnDisk) -> None:
    code = (
        "import sys; from nvrx_chain.cli import cli; cli.main(sys.argv[1:], standalone_mode=False);"
        "loaded = [name for name in ('rich', 'torch', 'watchdog', 'psutil') if name in sys.modules];"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = real_process("status", str(chain.run.path), "--json", code=code)
    assert done.returncode == 0, done.stderr
    assert "no such program on PATH" in json.loads(done.stdout)["no_answer"]


def test_where_slurm_is_not_installed_the_files_still_speak(chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.close(11, Outcome.FAILED, "the launcher exited with 1")
    done = real_process("status", str(chain.run.path))
    assert done.returncode == 0
    assert "could not be read, this is what the files say" in done.stdout
    assert "the launcher exited with 1" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("status", "/nowhere/at/all"), 1, "no chain was submitted into this directory"),
        (("status", "777"), 1, "finding the chain of job 777"),
        (("cancel", "--no-such-option"), 2, "No such option"),
        (("logs", "--task", "-1"), 2, "--task"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(words: tuple[str, ...], code: int, says: str) -> None:
    done = real_process(*words)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.strip().splitlines()) == 1


def with_pyslurm(world: World, path: Path, **faults: str) -> dict[str, str]:
    """An environment in which a stand-in for PySlurm shows the world's Slurm, and nothing else does."""
    path.write_text(json.dumps(pyslurm_world(world.slurm, faults)))
    return {"NVRX_SLURM_CLIENT": "pyslurm", "PYTHONPATH": f"{ROOT}:{STAND_IN}", "FAKE_PYSLURM": str(path)} | {
        "FAKE_PYSLURM_VERSION": "22.05.0"
    }


def test_status_asks_pyslurm_where_that_was_chosen(world: World, chain: ChainOnDisk, tmp_path: Path) -> None:
    jobs = chain.submit_three()
    environ = with_pyslurm(world, tmp_path / "world.json")
    done = real_process("status", str(jobs[0]), "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["no_answer"], seen["state"]) == (None, "running")
    assert [generation["state"] for generation in seen["generations"]] == ["running", "queued", "queued"]


def test_a_libslurm_that_ends_its_process_is_slurm_without_an_answer(
    world: World, chain: ChainOnDisk, tmp_path: Path
) -> None:
    chain.submit_three()
    environ = with_pyslurm(world, tmp_path / "world.json", jobs="exit")
    done = real_process("status", str(chain.run.path), "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    assert "fatal: Unable to process configuration file" in json.loads(done.stdout)["no_answer"]


@pytest.mark.parametrize("command", ["status", "list", "extend", "cancel", "hold", "release", "logs"])
def test_a_pyslurm_that_is_not_installed_is_bad_usage_with_how_to_mend_it(command: str, chain: ChainOnDisk) -> None:
    where = "--run-root" if command == "list" else "--run-dir"
    more = ["--by", "1"] if command == "extend" else []
    done = real_process(command, "--slurm-client", "pyslurm", where, str(chain.run.path), *more)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("nvrx-chain: start PySlurm: No module named 'pyslurm'")
    assert "go without --slurm-client pyslurm" in done.stderr
    assert done.stderr.count("\n") == 1


def test_logs_as_json_are_one_object_a_line_and_keep_what_was_written(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.log(15, "task_0.log", b"a \x1b[31mred\x1b[0m line\nno utf-8: \xff\n")
    done = run(world, "logs", "--json", "--run-dir", str(chain.run.path))
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"schema": 1, "log": "15/task_0", "line": "a \x1b[31mred\x1b[0m line"},
        {"schema": 1, "log": "15/task_0", "line": "no utf-8: \\xff"},
    ]


def test_what_an_error_quotes_of_a_file_does_not_steer_the_terminal(tmp_path: Path) -> None:
    hostile = tmp_path / "\x1b]0;owned\x07\x1b[2J"
    done = subprocess.run(
        [sys.executable, "-m", "nvrx_chain", "hold", f"--run-dir={hostile}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "\\x1b]0;owned" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(("words", "term"), [((), "xterm"), (("--json",), "xterm"), ((), "dumb")])
def test_wait_shows_what_the_chain_does_to_a_person_at_a_terminal_only(
    chain: ChainOnDisk, words: tuple[str, ...], term: str
) -> None:
    chain.submit(1)
    own, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "nvrx_chain", "wait", f"--run-dir={chain.run.path}", "--timeout=3", *words],
        env={**NO_SLURM, "COLUMNS": "200", "TERM": term},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=ROOT,
    )
    os.close(theirs)
    seen = b""
    # Reading from a terminal whose other end is closed fails.
    with contextlib.suppress(OSError):
        while part := os.read(own, 4096):
            seen += part
    os.close(own)
    assert process.wait(timeout=60) == 124
    if words or term == "dumb":
        assert seen == b""
    else:
        assert b"train: Slurm could not be read" in seen
