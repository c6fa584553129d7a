"""`nvrx-chain wait`: until a chain has ended, by its files, and by the queue only as often as a controller can bear.

Files wake and tell everything that is in them; the queue tells a chain that ran dry, and that the tasks have left.
Many may wait at once, so each reads the queue about once a minute, never more than twice, at times of its own.
Touches: the run directory (reads), Slurm (squeue).
"""

from __future__ import annotations

import enum
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.errors import ExitCode, RecordError, Unobserved
from nvrx_chain.ops.chain import OpenChain, find_other_cluster, read_chain_queue
from nvrx_chain.records.control import ChainOutcome, Lease
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.records.progress import read_iteration
from nvrx_chain.slurm.chain_queue import ChainQueue
from nvrx_chain.slurm.client import SlurmClient

FILE_POLL_SECONDS = 5.0
BREATH_SECONDS = 1.0
"""Between two looks at the files at least: a busy directory would wake them without end."""
QUEUE_SECONDS = 60.0
CALLS_PER_MINUTE = 2
DRY_AGAIN_SECONDS = 30.0
"""Between the two readings that must both show nothing."""
FIRST_SIGHT_SECONDS = 8.0
SECOND_SIGHT_SECONDS = 15.0
"""After the verdict: the last tasks clear the queue, and leave one after the other. A look that comes too early would
cost the minute until the next one."""
LEAVING_SECONDS = 120.0
"""For so long the tasks of a chain that has its verdict are waited for."""


class WaitEnd(str, enum.Enum):
    """Why the waiting ended."""

    COMPLETED = "completed"
    NO_RESTART = "no_restart"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"
    HELD = "held"
    TIMED_OUT = "timed_out"
    REPLACED = "replaced"
    """The directory holds another chain now, and the end of this one is not on record."""


