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
import subprocess
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import ExitCode, NvrxError
from nvrx_chain.generation import process_tree
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.exit_report import ExitReport
from nvrx_chain.generation.signals import become_subreaper
from nvrx_chain.generation.wrapper_events import Commands, Event
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.liveness import self_fence_seconds
from nvrx_chain.records import control
from nvrx_chain.records.files import refresh_names
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

OBSERVER_SLACK_SECONDS = 5.0
KILL_SECONDS = 30.0
REAP_SECONDS = 5.0

_KILLED_BY_SRUN = (137, 143)
"""What an srun with kill-on-bad-exit returns when one of its tasks exited with anything and the others were ended."""


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
        self._no_restart_exit_code = no_restart_exit_code
        self._report = ExitReport(
            board=board, clock=clock, node=node, no_restart_exit_code=no_restart_exit_code, rendezvous=rendezvous
        )
        self._log_path = log_path
        self._is_host = is_host
        self._step_exit_code = step_exit_code
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._finished = threading.Event()
        self._lease_counter: int | None = None
        self._lease_moved_at = clock.monotonic()
        self._fence_seconds = thresholds.self_fence + OBSERVER_SLACK_SECONDS
        self._turned_at = clock.monotonic()

    def run(self) -> int:
        """Start the launcher, react until it has ended, leave no process behind, write down how it went."""
        become_subreaper()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(Event(kind="stop", reason="terminated by a signal")))
        # Slurm may send the time-limit warning to whole steps; it is run-task that forwards it to ranks with a handler.
        # A handler and not SIG_IGN, which the ranks would inherit.
        signal.signal(signal.SIGUSR1, lambda *_: None)
        started_at = format_time(self._clock.now())
        closed = self._closed_as()
        if closed is not None:
            # Closed while srun was starting us: the next generation must not wait for ranks that need not start.
            log.info("launcher not started, the generation was closed as %s", closed.value)
            self._report.write(started_at, int(ExitCode.TERMINATED), asked_to_stop=True)
            return int(ExitCode.TERMINATED)
        try:
            child = self._start()
        except OSError as error:
            log.error("launcher not started command=%s error=%s", self._plan.argv[0], error)
            self._report.write(started_at, int(ExitCode.FAILED), asked_to_stop=False)
            return int(ExitCode.FAILED)
        targets = [Commands(self._clock, self._events.put).read, self._watch_board, self._reaper(child)]
        if self._is_host:
            targets.append(self._watch_run_task)
        for target in targets:
            threading.Thread(target=target, daemon=True).start()
        asked_to_stop = self._react(child)
        self._finished.set()
        code = _shell_code(child.returncode)
        self._sweep()
        if code in _KILLED_BY_SRUN and not asked_to_stop and self._step_exit_code() == self._no_restart_exit_code:
            log.info("the launcher's own srun turned the no-restart code into %s", code)
            code = self._no_restart_exit_code
        self._report.write(started_at, code, asked_to_stop=asked_to_stop)
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
            self._events.put(Event(kind="ended", reason="the launcher ended"))

        return wait

    def _react(self, child: subprocess.Popen[bytes]) -> bool:
        """Handle events until the launcher has ended. True when it was asked to stop."""
        self._turned_at = self._clock.monotonic()
        while True:
            event = self._next_event()
            process_tree.reap_orphans(child.pid)
            if event is None:
                continue
            if event.kind == "ended":
                return False
            if event.kind == "excused":
                # The run directory stalls for everybody, says run-task, which would itself stop us otherwise.
                self._lease_moved_at = max(self._lease_moved_at, event.at)
                continue
            if event.kind == "save":
                ranks = process_tree.ranks_that_catch(signal.SIGUSR1)
                log.info("asking ranks to save ranks=%s", [rank.pid for rank in ranks])
                process_tree.signal_all(ranks, signal.SIGUSR1)
                continue
            log.info("stopping the launcher reason=%s gentle=%s", event.reason, event.gentle)
            if event.kind == "stop":
                self._end_by_request(child, gentle=event.gentle)
            self._end_by_force(child)
            return True

    def _next_event(self) -> Event | None:
        """The next event, or the self-fence. The fence is timed here: the thread that reads the files can hang."""
        try:
            event = self._events.get(timeout=self._thresholds.control_poll)
        except queue.Empty:
            event = None
        now = self._clock.monotonic()
        # From turn to turn, not only while waiting: a process can as well be frozen while it looks for orphans.
        away, self._turned_at = now - self._turned_at, now
        if away > self._fence_seconds:
            # Frozen and thawed: the next generation may train already, and its checkpoints bear no last save of ours.
            return Event(kind="kill", reason=f"this process did not run for {away:.0f} s")
        if event is None and now - self._lease_moved_at > self._fence_seconds:
            still = now - self._lease_moved_at
            return Event(kind="stop", reason=f"the lease of run-task has not been seen to move for {still:.0f} s")
        return event

    def _end_by_request(self, child: subprocess.Popen[bytes], *, gentle: bool) -> None:
        """Give the launcher the drain time to end by itself (gentle), then TERM everybody and wait again."""
        drain = self._thresholds.drain
        if gentle and self._ended_within(child, drain):
            return
        process_tree.signal_all(process_tree.descendants(), signal.SIGTERM)
        self._ended_within(child, drain / 2 if gentle else drain)

    def _end_by_force(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            process_tree.kill_tree(self._clock, KILL_SECONDS)
        if not self._ended_within(child, REAP_SECONDS):
            self._give_up([child.pid])

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
        left = process_tree.kill_tree(self._clock, KILL_SECONDS)
        if left:
            self._give_up([process.pid for process in left])

    def _give_up(self, pids: list[int]) -> NoReturn:
        """A process in uninterruptible sleep cannot be shown to be gone, so this node must not say that it is."""
        log.error("processes cannot be killed pids=%s", pids)
        os._exit(int(ExitCode.FAILED))

    def _watch_run_task(self) -> None:
        """Close the generation of a task 0 whose run-task was killed, with its shell or without, before it could.

        Slurm ends what is left of a batch step as soon as its shell is dead, but this step lives on for KillWait.
        """
        identity = self._board.identity
        lease = self._board.lease(identity.array_task_id)
        is_here = lease is not None and lease.boot_id == identity.boot_id
        run_task = process_tree.open_process(lease.pid, lease.pid_started_at) if lease and is_here else None
        if run_task is None:
            # A site may give a step its own PID namespace; then the lease has to stand still first.
            log.info("run-task is not seen from here")
            return
        # No deadline: this thread lives as long as the launcher, and the kernel wakes it.
        ended = select.poll()
        ended.register(run_task, select.POLLIN)
        ended.poll()
        self._events.put(Event(kind="stop", reason="run-task is gone"))
        evidence = (f"run-task of task 0 is gone, says the launcher's wrapper on {self._report.node}",)
        try:
            self._board.close(Outcome.FAILED, exit_code=None, evidence=evidence, leases={})
        except NvrxError as error:
            # The peers find out by the lease that stands still.
            log.error("the generation could not be closed: %s", error)

    def _watch_board(self) -> None:
        """Read `closed.json` and run-task's lease at every poll."""
        while not self._clock.wait(self._finished, self._thresholds.control_poll):
            try:
                closed = self._closed_as()
                self._look_at_lease()
            except Exception:  # noqa: BLE001 - without this thread the fence would end a training that is well
                log.error("reading the board failed, it is read again\n%s", traceback.format_exc())
                continue
            if closed is not None:
                gentle = closed is Outcome.COMPLETED
                self._events.put(Event(kind="stop", reason=f"closed as {closed.value}", gentle=gentle))
                return

    def _closed_as(self) -> Outcome | None:
        refresh_names(self._board.directory.control)
        closed = self._board.closed()
        return closed.outcome if isinstance(closed, control.Closed) else None

    def _look_at_lease(self) -> None:
        identity = self._board.identity
        # Before the read: one that hung may bring a counter that stood still all the while.
        began = self._clock.monotonic()
        lease = self._board.lease(identity.array_task_id)
        # A later start of this task writes the same file; its run-task is not ours.
        if not isinstance(lease, control.Lease) or lease.restart_count != identity.restart_count:
            return
        if lease.counter != self._lease_counter:
            self._lease_counter = lease.counter
            fence = self_fence_seconds(lease.interval_seconds, self._thresholds.self_fence)
            self._fence_seconds = fence + OBSERVER_SLACK_SECONDS
            self._lease_moved_at = max(self._lease_moved_at, began)


def _shell_code(returncode: int) -> int:
    """A code as the shell counts: 128+n for a signal. 221 becomes 1, since sacct of 22.05 and 24.11 shows it as 93."""
    code = 128 - returncode if returncode < 0 else returncode
    return int(ExitCode.FAILED) if code == 221 else code
