"""Every way to fail ends or freezes a real process in the way that its name says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nvrx_chain.workloads.failing import InjectedFault, fail
from nvrx_chain.workloads.faults import FaultKind, parse_fault

PATIENCE_SECONDS = 60.0
_PROGRAM = """
import sys
from nvrx_chain.workloads.failing import fail
from nvrx_chain.workloads.faults import parse_fault
print("failing", flush=True)
fail(parse_fault("rank=0,iteration=1,kind=" + sys.argv[1]))
print("came back", flush=True)
"""


@contextmanager
def failing(kind: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is about to fail in this way."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "failing\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def ended(kind: str) -> tuple[int, str, str]:
    with failing(kind) as process:
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, output, errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("sigkill", -signal.SIGKILL),
        ("sigterm", -signal.SIGTERM),
        ("sigint", -signal.SIGINT),
        ("os_abort", -signal.SIGABRT),
        ("segfault", -signal.SIGSEGV),
        ("exit:93", 93),
        ("exception", 1),
        ("workload_exc", 1),
        ("async_exc", 1),
        ("signal_exc", 1),
    ],
)
def test_a_process_fails_as_the_kind_says(kind: str, code: int) -> None:
    returncode, output, errors = ended(kind)
    assert returncode == code
    assert output == ""
    if code == 1:
        assert "InjectedFault" in errors


def process_state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, state: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while process_state(pid) != state:
        assert time.monotonic() < give_up_at, f"{pid} is {process_state(pid)}, not {state}"
        time.sleep(0.01)


def test_sigstop_freezes_until_somebody_continues() -> None:
    with failing("sigstop") as process:
        wait_for_state(process.pid, "T")
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, output) == (0, "came back\n")


def test_a_process_without_its_interpreter_runs_no_handler_and_dies_of_a_kill() -> None:
    with failing("lock_gil") as process:
        wait_for_state(process.pid, "S")
        # Python would turn it into KeyboardInterrupt, which it can no more.
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_the_exception_names_the_fault() -> None:
    with pytest.raises(InjectedFault, match="rank0-iteration1-exception"):
        fail(parse_fault("rank=0,iteration=1,kind=exception"))


def test_a_rank_that_handles_sigterm_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        fail(parse_fault("rank=0,iteration=1,kind=sigterm"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_a_fault_leaves_no_core(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("core")
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],)*2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + _PROGRAM, "os_abort"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    assert list(directory.iterdir()) == []


def test_every_kind_but_a_hang_is_tested_here() -> None:
    tested = {"sigkill", "sigterm", "sigint", "os_abort", "segfault", "exit", "exception", "workload_exc"}
    tested |= {"async_exc", "signal_exc", "sigstop", "lock_gil"}
    assert {kind.value for kind in FaultKind} - tested == {"hang"}
