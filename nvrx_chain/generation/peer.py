"""Every array task but 0: gate, launch, watch whether task 0 lives, close the generation when it is proven dead, leave.

Closing asks everybody to leave and needs no proof of death; cancelling takes, and does. Touches: control/, Slurm.
"""

from __future__ import annotations

import logging

from nvrx_chain.errors import ExitCode, NvrxError, Unobserved
from nvrx_chain.generation import closing
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.closing import GenerationEnd
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain_notice import DrainNotice
from nvrx_chain.generation.gate import Gate, GateAnswer
from nvrx_chain.generation.hooks import Hook, switched_off
from nvrx_chain.generation.inquiry import HostQuestion
from nvrx_chain.generation.session import LOOP_SECONDS, Session, SessionEnd, StopCause, StopOrder
from nvrx_chain.generation.silence import HostSilence, out_of_reach
from nvrx_chain.generation.stuck import StuckWatch
from nvrx_chain.generation.takeover import clear_generation
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import Life, lease_is_stale
from nvrx_chain.records.manifest import OnDrain
from nvrx_chain.records.outcome import Outcome

log = logging.getLogger(__name__)

_CLOSES = {
    StopCause.HOST_DEAD: Outcome.LEASE_LOST,
    StopCause.HOST_SILENT: Outcome.RENDEZVOUS_LOST,
    StopCause.STUCK: Outcome.STUCK,
}
"""Why a peer stops its launcher and closes the generation with it."""

OWN_FAILURE_SECONDS = 10.0
"""How long a peer whose own launcher failed looks whether the generation ends with it, before it frees its slot."""


