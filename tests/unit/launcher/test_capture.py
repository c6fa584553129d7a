"""Stacks of real processes: hung in Python, stopped, without a handler, too long, and in hostile directories."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher import capture as module
from nvrx_chain.launcher.capture import Captured, CaptureSettings, Target, capture, capture_settings, start_capture
from nvrx_chain.launcher.client import DUMP_SIGNAL
from nvrx_chain.launcher.hang_limits import HangLimits
from nvrx_chain.launcher.mailbox import Mailbox
from nvrx_chain.launcher.stack_files import write_stacks
from tests.rank_lab import PATIENCE_SECONDS, Lab, eventually, lab, line

HANG = "def the_hanging_frame():\n  print('in'); time.sleep(1000)\nthe_hanging_frame()"


@pytest.fixture(autouse=True)
def no_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name, path=None: None)


def await_handlers(place: Lab) -> None:
    eventually(lambda: all(rank.dump is not None for rank in place.monitor._ranks), "not all have a handler")


@contextmanager
def targets(*processes: subprocess.Popen[str]) -> Iterator[list[Target]]:
    found = [
        Target(local_rank=number, rank=40 + number, pid=process.pid, process=os.pidfd_open(process.pid))
        for number, process in enumerate(processes)
    ]
    try:
        yield found
    finally:
        for target in found:
            os.close(target.process)


def take(
    place: Lab, settings: CaptureSettings, *processes: subprocess.Popen[str], has_handler: bool = True
) -> Captured:
    if has_handler:
        await_handlers(place)
    with targets(*processes) as found:
        return capture(settings, 3, found, place.monitor.dump_files())


def test_all_ranks_write_their_stacks_at_once_and_live_on(tmp_path: Path) -> None:
    with lab(HangLimits(), 3) as place:
        ranks = [place.run(HANG, number) for number in range(3)]
        assert [line(rank) for rank in ranks] == ["in"] * 3
        found = take(place, CaptureSettings(directory=tmp_path), *ranks)
        assert found.seconds < 1.0
        for number, stacks in enumerate(found.stacks):
            assert stacks.path == tmp_path / "3" / f"{40 + number}.faulthandler.txt"
            assert "the_hanging_frame" in stacks.path.read_text()
            assert stat.S_IMODE(stacks.path.stat().st_mode) == 0o644
            assert not stacks.is_cut
        assert all(rank.poll() is None for rank in ranks)
        assert sorted(os.listdir(tmp_path / "3")) == [f"{40 + number}.faulthandler.txt" for number in range(3)]


def test_a_stopped_process_is_woken_first(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        os.kill(rank.pid, signal.SIGSTOP)
        stacks = take(place, CaptureSettings(directory=tmp_path), rank).stacks[0]
        assert stacks.path is not None
        assert "the_hanging_frame" in stacks.path.read_text()


def test_a_process_that_holds_the_interpreter_in_c_is_seen_too(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        # PyDLL keeps the lock of the interpreter during the call.
        rank = place.run(
            "import ctypes\ndef stuck():\n  print('in'); ctypes.PyDLL(None).usleep(10**9)\nwhile True: stuck()"
        )
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path), rank).stacks[0]
        assert stacks.path is not None
        assert "stuck" in stacks.path.read_text()


def test_a_process_without_a_handler_is_not_signalled(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run("print('in'); time.sleep(1000)", connects=False)
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path), rank, has_handler=False).stacks[0]
        assert stacks.path is None
        assert "no handler" in stacks.why_not
        assert rank.poll() is None


def test_a_process_that_took_its_handler_away_is_not_killed(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run(f"import faulthandler; faulthandler.unregister({DUMP_SIGNAL}); print('in'); time.sleep(1000)")
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path), rank).stacks[0]
        assert "no handler that writes its stacks any more" in stacks.why_not
        assert rank.poll() is None


def test_a_script_that_uses_the_signal_itself_keeps_it(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            f"signal.signal({DUMP_SIGNAL}, lambda *_: print('mine'))\n"
            "from nvrx_chain.launcher import client\nclient.connect(); print('in')\nwhile True: time.sleep(0.01)",
            connects=False,
        )
        assert line(rank) == "in"
        found = take(place, CaptureSettings(directory=tmp_path), rank, has_handler=False)
        assert "no handler" in found.stacks[0].why_not
        os.kill(rank.pid, DUMP_SIGNAL)
        assert line(rank) == "mine"


def test_a_long_dump_is_cut_and_says_so(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run("def deep(n):\n  if n: deep(n - 1)\n  print('in'); time.sleep(1000)\ndeep(90)")
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path, max_bytes=1500), rank).stacks[0]
        assert stacks.path is not None
        assert stacks.is_cut
        assert stacks.path.stat().st_size == 1500
        assert "limit of bytes" in stacks.path.read_text()


def test_a_dead_rank_is_reported_and_the_others_are_captured(tmp_path: Path) -> None:
    with lab(HangLimits(), 2) as place:
        ranks = [place.run(HANG, number) for number in range(2)]
        assert [line(rank) for rank in ranks] == ["in"] * 2
        await_handlers(place)
        with targets(*ranks) as found:
            os.kill(ranks[0].pid, signal.SIGKILL)
            ranks[0].wait(PATIENCE_SECONDS)
            dead, alive = capture(CaptureSettings(directory=tmp_path), 0, found, place.monitor.dump_files()).stacks
        assert dead.path is None
        assert dead.why_not
        assert alive.path is not None


def test_zero_seconds_is_off_and_gives_the_descriptors_back(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        await_handlers(place)
        before = len(os.listdir("/proc/self/fd"))
        found = take(place, CaptureSettings(directory=tmp_path, seconds=0), rank)
        assert found.stacks[0].why_not == "stack capture is off"
        assert list(tmp_path.iterdir()) == []
        assert len(os.listdir("/proc/self/fd")) == before


def fake_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(module.shutil, "which", lambda name, path=None: str(program))


def test_py_spy_is_preferred_and_told_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_py_spy(tmp_path, monkeypatch, 'echo "stacks: $*"')
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path), rank).stacks[0]
    assert stacks.path == tmp_path / "3" / "40.py-spy.txt"
    assert stacks.path.read_text() == f"stacks: dump --pid {rank.pid}\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [("echo 'Permission denied' >&2; exit 1", "py-spy ended with 1: Permission denied"), ("exec sleep 60", "too long")],
)
def test_a_py_spy_that_fails_or_hangs_is_replaced_within_the_limit(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_py_spy(tmp_path, monkeypatch, script)
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        found = take(place, CaptureSettings(directory=tmp_path, seconds=2.0), rank)
    assert found.seconds <= 2.1
    assert found.stacks[0].tool == "faulthandler"
    assert why in found.stacks[0].why_not


def test_a_rank_that_cannot_be_captured_does_not_hold_up_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "3"
    monkeypatch.setattr(module, "write_stacks", lambda *_: os.open(fifo, os.O_RDONLY))
    os.mkfifo(fifo)
    mail: Mailbox[Captured] = Mailbox()
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        await_handlers(place)
        with targets(rank) as found:
            settings = CaptureSettings(directory=tmp_path, seconds=0.5)
            begun = time.monotonic()
            start_capture(settings, 3, found, place.monitor.dump_files(), mail.post)
            assert time.monotonic() - begun < 0.3
            (captured,) = mail.wait(PATIENCE_SECONDS)
        assert 0.5 <= captured.seconds <= 0.7
        assert captured.stacks[0].why_not == "nothing within 0.5 s"
        with open(fifo, "wb"):  # let the thread go
            pass
    mail.close()


def test_links_in_the_directory_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    place = tmp_path / "a 'dir' & 100%"
    place.mkdir()
    (place / "1").symlink_to(elsewhere)
    with pytest.raises(OSError):
        write_stacks(place, 1, "0.py-spy.txt", b"x")
    assert list(elsewhere.iterdir()) == []
    (place / "2").mkdir()
    (place / "2" / "0.py-spy.txt").symlink_to(precious)
    path = write_stacks(place, 2, "0.py-spy.txt", b"stacks")
    assert precious.read_text() == "mine"
    assert path.read_bytes() == b"stacks"
    assert not path.is_symlink()
    assert os.listdir(place / "2") == ["0.py-spy.txt"]
    link = tmp_path / "link"
    link.symlink_to(place)
    assert write_stacks(link, 3, "0.py-spy.txt", b"y").read_bytes() == b"y"


def test_a_directory_that_is_missing_is_one_line_in_the_outcome(tmp_path: Path) -> None:
    with lab(HangLimits()) as place:
        rank = place.run(HANG)
        assert line(rank) == "in"
        stacks = take(place, CaptureSettings(directory=tmp_path / "missing"), rank).stacks[0]
        assert stacks.why_not == "writing its file: No such file or directory"


@pytest.mark.parametrize(("seconds", "max_bytes"), [(-1.0, 1000), (float("nan"), 1000), (301.0, 1000), (5.0, 999)])
def test_a_limit_that_makes_no_sense_is_refused(tmp_path: Path, seconds: float, max_bytes: int) -> None:
    with pytest.raises(UsageError) as caught:
        capture_settings(tmp_path, seconds, max_bytes)
    assert len(str(caught.value).splitlines()) == 1


def test_limits_have_defaults(tmp_path: Path) -> None:
    assert capture_settings(tmp_path) == CaptureSettings(directory=tmp_path, seconds=5.0, max_bytes=1_000_000)


def test_a_parked_worker_that_never_heard_of_the_client_has_a_handler(tmp_path: Path) -> None:
    from nvrx_chain.launcher import workers

    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time\nassert not [m for m in sys.modules if 'nvrx' in m]\n"
        "def my_loop():\n  print('in'); time.sleep(1000)\nmy_loop()\n"
    )
    with lab(HangLimits()) as place:
        entry = workers.EntryPoint(argv=(str(script),), python=sys.executable)
        worker = workers.park(entry, [], os.environ, 0, capture_output=True)
        try:
            worker.release(entry, place.environments[0], ())
            assert worker.output is not None
            assert os.read(worker.output, 2) == b"in"
            await_handlers(place)
            target = Target(local_rank=0, rank=0, pid=worker.pid, process=worker.descriptor)
            stacks = capture(CaptureSettings(directory=tmp_path), 1, [target], place.monitor.dump_files()).stacks[0]
            assert stacks.path is not None, stacks.why_not
            assert "my_loop" in stacks.path.read_text()
        finally:
            worker.signal_group(signal.SIGKILL)
            eventually(worker.has_ended, "it does not end")
            worker.reap()
            os.close(worker.output or -1)
