"""Array task 0: a training task and the rendezvous host. Its life is the generation's life.

Refuse, fence the predecessor, assemble, launch, watch over the peers, and on every way out publish `closed.json` first.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace
from pathlib import Path

from nvrx_chain.clock import format_time
from nvrx_chain.errors import ExitCode, NvrxError, Unobserved
from nvrx_chain.generation import brake, closing, refusal, rendezvous
from nvrx_chain.generation.assemble import Assembly
from nvrx_chain.generation.closing import GenerationEnd
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain_watch import DrainWatch
from nvrx_chain.generation.fence import POLL_SECONDS, Fence
from nvrx_chain.generation.finish import LauncherFacts, decide_ending
from nvrx_chain.generation.guard import PeerGuard
from nvrx_chain.generation.preemption import was_preempted
from nvrx_chain.generation.session import LOOP_SECONDS, Session, SessionEnd, StopCause, StopOrder
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.files import is_there
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.records.progress import read_iteration, recorded_iteration

log = logging.getLogger(__name__)

NEAR_WALL_SECONDS = 60.0


class TaskZero:
    """One life of task 0. `run` returns the exit code of run-task."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._started_at = format_time(context.clock.now())
        self._begun = context.clock.monotonic()
        self._iteration_at_start: int | Unobserved | None = None
        self._drain = DrainWatch(context)
        # Until something is known, an end of this process is a failure that nobody foresaw.
        self._end = GenerationEnd(outcome=Outcome.FAILED, evidence=("run-task ended unexpectedly",))

    def run(self) -> ExitCode:
        """Live, close, settle the queue."""
        try:
            self._end = self._live()
        except Exception as error:  # noqa: BLE001 - whatever it is, the peers must be told before it goes up
            log.error("run-task failed\n%s", traceback.format_exc())
            self._end = replace(self._end, evidence=(f"run-task failed: {type(error).__name__}: {error}",))
        return self._finish()

    def _live(self) -> GenerationEnd:
        end = refusal.find_refusal(self._context) or self._wait_while_held() or self._fence() or self._assemble()
        return end or self._train()

    # Before the launch

    def _wait_while_held(self) -> GenerationEnd | None:
        """A held chain whose generation started all the same waits for the operator, then leaves."""
        context = self._context
        hold = context.chain.hold()
        if hold is None or hold.released_at is not None:
            if not brake.brake_if_needed(context):
                return None
            hold = context.chain.hold()
        deadline = context.clock.monotonic() + context.thresholds.held_wait
        log.warning("the chain is held why=%s", hold.why if hold else "unknown")
        context.lease.phase = "held"
        while context.clock.monotonic() < deadline:
            hold = context.chain.hold()
            if hold is not None and hold.released_at is not None:
                log.info("released by=%s", hold.released_by)
                return None
            end = self._interruption()
            if end is not None:
                return end
            context.pause(POLL_SECONDS)
        return GenerationEnd(outcome=Outcome.HELD, evidence=(f"the chain is held: {hold.why if hold else ''}",))

    def _fence(self) -> GenerationEnd | None:
        """Wait until no rank of an earlier generation can live."""
        context = self._context
        fence = Fence(context)
        fence.close_earlier()
        deadline = context.clock.monotonic() + context.thresholds.fence_timeout
        said: tuple[str, ...] = ()
        context.lease.phase = "fencing"
        while True:
            blockers = fence.blockers()
            if not blockers:
                return None
            if tuple(text.partition(":")[0] for text in blockers) != tuple(text.partition(":")[0] for text in said):
                log.info("waiting for the predecessor: %s", "; ".join(blockers))
                said = blockers
            if context.clock.monotonic() > deadline:
                return refusal.refuse("an earlier generation may still have ranks: " + "; ".join(blockers))
            end = self._interruption()
            if end is not None:
                return end
            context.pause(POLL_SECONDS)

    def _assemble(self) -> GenerationEnd | None:
        context = self._context
        self._drain.clear_leftovers()
        rendezvous.publish(context, started=False, members=(), present=())
        assembly, guard = Assembly(context), PeerGuard(context, self._drain)
        while True:
            snapshot = context.watcher.latest()
            guard.tend(snapshot)
            if assembly.is_complete(snapshot):
                self._open(assembly.present(snapshot))
                return None
            if assembly.is_overdue():
                needed = context.manifest.shape.train_tasks
                text = f"{len(assembly.present(snapshot))} of {needed} tasks came within the assemble timeout"
                return GenerationEnd(outcome=Outcome.NOT_ASSEMBLED, evidence=(text,))
            end = self._interruption()
            if end is not None:
                return end
            assembly.report(snapshot)
            context.pause(LOOP_SECONDS)

    def _open(self, present: tuple[int, ...]) -> None:
        """Publish the start: everybody may join an elastic launcher, exactly T tasks one with fixed seats."""
        shape = self._context.manifest.shape
        members = (
            tuple(range(shape.total))
            if self._context.takes_hot_spares
            else rendezvous.choose_members(self._seatable(present), (), (0,), shape.train_tasks)
        )
        rendezvous.publish(self._context, started=True, members=members, present=present)

    def _seatable(self, present: tuple[int, ...]) -> tuple[int, ...]:
        """The tasks that may get a seat: without the drained ones, as long as there are enough others."""
        fit = tuple(task for task in present if task not in self._drain.excluded())
        return fit if len(fit) >= self._context.manifest.shape.train_tasks else present

    def _interruption(self) -> GenerationEnd | None:
        """What ends task 0 before it has launched anything."""
        context = self._context
        if context.signals.terminated:
            outcome = Outcome.FAILED if context.signals.parent_died else Outcome.TERMINATED
            return GenerationEnd(outcome=outcome, evidence=("terminated before the launch",), signalled=True)
        if context.signals.walltime_warned:
            return GenerationEnd(outcome=Outcome.WALLTIME, evidence=("the time limit came before the launch",))
        closed = context.watcher.latest().closed
        if closed is not None:
            return GenerationEnd(outcome=closed.outcome, evidence=closed.evidence)
        return None

    # Training

    def _train(self) -> GenerationEnd:
        context = self._context
        self._iteration_at_start = read_iteration(context.iteration_file)
        launched_at = format_time(context.clock.now())
        self._end = replace(
            self._end,
            launched_at=launched_at,
            iteration_at_start=recorded_iteration(self._iteration_at_start),
            # From here on ranks may live, until the session has seen them end.
            ranks_gone=False,
        )
        closing.write_record(context, self._end, self._started_at, ended=False)
        guard = PeerGuard(context, self._drain)
        session = Session(context, guard.tick, self._close_early).run()
        self._end = replace(self._end, ranks_gone=session.ranks_gone, run_seconds=session.run_seconds)
        return self._judge(session, launched_at)

    def _close_early(self, order: StopOrder) -> None:
        """After a TERM Slurm kills everything within KillWait: the peers are told before the ranks have ended."""
        context = self._context
        if order.cause not in (StopCause.TERMINATED, StopCause.LOST_SIGNAL):
            return
        ending = decide_ending(self._facts(order.cause, None), context.manifest.completion, None)
        closing.close_now(context, replace(self._end, outcome=ending.outcome, evidence=(ending.why, order.reason)))

    def _facts(self, cause: StopCause, exit_code: int | None) -> LauncherFacts:
        context = self._context
        near_wall, parent_died = self._near_wall(), context.signals.parent_died
        signalled = cause in (StopCause.TERMINATED, StopCause.STOPPED)
        return LauncherFacts(
            cause=cause,
            exit_code=exit_code,
            no_restart_said=context.board.no_restart() is not None,
            no_restart_exit_code=context.manifest.launcher.no_restart_exit_code,
            walltime_warned=context.signals.walltime_warned or context.board.walltime(),
            near_wall=near_wall,
            # Not after a killed shell: Slurm ends the rest of the batch step within milliseconds, and the closed file
            # must be there before.
            preempted=signalled and not (near_wall or parent_died) and was_preempted(context),
            parent_died=parent_died,
            iteration_at_start=self._iteration_at_start,
            iteration_at_end=read_iteration(context.iteration_file),
            done_file_exists=self._done_file_exists(),
        )

    def _judge(self, session: SessionEnd, launched_at: str) -> GenerationEnd:
        context = self._context
        facts = self._facts(session.cause, session.exit_code)
        ending = decide_ending(facts, context.manifest.completion, self._previous_record())
        return GenerationEnd(
            outcome=ending.outcome,
            evidence=(ending.why, session.reason),
            exit_code=session.exit_code,
            launched_at=launched_at,
            run_seconds=session.run_seconds,
            iteration_at_start=recorded_iteration(self._iteration_at_start),
            signalled=facts.cause is not StopCause.LAUNCHER_ENDED or facts.walltime_warned,
            near_wall=facts.near_wall,
            ranks_gone=session.ranks_gone,
        )

    def _near_wall(self) -> bool:
        limit = self._context.manifest.time_limit_seconds
        if limit is None:
            return False
        return self._context.clock.monotonic() - self._begun > limit - NEAR_WALL_SECONDS

    def _done_file_exists(self) -> bool:
        done = self._context.manifest.completion.done_file
        return done is not None and is_there(Path(done))

    def _previous_record(self) -> GenerationRecord | None:
        for job in self._context.chain.earlier_generations(self._context.array_job_id)[:1]:
            return self._context.chain.record_of(job)
        return None

    # The way out

    def _finish(self) -> ExitCode:
        context = self._context
        context.lease.phase = "closing"
        end = self._end
        refused = end.outcome is Outcome.REFUSED
        try:
            end = closing.close_now(context, end)
        except NvrxError as error:
            # A full or stalled file system. The peers then learn it from the lease, and Slurm from our end.
            log.error("the generation could not be closed: %s", error)
        for step in (closing.decide_chain, self._record, self._leave, closing.settle_queue):
            try:
                step(context, end)
            except NvrxError as error:
                # None of these may keep the ones after it from being tried: the queue is cleared in any case.
                log.error("on the way out: %s", error)
        if end.chain_is_over:
            return ExitCode.DONE
        # Also when the generation had been closed as something else before Slurm restarted its task 0.
        return ExitCode.REFUSED if refused else closing.EXIT_CODES[end.outcome]

    def _record(self, context: TaskContext, end: GenerationEnd) -> None:
        if end.launched_at is None and context.chain.record_of(context.array_job_id) is not None:
            # A restarted task 0 that refuses must not overwrite how its generation really went.
            return
        closing.write_record(context, end, self._started_at, ended=True)

    def _leave(self, context: TaskContext, end: GenerationEnd) -> None:
        if end.ranks_gone:
            context.board.leave(f"task 0 ended as {end.outcome.value}")
