"""The wrapper around a launcher, with real processes: what stops it, who is told what, and that nobody is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.identity import TaskIdentity, read_boot_id, read_process_start
from nvrx_chain.generation.wrapper import Wrapper
from nvrx_chain.generation.wrapper_events import Event
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.records.control import Closed, LauncherExit, NoRestart
from nvrx_chain.records.layout import GenerationDirectory
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome
from tests.fakes.fake_clock import FakeClock
from tests.fakes.generation_lab import read
from tests.unit.generation.run_wrapper import Spec

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).parents[3]

# Started by every launcher below: pid files say when something is there, and who it is.
PRELUDE = """
import os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(os.environ["HERE"])
def say(name, text=""):
    temporary = here / f".{name}.tmp"
    temporary.write_text(str(text))
    temporary.rename(here / name)
def wait():
    while True:
        time.sleep(60)
def child(code, **environ):
    environ = {**os.environ, **environ}
    return subprocess.Popen([sys.executable, "-c", PRELUDE + code], env=environ, start_new_session=True)
PRELUDE = os.environ["PRELUDE"]
"""


def eventually(what: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Node:
    """One node with a wrapper on it. `launch` starts it with a Python program as its launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.here = path / "a b&c#'100%"
        self.directory = GenerationDirectory(self.here / "generation", 7)
        for directory in (self.directory.control, self.directory.logs):
            directory.mkdir(parents=True)
        self.is_host = False
        self.thresholds = Thresholds(control_poll=0.05, drain=0.5, self_fence=300.0)
        self.slack_seconds = 0.5
        self.port = 1
        self.process: subprocess.Popen[bytes] | None = None
        self._beating = threading.Event()
        identity = TaskIdentity(
            array_job_id=7,
            array_task_id=0,
            restart_count=0,
            host="n1",
            nodes=("n1",),
            boot_id=read_boot_id(),
            pid=os.getpid(),
            pid_started_at=read_process_start(os.getpid()),
        )
        self.board = Board(self.directory, identity, SystemClock())

    def launch(self, program: str | list[str]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", PRELUDE + program] if isinstance(program, str) else program
        spec = Spec(
            directory=str(self.directory.path),
            argv=argv,
            port=self.port,
            thresholds=self.thresholds,
            slack_seconds=self.slack_seconds,
            is_host=self.is_host,
        )
        path = self.path / "spec.json"
        path.write_bytes(msgspec.json.encode(spec))
        environ = {**os.environ, "HERE": str(self.here), "PRELUDE": PRELUDE, "PYTHONPATH": str(ROOT)}
        environ.pop("RANK", None)
        with open(self.path / "wrapper.log", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.unit.generation.run_wrapper", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=ROOT,
            )
        return self.process

    def say(self, words: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(words)
        self.process.stdin.flush()

    def hear(self, name: str) -> str:
        """Wait until a process of the launcher said this."""
        eventually((self.here / name).exists, f"nobody said {name}: {(self.path / 'wrapper.log').read_text()}")
        return (self.here / name).read_text()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_SECONDS)

    def exit(self) -> LauncherExit:
        return read(self.directory.launcher_exit(0, "n1"), LauncherExit)

    def beat(self, interval_seconds: float) -> None:
        """Run-task's lease, until `hush`."""

        def run() -> None:
            counter = 0
            while not self._beating.wait(interval_seconds):
                counter += 1
                self.board.write_lease(counter, interval_seconds, "running")

        threading.Thread(target=run, daemon=True).start()

    def hush(self) -> None:
        self._beating.set()

    def clean(self) -> None:
        self.hush()
        if self.process is None:
            return
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.clean()


# How it ended


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), 9)", 137),
        ("sys.exit(221)", 1),
    ],
)
def test_the_code_of_the_launcher_is_returned_and_written_as_a_shell_counts(
    node: Node, program: str, code: int
) -> None:
    node.launch(program)
    assert node.wait() == code
    written = node.exit()
    assert (written.exit_code, written.asked_to_stop, written.node) == (code, False, "n1")
    assert not node.directory.no_restart.exists()


def test_the_no_restart_verdict_is_written_before_the_exit(node: Node) -> None:
    node.launch("sys.exit(93)")
    assert node.wait() == 93
    verdict = read(node.directory.no_restart, NoRestart)
    assert (verdict.exit_code, verdict.node) == (93, "n1")
    written = node.directory.launcher_exit(0, "n1").stat().st_mtime_ns
    assert node.directory.no_restart.stat().st_mtime_ns <= written
    assert node.exit().exit_code == 93