EXIT_CODES: dict[WaitEnd, ExitCode] = {
    WaitEnd.COMPLETED: ExitCode.DONE,
    WaitEnd.NO_RESTART: ExitCode.NO_RESTART,
    WaitEnd.CANCELLED: ExitCode.CANCELLED,
    WaitEnd.EXHAUSTED: ExitCode.FAILED,
    WaitEnd.HELD: ExitCode.HELD,
    WaitEnd.TIMED_OUT: ExitCode.TIMED_OUT,
    WaitEnd.REPLACED: ExitCode.FAILED,
}


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the waiting ended. `live_jobs`: array jobs that had a live task when it did, None when not known."""

    schema: int = 1
    chain_id: str
    name: str
    run_directory: str
    end: WaitEnd
    exit_code: int
    why: str
    verdict: ChainOutcome | None
    live_jobs: tuple[int, ...] | None
    waited_seconds: float


@dataclass(slots=True, kw_only=True)
class QueueTurns:
    """When the queue may be read: about once a minute with jitter, sooner on request, twice a minute at most."""

    clock: Clock
    jitter: Callable[[], float] = random.random
    _calls: deque[float] = field(default_factory=deque)
    _due: float = 0.0

    def is_due(self, *, hurry: bool) -> bool:
        now = self.clock.monotonic()
        while self._calls and now - self._calls[0] >= 60.0:
            self._calls.popleft()
        return len(self._calls) < CALLS_PER_MINUTE and (hurry or now >= self._due)

    def took(self) -> None:
        """Slurm was asked something just now."""
        self._calls.append(self.clock.monotonic())

    def took_queue(self) -> None:
        """The queue was read just now."""
        self.took()
        self._due = self.clock.monotonic() + QUEUE_SECONDS * (1.0 + 0.5 * self.jitter())


@dataclass(slots=True, kw_only=True)
class Waiter:
    """Waits for the end of one chain. `show` gets a line about what it does now; `wake` is set when a file changes."""

    chain: OpenChain
    client: SlurmClient
    clock: Clock
    show: Callable[[str], None]
    wake: threading.Event
    until_held: bool = False
    timeout_seconds: float | None = None
    turns: QueueTurns
    _queue: ChainQueue | Unobserved | None = None
    _read_at: float | None = None
    _dry_since: float | None = None
    _verdict_at: float | None = None
    _other_cluster: str | None = None
    _looked: bool = False

    def run(self) -> WaitReport:
        """Wait. Without a time-out it has no deadline: it ends with the chain, or when somebody interrupts it."""
        began = self.clock.monotonic()
        while True:
            end = self._look()
            self._looked = True
            waited = self.clock.monotonic() - began
            if end is None and self.timeout_seconds is not None and waited >= self.timeout_seconds:
                end = WaitEnd.TIMED_OUT, f"not ended within {self.timeout_seconds:g} s"
            if end is not None:
                return self._report(*end, waited)
            self.show(self._describe())
            self._pause(waited)

    def _pause(self, waited: float) -> None:
        left = FILE_POLL_SECONDS if self.timeout_seconds is None else max(0.0, self.timeout_seconds - waited)
        self.clock.wait(threading.Event(), min(BREATH_SECONDS, left))
        self.clock.wait(self.wake, min(FILE_POLL_SECONDS - BREATH_SECONDS, max(0.0, left - BREATH_SECONDS)))
        self.wake.clear()

    def _look(self) -> tuple[WaitEnd, str] | None:
        verdict = self._verdict()
        if verdict is not None:
            return self._after(verdict)
        replaced = self._replaced()
        if replaced is not None:
            return replaced
        if self.until_held:
            hold = self.chain.files.hold()
            if hold is not None and hold.released_at is None:
                return WaitEnd.HELD, f"by {hold.by}: {hold.why}"
        return self._ran_dry()

    def _verdict(self) -> ChainOutcome | None:
        outcome = self.chain.files.look_for_outcome()
        return None if isinstance(outcome, Unobserved) else outcome

    def _after(self, verdict: ChainOutcome) -> tuple[WaitEnd, str] | None:
        """The end of a chain with a verdict, once its tasks have left, or had the time to."""
        now, is_news = self.clock.monotonic(), self._looked
        if self._verdict_at is None:
            self._verdict_at = now
        read_after = self._read_at is not None and self._read_at >= self._verdict_at
        since = now - (self._read_at if read_after and self._read_at is not None else self._verdict_at)
        wanted = SECOND_SIGHT_SECONDS if read_after else FIRST_SIGHT_SECONDS
        if self._read_queue(hurry=since >= wanted or not is_news):
            read_after = True
        gone = read_after and isinstance(self._queue, ChainQueue) and not self._queue.live_jobs
        if gone or now - self._verdict_at >= LEAVING_SECONDS or self._other_cluster is not None:
            return WaitEnd(verdict.verdict.value), f"by {verdict.by}: {verdict.why}"
        return None

    def _replaced(self) -> tuple[WaitEnd, str] | None:
        """What became of the chain when a resume has put another one in its place."""
        try:
            now = self.chain.files.manifest().chain_id
        except RecordError:
            # Moved away this moment, or a file system that does not answer: it is looked at again.
            return None
        if now == self.chain.manifest.chain_id:
            return None
        history = self.chain.directory.history
        for path in sorted(history.glob(f"*/{self.chain.directory.outcome.name}")):
            outcome = read_record(path, ChainOutcome, owner_uid=self.chain.manifest.uid)
            if isinstance(outcome, ChainOutcome) and outcome.chain_id == self.chain.manifest.chain_id:
                return WaitEnd(outcome.verdict.value), f"by {outcome.by}: {outcome.why}"
        return WaitEnd.REPLACED, f"the directory now holds chain {now}"

    def _ran_dry(self) -> tuple[WaitEnd, str] | None:
        """The end of a chain of which two readings show nothing, and that has no verdict after the second."""
        now = self.clock.monotonic()
        hurry = self._dry_since is not None and now - self._dry_since >= DRY_AGAIN_SECONDS
        if not self._read_queue(hurry=hurry):
            return None
        if not self._shows_nothing():
            self._dry_since = None
            return None
        if self._dry_since is None:
            # Only an empty queue can be that of another cluster.
            self._other_cluster = find_other_cluster(self.chain, self.client)
            self.turns.took()
            self._dry_since = now
            return None
        if now - self._dry_since < DRY_AGAIN_SECONDS or self._verdict() is not None:
            return None
        ending = self.chain.files.ending()
        if ending is not None:
            return WaitEnd.CANCELLED, f"by {ending.by}: {ending.why}"
        return WaitEnd.EXHAUSTED, "nothing of it is in the queue any more, and it has no verdict"

    def _read_queue(self, *, hurry: bool) -> bool:
        """Read the queue if it is time to. True when a reading was made, whatever it shows."""
        if self._other_cluster is not None or not self.turns.is_due(hurry=hurry):
            return False
        self._queue = read_chain_queue(self.chain, self.client)
        self.turns.took_queue()
        self._read_at = self.clock.monotonic()
        return True

    def _shows_nothing(self) -> bool:
        """Whether the last reading is sure that no job of the chain is left."""
        queue = self._queue
        if not isinstance(queue, ChainQueue) or queue.live_jobs or queue.doubtful or queue.strays:
            return False
        # A submission without an id may be in the queue, under an id that nobody knows.
        return bool(self.chain.files.generations()) and not self.chain.files.open_intents()

    def _describe(self) -> str:
        """What the chain does now, for people."""
        name = self.chain.manifest.job_name
        if self._verdict_at is not None:
            return f"{name}: it has its verdict, its tasks are leaving"
        iteration = read_iteration(Path(self.chain.manifest.checkpoint_iteration_file))
        at = f", iteration {iteration}" if isinstance(iteration, int) else ""
        if self._other_cluster is not None:
            return f"{name}: {self._other_cluster}, so only its files tell{at}"
        if isinstance(self._queue, Unobserved):
            return f"{name}: Slurm could not be read: {self._queue.reason}{at}"
        if self._queue is None or not self._queue.live_jobs:
            return f"{name}: nothing in the queue{at}" if self._queue is not None else f"{name}{at}"
        return f"{name}: {self._describe_jobs(self._queue)}{at}"

    def _describe_jobs(self, queue: ChainQueue) -> str:
        known = {one.array_job_id: one.sequence for one in self.chain.files.generations()}
        job = queue.live_jobs[0]
        lease = read_record(self.chain.directory.generation(job).lease(0), Lease, owner_uid=self.chain.manifest.uid)
        waits = all(task.state.is_pending for task in queue.alive(job))
        phase = lease.phase if isinstance(lease, Lease) and not waits else ("queued" if waits else "running")
        return f"generation {known.get(job, '?')} of {max(known.values(), default=0)} ({job}) {phase}"

    def _report(self, end: WaitEnd, why: str, waited: float) -> WaitReport:
        queue = self._queue
        return WaitReport(
            chain_id=self.chain.manifest.chain_id,
            name=self.chain.manifest.job_name,
            run_directory=str(self.chain.directory.path),
            end=end,
            exit_code=int(EXIT_CODES[end]),
            why=why,
            verdict=self._verdict(),
            live_jobs=queue.live_jobs if isinstance(queue, ChainQueue) else None,
            waited_seconds=round(waited, 1),
        )


def render_wait(report: WaitReport) -> str:
    """The end in one line, and what has not left yet in another."""
    line = f"{report.name} (chain {report.chain_id}): {report.end.value.replace('_', ' ')}, {report.why}"
    has_ended = report.end.value in {verdict.value for verdict in Verdict}
    if has_ended and report.live_jobs:
        line += f"\nstill in the queue: {' '.join(str(job) for job in report.live_jobs)}"
    return line
