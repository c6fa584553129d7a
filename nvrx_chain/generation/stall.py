"""A run directory that stalls: for this task alone, or for everybody? Task 0 finds out without the directory.

A task that cannot write its lease must stop its ranks, because somebody may see the lease stand still, prove the task
dead and start the next generation. While nobody can look, nobody can conclude anything. So a stall excuses a missing
lease as long as all of this is known afresh: Slurm shows task 0 running, so no later generation has begun; every other
task that Slurm shows running said over the link (see link) that it has not been able to read the directory for as long
as we cannot write it. From then on a later generation would have to see our lease stand still for longer than the
self-fence and the drain take, as from a lease. `is_shared` is pure. Touches: Slurm.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.link import LEAST_BLIND_SECONDS, HostLink, Report
from nvrx_chain.slurm.identity import ChainIdentity, parse_comment, verify_task
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_chain.slurm.states import JobState

log = logging.getLogger(__name__)

BEGIN_SECONDS = 7.0
"""A stall is looked at when it has lasted so long: a peer that is merely slow must not be taken for a blind one."""
AGAIN_SECONDS = 5.0
SLACK_SECONDS = 4.0
"""A peer reads every second or two, and the read that hangs may have begun that much after the stall."""
REPORT_SECONDS = 8.0
"""An older word than this says nothing about now."""


def shared_since(
    running: frozenset[int],
    reports: Mapping[int, Report],
    *,
    stalled_seconds: float,
    asked_at: float,
    now: float,
) -> float | None:
    """Since when (monotonic) the stall is known to be everybody's; None when it is not.

    `running` are the other tasks that run, asked for at `asked_at`; `stalled_seconds` is the least that our own stall
    has lasted at `now`.
    """
    known_at = asked_at
    for task in running:
        report = reports.get(task)
        if report is None or now - report.heard_at > REPORT_SECONDS:
            return None
        least = stalled_seconds - (now - report.heard_at) - SLACK_SECONDS
        if report.unread_seconds < max(least, LEAST_BLIND_SECONDS):
            return None
        known_at = min(known_at, report.heard_at)
    return known_at


class StallWatch:
    """While task 0's own lease is overdue: asks again and again, and excuses everybody when the stall is shared."""

    def __init__(self, context: TaskContext, link: HostLink) -> None:
        self._context = context
        self._link = link
        self._work: Background[float | None] = Background(context.spawn, "look at a stall")
        self._next_at = 0.0
        # Now, while the directory can be read.
        self._identity = context.chain_identity()

    def tick(self) -> None:
        """One look at the clock; the rest happens in the background."""
        done = self._work.take()
        if done is not None and isinstance(done.value, float):
            self._link.excuse(done.value)
        now = self._context.clock.monotonic()
        if self._work.busy or now < self._next_at or self._stalled_seconds() < BEGIN_SECONDS:
            return
        self._next_at = now + AGAIN_SECONDS
        self._work.start(self._look)

    def _stalled_seconds(self) -> float:
        """The least that the stall has lasted: the last lease may have been written an interval before it."""
        lease = self._context.lease
        return lease.seconds_since_written() - lease.interval_seconds

    def _look(self) -> float | None:
        context = self._context
        asked_at = context.clock.monotonic()
        reading = context.client.queue(context.manifest.user)
        if isinstance(reading, Unobserved):
            log.warning("the run directory stalls, and Slurm does not say whether only here: %s", reading.reason)
            return None
        own = context.identity
        left = frozenset(context.watcher.latest().left)
        running = running_beside(reading, self._identity, context.array_job_id, own.array_task_id, left=left)
        if running is None:
            return None
        known_at = shared_since(
            running,
            self._link.reports(),
            stalled_seconds=self._stalled_seconds(),
            asked_at=asked_at,
            now=context.clock.monotonic(),
        )
        word = "for every task" if known_at is not None else "here, and not for every task"
        log.warning("the run directory stalls %s seconds=%.0f", word, context.lease.seconds_since_written())
        return known_at


def running_beside(
    reading: QueueReading,
    identity: ChainIdentity,
    array_job_id: int,
    array_task_id: int,
    *,
    left: frozenset[int] = frozenset(),
) -> frozenset[int] | None:
    """The other tasks of this generation that hold nodes; None unless this task runs and no other generation does.

    Without those that are COMPLETING and had written that they left (`left`): nobody is there who could say anything,
    or conclude anything, and an epilog or a dead node may keep such a row for minutes.
    """
    own = reading.task(array_job_id, array_task_id)
    if own is None or own.state is not JobState.RUNNING or verify_task(own, identity) is not None:
        return None
    if any(_is_of_another_generation(row, identity, array_job_id) for row in reading.tasks):
        return None
    live = [row for row in reading.of(array_job_id) if not (row.state.is_terminal or row.state.is_pending)]
    live = [row for row in live if row.state is not JobState.COMPLETING or row.array_task_id not in left]
    return frozenset(row.array_task_id for row in live if row.array_task_id is not None) - {array_task_id}


def _is_of_another_generation(row: QueuedTask, identity: ChainIdentity, array_job_id: int) -> bool:
    """Whether a row is a task of this chain's other generations that has begun, by its comment alone.

    What was queued after the last look at the directory is not known by its id.
    """
    written = parse_comment(row.comment)
    ours = written is not None and written[0] == identity.chain_id and row.user == identity.user
    begun = not (row.state.is_terminal or row.state.is_pending or row.state is JobState.COMPLETING)
    return ours and begun and row.array_job_id != array_job_id
