"""The loop goes on whatever a pass does, says so, and ends when it is told to."""

from __future__ import annotations

import logging
import socket
import threading
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SlurmError
from nvrx_watch.daemon import (
    LONGEST_BACK_OFF_SECONDS,
    SHORTEST_GAP_SECONDS,
    STOP_SECONDS,
    Loop,
    LoopSettings,
    SlurmSilent,
    tell_systemd,
)

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


class Waiting:
    """A clock on which time passes at once; it notes for how long, and on which event, the loop wanted to wait."""

    def __init__(self) -> None:
        self.waits: list[tuple[bool, float]] = []
        self.elapsed = 0.0

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return self.elapsed

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append((event.is_set(), seconds))
        if not event.is_set():
            self.elapsed += seconds
        # The pass itself is real and ends by itself.
        return event.wait(5) if seconds <= 1.0 else event.is_set()


def test_however_often_files_change_passes_keep_their_distance_and_none_is_lost() -> None:
    clock = Waiting()
    passes: list[float] = []

    def one_pass() -> int:
        passes.append(clock.elapsed)
        # Changes during the pass: they may not be in it, and they are many.
        loop.wake()
        loop.wake()
        if len(passes) == 4:
            loop.stop()
        return 0

    loop = Loop(one_pass, LoopSettings(interval_seconds=3600, deadline_seconds=10), clock)
    loop.run()
    gaps = [later - earlier for earlier, later in pairwise(passes)]
    # Woken each time, long before the hour, and never back to back.
    assert all(SHORTEST_GAP_SECONDS <= gap < 60 for gap in gaps), gaps


def test_a_stop_waits_for_the_pass_under_way_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def hang() -> int:
        loop.stop()
        release.wait(30)
        return 0

    clock = Waiting()
    loop = Loop(hang, LoopSettings(interval_seconds=60, deadline_seconds=400), clock)
    thread = threading.Thread(target=loop.run)
    thread.start()
    thread.join(20)
    release.set()
    assert not thread.is_alive()
    assert clock.elapsed <= STOP_SECONDS + 2
    assert "left behind" in caplog.text


@pytest.mark.parametrize(("first", "waits_on"), [(None, "alarm"), (SlurmSilent("the queue was not seen"), "stop")])
def test_file_events_do_not_shorten_the_pause_after_a_slurm_that_was_silent(first: object, waits_on: str) -> None:
    """Whatever runs in the job can make files, and would ask a controller in trouble ever more questions."""
    clock, script = Waiting(), Script(first, None)
    loop = script.loop = Loop(script, LoopSettings(interval_seconds=3600, deadline_seconds=10), clock)
    heard: list[str] = []
    names = {id(loop._stop): "stop", id(loop._alarm): "alarm"}
    wait = clock.wait

    def listen(event: threading.Event, seconds: float) -> bool:
        if seconds > SHORTEST_GAP_SECONDS:
            heard.append(names.get(id(event), "pass"))
        return wait(event, seconds)

    clock.wait = listen  # type: ignore[method-assign]
    loop.run()
    assert script.passes == 2
    assert heard[0] == waits_on


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
