from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.errors import SlurmUnavailable
from nvrx_chain.slurm.command import (
    CommandResult,
    TimedOut,
    reading_environment,
    run_command,
    scrubbed_environment,
)
from tests.unit.slurm.programs import FakePrograms

PATIENCE_SECONDS = 60.0
# Long enough for a shell to start on a busy machine.
TIME_OUT_SECONDS = 4.0


@pytest.fixture
def programs(tmp_path: Path) -> FakePrograms:
    return FakePrograms(tmp_path / "bin dir & #1")


def wait_for(path: Path) -> str:
    """The text of a file once it is there and whole (it ends with a newline)."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def is_running(pid: int) -> bool:
    """A zombie that nobody has collected yet has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_a_program_that_ends_gives_its_code_and_both_outputs(programs: FakePrograms) -> None:
    programs.put("squeue", 'printf "out %s\\n" "$@"; echo err >&2; exit 3')
    result = run_command(["squeue", "a b", "c'd"], programs.environ)
    assert isinstance(result, CommandResult)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out a b\nout c'd\n", "err\n")
    assert result.argv == ("squeue", "a b", "c'd")
    assert 0 <= result.seconds < PATIENCE_SECONDS


def test_a_program_killed_by_a_signal_has_a_negative_code(programs: FakePrograms) -> None:
    programs.put("squeue", "kill -9 $$")
    result = run_command(["squeue"], programs.environ)
    assert isinstance(result, CommandResult)
    assert result.returncode == -signal.SIGKILL


def test_output_that_is_no_utf8_is_shown_and_breaks_nothing(programs: FakePrograms) -> None:
    programs.put("squeue", "printf 'n\\377\\n'")
    result = run_command(["squeue"], programs.environ)
    assert isinstance(result, CommandResult)
    assert result.stdout == "n\\xff\n"


def test_a_program_reads_nothing_from_our_standard_input(programs: FakePrograms) -> None:
    programs.put("sbatch", "cat; echo end")
    result = run_command(["sbatch"], programs.environ, timeout_seconds=PATIENCE_SECONDS)
    assert isinstance(result, CommandResult)
    assert result.stdout == "end\n"


def test_a_time_out_kills_the_program_and_what_it_started(programs: FakePrograms, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    programs.put_plain("squeue", f'sleep 600 & echo "$$ $!" > "{pids}"; wait')
    outcome = run_command(["squeue"], programs.environ, timeout_seconds=TIME_OUT_SECONDS)
    assert outcome == TimedOut(argv=("squeue",), seconds=TIME_OUT_SECONDS)
    shell, child = map(int, wait_for(pids).split())
    wait_until_gone(shell)
    wait_until_gone(child)


def test_a_grandchild_that_holds_the_pipes_does_not_hold_us(programs: FakePrograms, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # The helper leaves the process group, as a site's wrapper that detaches would.
    programs.put_plain("squeue", f"setsid sh -c 'echo $$ > \"{pid}\"; exec sleep 600' & sleep 600")
    started = time.monotonic()
    outcome = run_command(["squeue"], programs.environ, timeout_seconds=TIME_OUT_SECONDS)
    took = time.monotonic() - started
    helper = int(wait_for(pid))
    assert is_running(helper)
    os.kill(helper, signal.SIGKILL)
    assert isinstance(outcome, TimedOut)
    assert took < PATIENCE_SECONDS


def test_an_interrupt_takes_the_program_along(programs: FakePrograms, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    programs.put("scancel", f'echo $$ > "{pid}"; sleep 600')
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_for(pid)
        signal.pthread_kill(main, signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        run_command(["scancel"], programs.environ, timeout_seconds=PATIENCE_SECONDS)
    watcher.join()
    wait_until_gone(int(pid.read_text()))


def test_a_program_that_is_not_there_is_named(programs: FakePrograms) -> None:
    with pytest.raises(SlurmUnavailable, match="start squeue: no such program on PATH"):
        run_command(["squeue"], programs.environ)


def test_a_program_that_cannot_be_executed_is_named(programs: FakePrograms) -> None:
    broken = programs.path("squeue")
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(SlurmUnavailable, match="start squeue"):
        run_command(["squeue"], programs.environ)


def test_a_missing_configuration_is_told_at_once_instead_of_after_a_minute(
    programs: FakePrograms, tmp_path: Path
) -> None:
    programs.put("squeue", "echo ran")
    with pytest.raises(SlurmUnavailable, match="SLURM_CONF names a file that is not there"):
        run_command(["squeue"], programs.environ | {"SLURM_CONF": str(tmp_path / "gone.conf")})
    assert programs.calls("squeue") == []


def test_another_path_for_a_program_is_taken(programs: FakePrograms, tmp_path: Path) -> None:
    site = FakePrograms(tmp_path / "site")
    program = site.put("my squeue", "echo site")
    result = run_command([str(program)], programs.environ)
    assert isinstance(result, CommandResult)
    assert result.stdout == "site\n"


INHERITED = {
    "SQUEUE_STATES": "RUNNING",
    "SACCT_FORMAT": "jobid",
    "SCANCEL_NAME": "x",
    "SINFO_FORMAT": "%N",
    "SBATCH_REQUEUE": "1",
    "SRUN_CPUS_PER_TASK": "2",
    "SALLOC_PARTITION": "x",
    "SLURM_TIME_FORMAT": "%s",
    "SLURM_CLUSTERS": "other",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_CPU_BIND": "verbose",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
}
KEPT = {
    "PATH": "/bin",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_JWT": "token",
    "LC_ALL": "de_DE.UTF-8",
    "TZ": "Asia/Tokyo",
    "NCCL_DEBUG": "INFO",
    "MY_SLURM_THING": "1",
}


def test_variables_that_change_slurm_are_dropped_and_named() -> None:
    environ, dropped = scrubbed_environment(INHERITED | KEPT)
    assert environ == KEPT
    assert dropped == tuple(sorted(INHERITED))


def test_a_reading_environment_fixes_language_zone_and_formats() -> None:
    environ = reading_environment(INHERITED | KEPT)
    assert environ == KEPT | {
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "0",
    }
