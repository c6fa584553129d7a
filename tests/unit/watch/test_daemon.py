"""The loop goes on whatever a pass does, says so, and ends when it is told to."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SlurmError
from nvrx_watch.daemon import LONGEST_BACK_OFF_SECONDS, Loop, LoopSettings, tell_systemd

QUICK = LoopSettings(interval_seconds=0.01, deadline_seconds=10)


class Script:
    """A pass that does one thing after the other and stops the loop after the last."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)
        self.passes = 0
        self.loop: Loop | None = None

    def __call__(self) -> int:
        self.passes += 1
        step = self.steps.pop(0)
        if not self.steps:
            assert self.loop is not None
            self.loop.stop()
        if isinstance(step, Exception):
            raise step
        return 0


def loop_over(script: Script, settings: LoopSettings = QUICK) -> Loop:
    script.loop = Loop(script, settings, SystemClock())
    return script.loop


def test_passes_follow_one_another_until_the_loop_is_stopped() -> None:
    script = Script(None, None, None)
    loop_over(script).run()
    assert script.passes == 3


def test_a_pass_that_raises_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(SlurmError("asking", part="down"), ZeroDivisionError("a fault"), None)
    with caplog.at_level(logging.ERROR):
        loop_over(script).run()
    assert script.passes == 3
    assert "asking: down" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_pass_that_hangs_is_reported_and_no_second_one_runs_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    release, entered = threading.Event(), []
    overdue = threading.Event()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has not ended" in record.getMessage():
                overdue.set()

    handler = Watching()
    logging.getLogger("nvrx_watch.daemon").addHandler(handler)

    def hang() -> int:
        entered.append(1)
        release.wait(30)
        return 0

    loop = Loop(hang, LoopSettings(interval_seconds=0.01, deadline_seconds=0.05), SystemClock())
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        assert overdue.wait(10)
        assert len(entered) == 1
    finally:
        loop.stop()
        thread.join(10)
        release.set()
        logging.getLogger("nvrx_watch.daemon").removeHandler(handler)
    assert not thread.is_alive()


def test_a_wake_up_shortens_the_pause() -> None:
    script = Script(None, None)
    loop = loop_over(script, LoopSettings(interval_seconds=3600, deadline_seconds=10))
    # The shortest gap between passes is kept; the hour is not.
    loop.wake()
    thread = threading.Thread(target=loop.run)
    thread.start()
    for _ in range(100):
        loop.wake()
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    assert script.passes == 2


def test_failures_stretch_the_pause_up_to_a_limit() -> None:
    loop = Loop(lambda: 0, LoopSettings(interval_seconds=60, deadline_seconds=1), SystemClock())
    pauses = []
    for failures in range(30):
        loop._failures = failures
        pauses.append(loop._pause())
    assert 54 <= pauses[0] <= 66
    assert pauses[2] > 2 * pauses[0]
    assert max(pauses) <= LONGEST_BACK_OFF_SECONDS * 1.1


def test_the_service_manager_hears_of_start_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        script = Script(None)
        script.loop = Loop(script, QUICK, SystemClock(), tell_service_manager=tell_systemd)
        script.loop.run()
        assert [receiver.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_a_service_manager_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_systemd("READY=1")


def test_a_service_manager_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    tell_systemd("READY=1")
    assert "was not told" in caplog.text