def test_the_first_of_two_verdicts_stays(node: Node) -> None:
    node.directory.no_restart.write_text("{}")
    node.launch("sys.exit(93)")
    assert node.wait() == 93
    assert node.directory.no_restart.read_text() == "{}"


def test_a_verdict_that_cannot_be_written_at_first_is_written_later_and_the_code_stays(node: Node) -> None:
    control, hidden = node.directory.control, node.directory.control.with_name("hidden")
    control.rename(hidden)
    control.write_text("no directory")
    node.launch("sys.exit(93)")
    eventually(
        lambda: (
            "No such file" in (node.path / "wrapper.log").read_text()
            or "Not a directory" in (node.path / "wrapper.log").read_text()
        ),
        "no write was tried",
    )
    control.unlink()
    hidden.rename(control)
    assert node.wait() == 93
    assert read(node.directory.no_restart, NoRestart).exit_code == 93


def test_a_launcher_that_is_not_there_has_failed(node: Node) -> None:
    node.launch(["/no/such/launcher"])
    assert node.wait() == 1
    assert node.exit().exit_code == 1


def test_the_launcher_gets_the_environment_of_the_plan_and_no_input(node: Node) -> None:
    node.launch("say('said', os.environ['ADDED'] + repr(sys.stdin.read()))")
    assert node.wait() == 0
    assert node.hear("said") == "by the plan''"