class Peer:
    """One life of a peer. `run` returns the exit code of run-task."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._fencing = not switched_off(Hook.NO_FENCE)
        self._question = HostQuestion(context)
        self._stuck = StuckWatch(context)
        self._drain = DrainNotice(context)
        self._silence = HostSilence(context)
        self._closing: Background[GenerationEnd] = Background(context.spawn, "closing")

    def run(self) -> ExitCode:
        """Gate, session, leave."""
        if self._context.identity.restart_count > 0:
            # Nothing is said about the ranks of the first start: its node may live on, cut off.
            log.error("refusing to run: Slurm restarted this task in spite of --no-requeue")
            return ExitCode.REFUSED
        gate = Gate(self._context, self._drain, self._silence).wait()
        if gate.answer is GateAnswer.HOST_DEAD and self._fencing:
            return self._close(Outcome.LEASE_LOST, gate.why, ranks_gone=True)
        if gate.answer is not GateAnswer.GO:
            return self._leave_gate(gate.answer)
        session = Session(self._context, self._tick, self._close_early).run()
        return self._after(session)

    def _leave_gate(self, answer: GateAnswer) -> ExitCode:
        self._say_left(f"left at the gate: {answer.value}")
        if answer is GateAnswer.TERMINATED:
            return ExitCode.TERMINATED
        snapshot = self._context.watcher.latest()
        if snapshot.closed is not None:
            return self._follow(snapshot)
        return ExitCode.FAILED if answer is GateAnswer.TIMED_OUT else ExitCode.DONE

    def _tick(self, snapshot: Snapshot) -> StopOrder | None:
        """While the launcher runs: a lease that stands still raises the question; the launchers may know more."""
        dead = self._host_is_dead(snapshot)
        if dead is not None:
            return StopOrder(cause=StopCause.HOST_DEAD, reason=dead)
        drained = self._drain.why_excluded(snapshot)
        if drained is not None and (
            self._context.manifest.on_drain is OnDrain.RESTART or self._own_launcher_failed(snapshot)
        ):
            return StopOrder(cause=StopCause.DRAINED, reason=drained)
        silent = self._out_of_reach(snapshot)
        if silent is not None:
            return StopOrder(cause=StopCause.HOST_SILENT, reason=silent)
        return self._stuck.tick(snapshot)

    def _out_of_reach(self, snapshot: Snapshot) -> str | None:
        self._silence.tick(snapshot)
        if not self._silence.may_close:
            return None
        context = self._context
        return out_of_reach(snapshot, context.manifest.shape.train_tasks, context.thresholds.lease_timeout)

    def _host_is_dead(self, snapshot: Snapshot) -> str | None:
        """Slurm's proof that task 0 is dead, None while there is none."""
        if not self._fencing:
            return None
        lease = snapshot.leases.get(0)
        if lease is not None:
            timeout = self._context.thresholds.lease_timeout
            if lease_is_stale(lease.still_seconds, lease.interval_seconds, timeout):
                self._question.raise_(f"the lease of task 0 stood still for {lease.still_seconds:.0f} s")
            elif lease.still_seconds < lease.interval_seconds and not self._own_launcher_lost(snapshot):
                self._question.drop()
        judgement = self._question.tick(snapshot)
        if judgement is not None and judgement.life is Life.DEAD:
            return judgement.evidence
        return None

    def _own_launcher_failed(self, snapshot: Snapshot) -> bool:
        """On any node: of a task of several only the first launcher leaves by itself for a drained node."""
        task = self._context.identity.array_task_id
        return any(e.array_task_id == task and e.exit_code != 0 for e in snapshot.launcher_exits)

    def _own_launcher_lost(self, snapshot: Snapshot) -> bool:
        return self._context.identity.array_task_id in snapshot.lost_hosts()

    def _after(self, session: SessionEnd) -> ExitCode:
        context = self._context
        log.info("session ended cause=%s code=%s reason=%s", session.cause.value, session.exit_code, session.reason)
        if session.cause in _CLOSES:
            return self._await_closing(session)
        drained = self._left_for_drain(session)
        if session.ranks_gone:
            self._say_left(drained or session.reason)
        if drained is not None:
            return ExitCode.DONE
        if session.cause is StopCause.TERMINATED:
            return ExitCode.TERMINATED
        if session.cause is StopCause.CLOSED:
            return self._follow(context.watcher.latest())
        if session.cause is StopCause.SELF_FENCED:
            return ExitCode.FAILED
        return self._await_verdict(session)

    def _left_for_drain(self, session: SessionEnd) -> str | None:
        """Why the ranks ended, when it was for a drained node: then a spare goes on, and nobody is asked about task 0.

        The end of the task frees its slot for a cold spare, and the node for whoever drained it.
        """
        if session.cause is StopCause.DRAINED:
            return session.reason
        snapshot = self._context.watcher.latest()
        if session.cause is not StopCause.LAUNCHER_ENDED or session.exit_code == 0 or snapshot.closed is not None:
            return None
        if self._own_launcher_lost(snapshot):
            # The host may be dead, and this task the only one left to prove it.
            return None
        return self._drain.why_excluded(snapshot)

    def _await_verdict(self, session: SessionEnd) -> ExitCode:
        """The own launcher has ended. Find out whether the generation ends with it, then leave."""
        context = self._context
        failed = session.exit_code != 0
        began = context.clock.monotonic()
        if failed:
            self._question.raise_(f"the own launcher ended with {session.exit_code}")
        while True:
            snapshot = context.watcher.latest()
            if snapshot.closed is not None:
                return self._follow(snapshot)
            if context.signals.terminated:
                return ExitCode.TERMINATED
            dead = self._host_is_dead(snapshot) if failed else None
            if dead is not None:
                return self._close(Outcome.LEASE_LOST, dead, ranks_gone=session.ranks_gone)
            if self._host_unreachable(snapshot):
                return self._close(
                    Outcome.RENDEZVOUS_LOST,
                    f"the launchers of tasks {snapshot.lost_hosts()} lost the rendezvous host, its lease goes on",
                    ranks_gone=session.ranks_gone,
                )
            silent = self._out_of_reach(snapshot) if failed else None
            if silent is not None:
                return self._close(Outcome.RENDEZVOUS_LOST, silent, ranks_gone=session.ranks_gone)
            if self._may_go(snapshot, failed, context.clock.monotonic() - began):
                break
            context.pause(LOOP_SECONDS)
        if not failed:
            return ExitCode.DONE
        return ExitCode.HOST_LOST if self._own_launcher_lost(snapshot) else ExitCode.FAILED

    def _host_unreachable(self, snapshot: Snapshot) -> bool:
        """At least half of the training tasks lost a rendezvous host whose lease goes on: it lives, out of reach."""
        lease = snapshot.leases.get(0)
        if lease is None or lease.still_seconds >= self._context.thresholds.lease_timeout / 2:
            return False
        lost = [task for task in snapshot.lost_hosts() if task != 0]
        return 2 * len(lost) >= self._context.manifest.shape.train_tasks and self._lost_long_enough()

    def _lost_long_enough(self) -> bool:
        # The host's own launcher may just have ended: its task 0 then closes the generation by itself.
        return self._question.raised_seconds() > self._context.thresholds.rendezvous_verdict / 3

    def _may_go(self, snapshot: Snapshot, failed: bool, waited: float) -> bool:
        thresholds = self._context.thresholds
        if not failed or self._own_launcher_lost(snapshot):
            return waited > thresholds.rendezvous_verdict and not self._question.is_asking
        lease = snapshot.leases.get(0)
        host_moves = lease is not None and lease.still_seconds <= 2 * lease.interval_seconds
        return waited > (OWN_FAILURE_SECONDS if host_moves else thresholds.rendezvous_verdict)

    def _close_early(self, order: StopOrder) -> None:
        """Close while the own ranks end, which takes the drain time where they hang: the others have to end theirs too.

        In the background, since neither the file system nor Slurm may keep this task from killing its ranks.
        """
        outcome = _CLOSES.get(order.cause)
        if outcome is not None:
            self._closing.start(lambda: self._settle(self._publish(outcome, order.reason)))

    def _await_closing(self, session: SessionEnd) -> ExitCode:
        """The own ranks have ended as far as they do; wait for what `_close_early` began."""
        context, outcome = self._context, _CLOSES[session.cause]
        if session.ranks_gone:
            self._say_left(f"closed as {outcome.value}")
        deadline = context.clock.monotonic() + 2 * context.thresholds.teardown
        while context.clock.monotonic() < deadline:
            done = self._closing.take()
            if done is not None:
                if isinstance(done.value, Unobserved):
                    return self._close(outcome, session.reason, ranks_gone=session.ranks_gone)
                return closing.EXIT_CODES[done.value.outcome]
            context.pause(LOOP_SECONDS)
        log.error("closing the generation has no end")
        return closing.EXIT_CODES[outcome]

    def _close(self, outcome: Outcome, why: str, *, ranks_gone: bool) -> ExitCode:
        """Close the generation, unless somebody was faster, and see to it that nothing of it blocks the next one."""
        end = self._publish(outcome, why)
        if ranks_gone:
            self._say_left(f"closed as {end.outcome.value}")
        return closing.EXIT_CODES[self._settle(end).outcome]

    def _publish(self, outcome: Outcome, why: str) -> GenerationEnd:
        return closing.close_now(self._context, GenerationEnd(outcome=outcome, evidence=(why,)))

    def _settle(self, end: GenerationEnd) -> GenerationEnd:
        context = self._context
        for step in (closing.complete_record, closing.decide_chain):
            try:
                step(context, end)
            except NvrxError as error:
                # The queue is cleared in any case: the next generation waits for it.
                log.error("on the way out: %s", error)
        # Many may have come to the same end at the same moment; one of them is first, the others wait for their turn.
        clear_generation(context, end.outcome, winner=end.closed_first)
        return end

    def _say_left(self, evidence: str) -> None:
        try:
            self._context.board.leave(evidence)
        except NvrxError as error:
            # The next generation then waits for our end in the queue, or for our lease to stand still.
            log.error("%s", error)

    def _follow(self, snapshot: Snapshot) -> ExitCode:
        """Somebody closed the generation. Leave; help to clear it when its task 0 cannot."""
        assert snapshot.closed is not None
        try:
            clear_generation(self._context, snapshot.closed.outcome, winner=False)
        except NvrxError as error:
            log.warning("helping to clear the generation failed: %s", error)
        return ExitCode.DONE
