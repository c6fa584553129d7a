"""The wrapper around the launcher on one node: starts it, stops it when the generation is over, writes how it ended.

It is told to stop by its standard input (srun hands run-task's pipe to every node; end of file means that run-task
is gone), and does not depend on it: it reads `closed.json` itself, and stops when run-task's lease has stood still for
the self-fence, so that a node cut off from its task's batch host cannot train on. The no-restart verdict is written
here, before the exit, because the code itself does not survive srun's kill-on-bad-exit; and a generation whose task 0
was killed is closed here at once. Touches: the processes below it, control/.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import ExitCode, NvrxError, Unobserved
from nvrx_chain.generation import process_tree
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.signals import become_subreaper
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.liveness import self_fence_seconds
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record, write_atomic, write_first
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

SAVE = b"save"
STOP = b"stop"
OBSERVER_SLACK_SECONDS = 5.0
KILL_SECONDS = 30.0
PROBE_SECONDS = 2.0

_KILLED_BY_SRUN = (137, 143)
"""What an srun with kill-on-bad-exit returns when one of its tasks exited with anything and the others were ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """Something the wrapper must react to. `gentle` leaves the launcher the drain time to end by itself first."""

    kind: str
    reason: str
    gentle: bool = False


class Wrapper:
    """Runs one launcher to its end. `run` returns the launcher's exit code (128+n for a signal)."""

    def __init__(
        self,
        *,
        board: Board,
        clock: Clock,
        thresholds: Thresholds,
        plan: LaunchPlan,
        node: str,
        no_restart_exit_code: int,
        rendezvous: tuple[str, int],
        log_path: Path,
        is_host: bool = False,
        step_exit_code: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._board = board
        self._clock = clock
        self._thresholds = thresholds
        self._plan = plan
        self._node = node
        self._no_restart_exit_code = no_restart_exit_code
        self._rendezvous = rendezvous
        self._log_path = log_path
        self._is_host = is_host
        self._step_exit_code = step_exit_code
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._finished = threading.Event()
        self._lease_moved_at = clock.monotonic()
        self._fence_seconds = thresholds.self_fence + OBSERVER_SLACK_SECONDS

    def run(self) -> int:
        """Start the launcher, react until it has ended, leave no process behind, write down how it went."""
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(_Event(kind="stop", reason="terminated by a signal")))
        # Slurm may send the time-limit warning to whole steps; it is run-task that forwards it to ranks with a handler.
        # A handler and not SIG_IGN, which the ranks would inherit.
        signal.signal(signal.SIGUSR1, lambda *_: None)
        started_at = format_time(self._clock.now())
        try:
            child = self._start()
        except OSError as error:
            log.error("launcher not started command=%s error=%s", self._plan.argv[0], error)
            self._record(started_at, int(ExitCode.FAILED), asked_to_stop=False)
            return int(ExitCode.FAILED)
        targets = [self._read_commands, self._watch_board, self._reaper(child)]
        if self._is_host:
            targets.append(self._watch_run_task)
        for target in targets:
            threading.Thread(target=target, daemon=True).start()
        asked_to_stop = self._react(child)
        self._finished.set()
        code = _shell_code(child.returncode)
        if code in _KILLED_BY_SRUN and not asked_to_stop and self._step_exit_code() == self._no_restart_exit_code:
            log.info("the launcher's own srun turned the no-restart code into %s", code)
            code = self._no_restart_exit_code
        self._sweep()
        self._record(started_at, code, asked_to_stop=asked_to_stop)
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._log_path, "ab", buffering=0) as output:
            # Its own session: a signal to the wrapper's group must not reach the ranks before the wrapper decides.
            return subprocess.Popen(
                self._plan.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._plan.environment},
                start_new_session=True,
            )

    def _reaper(self, child: subprocess.Popen[bytes]) -> Callable[[], None]:
        def wait() -> None:
            child.wait()
            self._events.put(_Event(kind="ended", reason="the launcher ended"))

        return wait

    def _react(self, child: subprocess.Popen[bytes]) -> bool:
        """Handle events until the launcher has ended. True when it was asked to stop."""
        while True:
            event = self._next_event()
            if event is None:
                continue
            if event.kind == "ended":
                return False
            if event.kind == "save":
                ranks = process_tree.ranks_that_catch(signal.SIGUSR1)
                log.info("asking ranks to save ranks=%s", [rank.pid for rank in ranks])
                process_tree.signal_all(ranks, signal.SIGUSR1)
                continue
            log.info("stopping the launcher reason=%s gentle=%s", event.reason, event.gentle)
            self._stop(child, gentle=event.gentle)
            return True

    def _next_event(self) -> _Event | None:
        """The next event, or the self-fence. The fence is timed here: the thread that reads the files can hang."""
        try:
            return self._events.get(timeout=self._thresholds.control_poll)
        except queue.Empty:
            still = self._clock.monotonic() - self._lease_moved_at
            if still <= self._fence_seconds:
                return None
            return _Event(kind="stop", reason=f"the lease of run-task has not been seen to move for {still:.0f} s")

    def _stop(self, child: subprocess.Popen[bytes], *, gentle: bool) -> None:
        drain = self._thresholds.drain
        if gentle and self._ended_within(child, drain):
            return
        process_tree.signal_all(process_tree.descendants(), signal.SIGTERM)
        if self._ended_within(child, drain / 2 if gentle else drain):
            return
        process_tree.kill_tree(KILL_SECONDS)
        child.wait()

    def _ended_within(self, child: subprocess.Popen[bytes], seconds: float) -> bool:
        deadline = self._clock.monotonic() + seconds
        while child.poll() is None:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return False
            try:
                # Any further word (a second TERM, an end of file) changes nothing: the stop is under way.
                event = self._events.get(timeout=left)
            except queue.Empty:
                return child.poll() is not None
            if event.kind == "ended":
                return True
        return True

    def _sweep(self) -> None:
        left = process_tree.kill_tree(KILL_SECONDS)
        if left:
            # A process in uninterruptible sleep: it cannot be shown to be gone, so this node must not say that it is.
            log.error("processes cannot be killed pids=%s", [process.pid for process in left])
            os._exit(int(ExitCode.FAILED))

    def _record(self, started_at: str, code: int, *, asked_to_stop: bool) -> None:
        if code == self._no_restart_exit_code:
            verdict = control.NoRestart(
                node=self._node,
                exit_code=code,
                cause=f"the launcher on {self._node} exited with {code}",
                written_at=format_time(self._clock.now()),
                **self._board.identity.stamp(),
            )
            write_first(self._board.directory.no_restart, encode_record(verdict))
        lost = code == ExitCode.HOST_LOST or (code != 0 and not asked_to_stop and not self._host_answers())
        record = control.LauncherExit(
            node=self._node,
            exit_code=code,
            asked_to_stop=asked_to_stop,
            rendezvous_lost=lost,
            started_at=started_at,
            ended_at=format_time(self._clock.now()),
            **self._board.identity.stamp(),
        )
        path = self._board.directory.launcher_exit(self._board.identity.array_task_id, self._node)
        write_atomic(path, encode_record(record))

    def _host_answers(self) -> bool:
        try:
            with socket.create_connection(self._rendezvous, timeout=PROBE_SECONDS):
                return True
        except OSError:
            return False

    def _read_commands(self) -> None:
        """Commands of run-task, one word a line, on standard input."""
        buffered = b""
        while True:
            chunk = os.read(sys.stdin.fileno(), 4096)
            if not chunk:
                self._events.put(_Event(kind="stop", reason="run-task is gone"))
                return
            *words, buffered = (buffered + chunk).split(b"\n")
            for word in words:
                if word == SAVE:
                    self._events.put(_Event(kind="save", reason="the time limit is near"))
                elif word.startswith(STOP):
                    gentle = word.endswith(b" gentle")
                    self._events.put(_Event(kind="stop", reason="run-task said stop", gentle=gentle))

    def _watch_run_task(self) -> None:
        """Close the generation of a task 0 whose run-task was killed, with its shell or without, before it could.

        Slurm ends what is left of a batch step as soon as its shell is dead, but this step lives on for KillWait.
        """
        lease = self._board.lease(self._board.identity.array_task_id)
        run_task = process_tree.open_process(lease.pid, lease.pid_started_at) if lease else None
        if run_task is None:
            # A site may give a step its own PID namespace; then the lease has to stand still first.
            log.info("run-task is not seen from here")
            return
        # No deadline: this thread lives as long as the launcher, and the kernel wakes it.
        select.select([run_task], [], [])
        self._events.put(_Event(kind="stop", reason="run-task is gone"))
        evidence = (f"run-task of task 0 is gone, says the launcher's wrapper on {self._node}",)
        try:
            self._board.close(Outcome.FAILED, exit_code=None, evidence=evidence, leases={})
        except NvrxError as error:
            # The peers find out by the lease that stands still.
            log.error("the generation could not be closed: %s", error)

    def _watch_board(self) -> None:
        """Read `closed.json` and run-task's lease at every poll."""
        task = self._board.identity.array_task_id
        counter = None
        while not self._clock.wait(self._finished, self._thresholds.control_poll):
            closed = self._board.closed()
            if closed is not None and not isinstance(closed, Unobserved):
                gentle = closed.outcome is Outcome.COMPLETED
                self._events.put(_Event(kind="stop", reason=f"closed as {closed.outcome.value}", gentle=gentle))
                return
            lease = self._board.lease(task)
            if lease is not None and lease.counter != counter:
                counter = lease.counter
                fence = self_fence_seconds(lease.interval_seconds, self._thresholds.self_fence)
                self._fence_seconds = fence + OBSERVER_SLACK_SECONDS
                self._lease_moved_at = self._clock.monotonic()


def _shell_code(returncode: int) -> int:
    """A code as the shell counts: 128+n for a signal. 221 becomes 1, since sacct of 22.05 and 24.11 shows it as 93."""
    code = 128 - returncode if returncode < 0 else returncode
    return int(ExitCode.FAILED) if code == 221 else code