def test_a_failure_while_the_rendezvous_port_answers_is_no_lost_host(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node.port = listener.getsockname()[1]
        node.launch("sys.exit(1)")
        assert node.wait() == 1
    assert not node.exit().rendezvous_lost


@pytest.mark.parametrize("code", [1, 75])
def test_a_failure_while_the_port_is_silent_and_code_75_are_a_lost_host(node: Node, code: int) -> None:
    node.launch(f"sys.exit({code})")
    assert node.wait() == code
    assert node.exit().rendezvous_lost


def test_success_is_no_lost_host_even_if_the_port_is_silent(node: Node) -> None:
    node.launch("sys.exit(0)")
    assert node.wait() == 0
    assert not node.exit().rendezvous_lost


# What stops it

STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = child("signal.signal(signal.SIGTERM, signal.SIG_IGN); say('rank', os.getpid()); wait()", RANK="0")
say("launcher", os.getpid())
wait()
"""


def everybody(node: Node) -> list[int]:
    return [int(node.hear(name)) for name in ("launcher", "rank")]


def assert_stopped(node: Node, pids: list[int]) -> None:
    node.wait()
    assert [pid for pid in pids if is_alive(pid)] == []
    written = node.exit()
    assert written.asked_to_stop
    assert not written.rendezvous_lost


def test_a_word_of_run_task_stops_everybody_even_who_left_the_session_and_ignores_term(node: Node) -> None:
    node.launch(STUBBORN)
    pids = everybody(node)
    node.say(b"stop\n")
    assert_stopped(node, pids)
    assert node.exit().exit_code == 137


def test_the_end_of_its_input_stops_it_because_run_task_is_gone(node: Node) -> None:
    process = node.launch(STUBBORN)
    pids = everybody(node)
    assert process.stdin is not None
    process.stdin.close()
    assert_stopped(node, pids)
    assert node.exit().exit_code == 137


def test_a_closed_generation_stops_it(node: Node) -> None:
    node.launch(STUBBORN)
    pids = everybody(node)
    node.board.close(Outcome.SUPERSEDED, exit_code=None, evidence=("a later generation",), leases={})
    assert_stopped(node, pids)
    assert node.exit().exit_code == 137


def test_a_term_stops_it(node: Node) -> None:
    process = node.launch(STUBBORN)
    pids = everybody(node)
    process.send_signal(signal.SIGTERM)
    assert_stopped(node, pids)


def test_a_lease_of_run_task_that_stands_still_stops_it_and_one_that_beats_does_not(node: Node) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=0.5, self_fence=2.5)
    node.slack_seconds = 1.0
    node.beat(0.2)
    node.launch(STUBBORN)
    pids = everybody(node)
    # Longer than the fence: it lives because of the lease.
    until = time.monotonic() + 4.5
    eventually(lambda: time.monotonic() > until, "time stands still")
    assert all(is_alive(pid) for pid in pids)
    node.hush()
    assert_stopped(node, pids)
    assert "lease of run-task" in (node.path / "wrapper.log").read_text()


def test_a_lease_that_stands_still_stops_nothing_while_run_task_excuses_it(node: Node) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=0.5, self_fence=1.0)
    node.beat(0.05)
    process = node.launch("say('up'); wait()")
    node.hear("up")
    node.hush()
    # A lease that beats so fast is fenced after self_fence and the slack, 1.5 s.
    for _ in range(16):
        node.say(b"excused 0.0\n")
        time.sleep(0.25)
        assert process.poll() is None, (node.path / "wrapper.log").read_text()
    assert node.wait() == 143
    assert "has not been seen to move" in (node.path / "wrapper.log").read_text()


@pytest.mark.parametrize("word", [b"excused 9.0\n", b"excused\n", b"excused soon\n"])
def test_an_excuse_that_is_old_or_says_no_age_buys_the_ranks_nothing(node: Node, word: bytes) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=0.5, self_fence=1.0)
    node.beat(0.05)
    node.launch("say('up'); wait()")
    node.hear("up")
    node.hush()
    for _ in range(4):
        node.say(word)
    assert node.wait() == 143
    assert "has not been seen to move" in (node.path / "wrapper.log").read_text()


def test_a_generation_that_was_closed_before_the_start_gets_no_launcher(node: Node) -> None:
    node.board.close(Outcome.LEASE_LOST, exit_code=None, evidence=("dead",), leases={})
    node.launch("say('launcher', os.getpid())")
    assert node.wait() == 143
    assert not (node.here / "launcher").exists()
    assert node.exit().asked_to_stop


def test_a_gentle_stop_lets_the_launcher_end_by_itself(node: Node) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=30.0, self_fence=300.0)
    node.launch(
        "signal.signal(signal.SIGTERM, lambda *_: say('termed'))\n"
        "say('launcher', os.getpid())\n"
        "while not (here / 'end').exists(): time.sleep(0.02)\n"
    )
    node.hear("launcher")
    node.say(b"stop gentle\n")
    eventually(lambda: "stopping the launcher" in (node.path / "wrapper.log").read_text(), "not stopping")
    (node.here / "end").touch()
    assert node.wait() == 0
    assert not (node.here / "termed").exists()
    assert node.exit().asked_to_stop


def test_a_term_comes_before_the_kill_so_that_a_rank_can_clean_up(node: Node) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=30.0, self_fence=300.0)
    node.launch(
        "rank = child('''signal.signal(signal.SIGTERM, lambda *_: (say(\"cleaned\"), os._exit(0)))\n"
        "say(\"rank\", os.getpid()); wait()''', RANK='0')\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(rank.wait()))\n"
        "say('launcher', os.getpid()); wait()"
    )
    pids = everybody(node)
    node.say(b"stop\n")
    assert_stopped(node, pids)
    assert (node.here / "cleaned").exists()
    assert node.exit().exit_code == 0


def test_a_node_that_was_frozen_ends_its_ranks_without_a_last_save(node: Node) -> None:
    node.thresholds = Thresholds(control_poll=0.05, drain=30.0, self_fence=2.5)
    node.slack_seconds = 1.0
    node.beat(0.2)
    process = node.launch(
        "rank = child('''signal.signal(signal.SIGTERM, lambda *_: say(\"saved\"))\n"
        "say(\"rank\", os.getpid()); wait()''', RANK='0')\n"
        "say('launcher', os.getpid()); wait()"
    )
    pids = everybody(node)
    frozen = [process.pid, *pids]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(psutil.Process(p).status() == psutil.STATUS_STOPPED for p in frozen), "not frozen")
    until = time.monotonic() + 4.5
    eventually(lambda: time.monotonic() > until, "time stands still")
    # As after a thaw: closed meanwhile, by the generation that trains now.
    node.board.close(Outcome.SUPERSEDED, exit_code=None, evidence=("a later generation",), leases={})
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    assert_stopped(node, pids)
    assert not (node.here / "saved").exists()


def test_a_freeze_between_two_looks_is_no_reason_for_a_last_save_either(node: Node) -> None:
    clock = FakeClock()
    wrapper = Wrapper(
        board=node.board,
        clock=clock,
        thresholds=Thresholds(control_poll=0.01),
        plan=LaunchPlan(argv=("true",), environment={}),
        node="n1",
        no_restart_exit_code=93,
        rendezvous=("127.0.0.1", 1),
        log_path=node.here / "launcher.log",
    )
    assert wrapper._next_event() is None
    clock.advance(20.0)
    assert wrapper._next_event() is None
    # Frozen not while it waits but while it looks for orphans; the generation was closed meanwhile.
    clock.advance(26.0)
    wrapper._events.put(Event(kind="stop", reason="closed as superseded"))
    event = wrapper._next_event()
    assert event is not None
    assert event.kind == "kill"


def test_the_host_closes_the_generation_when_run_task_was_killed(node: Node) -> None:
    run_task = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        # The lease carries the pid of this stand-in.
        stand_in = Board(
            node.directory,
            TaskIdentity(
                array_job_id=7,
                array_task_id=0,
                restart_count=0,
                host="n1",
                nodes=("n1",),
                boot_id=read_boot_id(),
                pid=run_task.pid,
                pid_started_at=read_process_start(run_task.pid),
            ),
            SystemClock(),
        )
        stand_in.write_lease(1, 5.0, "running")
        node.is_host = True
        node.launch(STUBBORN)
        pids = everybody(node)
        assert not node.directory.closed.exists()
    finally:
        run_task.kill()
        run_task.wait(PATIENCE_SECONDS)
    assert_stopped(node, pids)
    assert read(node.directory.closed, Closed).outcome is Outcome.FAILED


# Nobody is left


def test_ranks_whose_launcher_has_died_are_gone_afterwards(node: Node) -> None:
    node.launch(
        "child('signal.signal(signal.SIGTERM, signal.SIG_IGN); say(\"rank\", os.getpid()); wait()', RANK='0')\n"
        "while not (here / 'rank').exists(): time.sleep(0.02)\n"
        "os.kill(os.getpid(), 9)"
    )
    rank = int(node.hear("rank"))
    assert node.wait() == 137
    assert not is_alive(rank)
    assert not node.exit().asked_to_stop


def test_a_stopped_rank_is_gone_afterwards(node: Node) -> None:
    node.launch(STUBBORN)
    pids = everybody(node)
    os.kill(pids[1], signal.SIGSTOP)
    eventually(lambda: psutil.Process(pids[1]).status() == psutil.STATUS_STOPPED, "not stopped")
    node.say(b"stop\n")
    assert_stopped(node, pids)


def test_the_dead_of_earlier_restarts_do_not_pile_up(node: Node) -> None:
    process = node.launch(
        "for i in range(5):\n"
        '    child(\'subprocess.Popen([sys.executable, "-c", ""])\').wait()\n'
        "say('launcher', os.getpid()); wait()"
    )
    node.hear("launcher")
    launcher = int((node.here / "launcher").read_text())
    wrapper = psutil.Process(process.pid)
    eventually(lambda: [c.pid for c in wrapper.children()] == [launcher], "zombies stay")


# The time limit


def test_the_save_signal_reaches_only_ranks_that_have_a_handler(node: Node) -> None:
    node.launch(
        "handler = 'signal.signal(signal.SIGUSR1, lambda *_: say(f\"saved.{os.environ[\\'RANK\\']}\"))\\n'\n"
        "ready = 'say(f\"rank.{os.environ[\\'RANK\\']}\", os.getpid()); wait()'\n"
        "child(handler + ready, RANK='0')\n"
        "child(ready, RANK='1')\n"
        # A shell between the launcher and its rank; RANK is in its environment, a handler is not.
        "inner = PRELUDE + handler + ready\n"
        "subprocess.Popen(['bash', '-c', 'python=$1; \"$python\" -c \"$2\"; exit $?', 'bash', sys.executable, inner],\n"
        "                 env={**os.environ, 'RANK': '2'})\n"
        # What a rank forks has its handlers too.
        'fork = \'if os.fork() == 0:\\n    os.environ["RANK"] = "3.child"\\n\'\n'
        "child(handler + fork + ready, RANK='3')\n"
        "say('launcher', os.getpid()); wait()"
    )
    pids = [int(node.hear(name)) for name in ("launcher", "rank.0", "rank.1", "rank.2", "rank.3", "rank.3.child")]
    node.say(b"save\n")
    for rank in ("0", "2", "3"):
        node.hear(f"saved.{rank}")
    assert all(is_alive(pid) for pid in pids)
    assert not (node.here / "saved.3.child").exists()
    node.say(b"stop\n")
    assert_stopped(node, pids)


def test_a_warning_of_slurm_to_the_whole_step_kills_neither_wrapper_nor_ranks(node: Node) -> None:
    process = node.launch("say('launcher', os.getpid()); wait()")
    launcher = int(node.hear("launcher"))
    process.send_signal(signal.SIGUSR1)
    node.say(b"save\n")
    eventually(lambda: "asking ranks to save" in (node.path / "wrapper.log").read_text(), "the word was not heard")
    assert process.poll() is None
    assert is_alive(launcher)
    node.say(b"stop\n")
    assert_stopped(node, [launcher])
