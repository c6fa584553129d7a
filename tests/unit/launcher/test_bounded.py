"""Programs that hang, print without end and leave children behind do not hold up who runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nvrx_chain.launcher.bounded import BoundedProgram, Ran
from tests.fakes.descriptors import many_descriptors


def run(program: str, seconds: float = 5.0) -> Ran:
    return BoundedProgram(["/bin/sh", "-c", program]).run(os.environ, seconds)


def ended(*pids: int, seconds: float = 5.0) -> bool:
    """Whether none of them lives; a signal takes a moment to arrive."""
    deadline = time.monotonic() + seconds
    while any(lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(lives(pid) for pid in pids)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exit_code_and_last_line_are_reported() -> None:
    assert run("echo one; echo two >&2; echo; exit 3") == Ran(exit_code=3, last_line="two")
    assert run("true") == Ran(exit_code=0, last_line="")
    assert run("kill -SEGV $$").exit_code == -11


def test_a_program_that_hangs_is_killed_with_all_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    started_at = time.monotonic()
    ran = run(f"sleep 60 & echo $$ $! > '{note}'; echo waiting; wait", seconds=0.4)
    assert ran == Ran(exit_code=None, last_line="waiting")
    assert time.monotonic() - started_at < 2.0
    pids = note.read_text().split()
    assert len(pids) == 2
    assert ended(*map(int, pids))


@pytest.mark.parametrize(
    "program",
    ["kill -STOP $$", "trap '' TERM INT HUP; sleep 60", "read x < fifo", "while :; do :; done"],
)
def test_however_it_hangs_its_time_is_up_at_the_deadline(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    started_at = time.monotonic()
    assert run(program, seconds=0.3).exit_code is None
    assert 0.3 <= time.monotonic() - started_at < 2.0


def test_a_child_that_keeps_the_output_open_does_not_keep_us() -> None:
    started_at = time.monotonic()
    assert run("sleep 60 & echo done") == Ran(exit_code=0, last_line="done")
    assert time.monotonic() - started_at < 2.0


def test_a_child_with_a_session_of_its_own_that_prints_without_end_does_not_keep_us(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started_at = time.monotonic()
    ran = run(f"setsid sh -c 'echo $$ > {note}; exec yes' & while [ ! -s {note} ]; do sleep 0.01; done")
    assert ran.exit_code == 0
    assert time.monotonic() - started_at < 3.0
    # Its reader is gone: the next line that it prints ends it.
    assert ended(int(note.read_text()))


def test_output_without_end_is_cut_and_not_kept() -> None:
    ran = run("head -c 50000000 /dev/zero | tr '\\0' x; exit 4")
    assert (ran.exit_code, len(ran.last_line)) == (4, 300)


def test_what_would_move_a_cursor_is_not_passed_on() -> None:
    assert run("printf 'a\\033[2Jb\\377\\n'").last_line == "a?[2Jb\\xff"


def test_a_program_that_closes_its_output_is_still_waited_for() -> None:
    assert run("exec >&- 2>&-; sleep 0.2; exit 5").exit_code == 5


def test_a_program_that_cannot_be_started_is_told_apart_from_one_that_fails(tmp_path: Path) -> None:
    missing = BoundedProgram([str(tmp_path / "none")]).run(os.environ, 5.0)
    assert missing.start_error == "No such file or directory"
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert BoundedProgram([str(script)]).run(os.environ, 5.0).start_error == "No such file or directory"
    assert run("exit 127") == Ran(exit_code=127, last_line="")


def test_while_one_that_cannot_be_killed_is_left_no_other_is_started(tmp_path: Path) -> None:
    program = BoundedProgram(["/bin/sh", "-c", f"touch '{tmp_path}/started'"])
    living = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        program._stuck = living
        assert program.run(os.environ, 5.0) == Ran(exit_code=None, last_line="an earlier run still hangs")
        assert not (tmp_path / "started").exists()
    finally:
        living.kill()
        living.wait()
    assert program.run(os.environ, 5.0).exit_code == 0
    assert (tmp_path / "started").exists()


def test_signals_are_as_a_shell_gives_them_whatever_the_launcher_blocks() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        line = run("grep -E 'SigBlk|SigIgn' /proc/self/status | tr -s '\\n\\t' ' '").last_line
        words = line.split()
        found = dict(zip(words[::2], words[1::2], strict=True))
        # 32 and 33 are the C library's own: nobody can set them.
        own = {name: int(mask, 16) & ~(0b11 << 31) for name, mask in found.items()}
        assert own == {"SigBlk:": 0, "SigIgn:": 0}
        started_at = time.monotonic()
        assert run("timeout 0.2 sleep 60").exit_code == 124
        assert run("yes | head -n 1 >/dev/null").exit_code == 0
        assert time.monotonic() - started_at < 3.0
    finally:
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_it_dies_with_the_launcher(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    launcher = f"""
import os, sys
from nvrx_chain.launcher.bounded import BoundedProgram
BoundedProgram(["/bin/sh", "-c", "echo $$ > {note}; exec sleep 60"]).run(os.environ, 60.0)
"""
    process = psutil.Popen([sys.executable, "-c", launcher])
    deadline = time.monotonic() + 10.0
    while not (note.exists() and note.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = int(note.read_text())
    assert lives(pid)
    process.kill()
    process.wait()
    assert ended(pid)


def test_a_launcher_that_adopts_orphans_keeps_no_dead_ones() -> None:
    launcher = """
import ctypes, os
from nvrx_chain.launcher.bounded import BoundedProgram
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for script, seconds in (("sleep 60 & sleep 60 & exit 1", 9.0), ("sleep 60 & wait", 0.3)):
    BoundedProgram(["/bin/sh", "-c", script]).run(os.environ, seconds)
print(repr(open("/proc/self/task/" + str(os.getpid()) + "/children").read()))
"""
    done = subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "''\n"


def test_descriptors_beyond_those_of_select_are_no_trouble() -> None:
    with many_descriptors():
        assert run("echo here; exit 3") == Ran(exit_code=3, last_line="here")
        assert run("sleep 60", seconds=0.1).exit_code is None


def test_no_descriptor_is_left_open() -> None:
    run("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run("true")
        run("sleep 60", seconds=0.05)
    assert len(os.listdir("/proc/self/fd")) == before
