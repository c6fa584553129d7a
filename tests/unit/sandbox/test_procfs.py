from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from nvrx_chain.clock import SystemClock
from nvrx_chain.sandbox import procfs
from nvrx_chain.sandbox.processes import poll
from nvrx_chain.sandbox.procfs import ProcessId
from tests.unit.sandbox.fakes import child

NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R (b'); print('named', flush=True); input()"


def test_a_process_is_known_by_pid_and_start_time() -> None:
    with child("sleep", "60") as process:
        seen = procfs.read_process(process.pid)
        assert seen is not None
        assert seen.parent == os.getpid()
        assert procfs.find_process(seen.id) == seen or not seen.is_dead
        assert procfs.find_process(ProcessId(pid=seen.pid, started=seen.started + 1)) is None
    assert procfs.read_process(process.pid) is None
    assert procfs.find_process(seen.id) is None


def test_a_command_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    argv = [sys.executable, "-c", NAMED]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"named\n"
        assert b"(a) R (b)" in Path(f"/proc/{process.pid}/stat").read_bytes()
        seen = procfs.read_process(process.pid)
        assert seen is not None
        assert (seen.parent, seen.is_dead, seen.is_stopped) == (os.getpid(), False, False)
        process.kill()


def test_a_zombie_is_dead_though_its_number_is_taken() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        before = procfs.read_process(process.pid)
        assert before is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        after = procfs.read_process(process.pid)
        assert after is not None
        assert (after.state, after.id) == ("Z", before.id)
        assert procfs.find_process(before.id) is None
        assert process.pid not in {listed.pid for listed in procfs.list_processes()}


def test_a_stopped_process_is_alive_and_stopped() -> None:
    with child("sleep", "60") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        seen = procfs.read_process(process.pid)
        assert seen is not None
        assert (seen.is_stopped, seen.is_dead) == (True, False)
        assert seen.pid in {listed.pid for listed in procfs.list_processes()}


def test_arguments_environment_and_program_are_those_of_the_exec() -> None:
    with child("sleep", "60", RANK="3", ODD="a=b c\nd") as process:
        # Until its exec the child is a copy of this interpreter.
        assert poll(SystemClock(), lambda: procfs.read_arguments(process.pid) == ("sleep", "60"), 30)
        environ = procfs.read_environment(process.pid)
        assert (environ["RANK"], environ["ODD"]) == ("3", "a=b c\nd")
        assert procfs.read_executable(process.pid) == os.path.realpath("/usr/bin/sleep")
        assert procfs.read_pid_namespace(process.pid) == procfs.read_pid_namespace(os.getpid())


def test_what_is_gone_reads_as_empty() -> None:
    with child("sleep", "60") as process:
        pass
    assert procfs.read_arguments(process.pid) == ()
    assert procfs.read_environment(process.pid) == {}
    assert procfs.read_executable(process.pid) is None
    assert procfs.read_pid_namespace(process.pid) is None
    assert procfs.read_child_pid_namespace(process.pid) is None
