from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.processes import Daemon, DaemonSpec, poll, send_signal, start_daemons, wait_until
from nvrx_chain.sandbox.procfs import ProcessId, find_process, list_processes, read_arguments, read_process
from tests.unit.sandbox.fakes import FakeClock, child

ENVIRON = {"PATH": "/usr/bin:/bin"}
CLOCK = SystemClock()

STARTER = """\
import os, signal, sys
from pathlib import Path
from nvrx_chain.sandbox.processes import DaemonSpec, start_daemons

def die(daemons):
    print(daemons[0].id.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

spec = DaemonSpec(name="x", argv=("/usr/bin/touch", sys.argv[1]), log=Path(sys.argv[2]))
start_daemons([spec], {"PATH": "/usr/bin:/bin"}, die)
"""


def _spec(tmp_path: Path, *argv: str) -> DaemonSpec:
    return DaemonSpec(name=argv[0], argv=argv, log=tmp_path / "it's a log")


def _end(daemons: Sequence[Daemon]) -> None:
    for daemon in daemons:
        send_signal(daemon.id, signal.SIGKILL)
    assert poll(CLOCK, lambda: not any(find_process(daemon.id) for daemon in daemons), 30)


def test_daemons_are_on_record_before_the_first_one_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    def record(daemons: Sequence[Daemon]) -> None:
        assert all(find_process(daemon.id) for daemon in daemons)
        seen.extend(read_arguments(daemon.id.pid) for daemon in daemons)

    daemons = start_daemons([_spec(tmp_path, "sleep", "61"), _spec(tmp_path, "sleep", "62")], ENVIRON, record)
    with contextlib.ExitStack() as ending:
        ending.callback(_end, daemons)
        assert [arguments[0] for arguments in seen] == ["/bin/sh", "/bin/sh"]
        for daemon, seconds in zip(daemons, ("61", "62"), strict=True):
            # The very process that was recorded, now the daemon.
            assert poll(CLOCK, lambda d=daemon, s=seconds: read_arguments(d.id.pid) == ("sleep", s), 30)
            assert find_process(daemon.id) is not None


def test_a_daemon_is_no_child_of_its_starter_and_leads_its_own_session(tmp_path: Path) -> None:
    daemons = start_daemons([_spec(tmp_path, "sleep", "60")], ENVIRON, lambda _: None)
    with contextlib.ExitStack() as ending:
        ending.callback(_end, daemons)
        process = find_process(daemons[0].id)
        assert process is not None
        assert process.parent != os.getpid()
        assert os.getsid(process.pid) == process.pid


def test_a_daemon_starts_with_default_signals_and_no_foreign_file(tmp_path: Path) -> None:
    script = "grep SigIgn /proc/self/status; ls -l /proc/$$/fd; echo end"
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        # As in a caller that a shell runs in the background.
        start_daemons([_spec(tmp_path, "sh", "-c", script)], ENVIRON, lambda _: None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    log = tmp_path / "it's a log"
    assert poll(CLOCK, lambda: log.exists() and log.read_text().endswith("end\n"), 30)
    text = log.read_text()
    ignored = int(text.split("SigIgn:")[1].split()[0], 16)
    # Bit n-1 stands for signal n; an ignored SIGINT would be inherited by every job.
    assert not ignored & (1 << (signal.SIGINT - 1))
    assert not ignored & (1 << (signal.SIGQUIT - 1))
    assert "pipe:" not in text


def test_nothing_runs_when_the_record_cannot_be_written(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    recorded: list[Daemon] = []

    def record(daemons: Sequence[Daemon]) -> None:
        recorded.extend(daemons)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        start_daemons([_spec(tmp_path, "touch", str(marker))], ENVIRON, record)
    assert poll(CLOCK, lambda: find_process(recorded[0].id) is None, 30)
    assert not marker.exists()


def test_nothing_runs_when_the_starter_is_killed_before_it_opens_the_gate(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    done = subprocess.run(
        [sys.executable, "-c", STARTER, str(marker), str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    gate = int(done.stdout)
    assert poll(CLOCK, lambda: read_process(gate) is None or gate not in {p.pid for p in list_processes()}, 30)
    assert not marker.exists()


def test_a_program_that_is_missing_says_so_in_the_log(tmp_path: Path) -> None:
    daemons = start_daemons([_spec(tmp_path, "/no/such program")], ENVIRON, lambda _: None)
    assert poll(CLOCK, lambda: find_process(daemons[0].id) is None, 30)
    assert "/no/such program" in (tmp_path / "it's a log").read_text()


def test_a_signal_reaches_only_the_process_it_was_meant_for() -> None:
    with child("sleep", "60") as process:
        seen = read_process(process.pid)
        assert seen is not None
        later = ProcessId(pid=seen.pid, started=seen.started + 1)
        assert send_signal(later, signal.SIGKILL) is False
        assert find_process(seen.id) is not None
        assert send_signal(seen.id, signal.SIGKILL) is True
        assert process.wait(30) == -signal.SIGKILL
        assert send_signal(seen.id, signal.SIGKILL) is False


def test_poll_asks_once_more_at_the_deadline() -> None:
    clock = FakeClock()
    assert poll(clock, lambda: clock.seconds >= 5.0, 5.0) is True
    assert clock.seconds == 5.0
    assert poll(clock, lambda: clock.seconds >= 10.1, 5.0) is None


def test_wait_until_names_what_did_not_happen() -> None:
    clock = FakeClock()
    assert wait_until(clock, lambda: "it", 1.0, doing="d", wanted="w") == "it"
    with pytest.raises(SandboxError, match=r"^starting x: an answer: not within 3 s \(.*`sandbox status`\)$"):
        wait_until(clock, lambda: None, 3.0, doing="starting x", wanted="an answer")
