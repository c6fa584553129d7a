"""One pass's look at everything: files first, then Slurm, folded into one `Snapshot` per chain. Touches nothing itself.

The order matters while a chain moves: the ids on record are read before the queue, or a new job would look like
somebody else's. A source that fails leaves the others as they are. Longer than other modules because the order is its
subject, and every function below is one step of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec.structs import replace

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.model import AccountedTask, Node, QueueReading
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_watch import memory as names
from nvrx_watch.layout import Layout
from nvrx_watch.memory import Memory, Value, forget, observe
from nvrx_watch.model import Generation, LogActivity, Queue, Snapshot, Source, SourceReport, Subject, Unavailable
from nvrx_watch.queue_sort import sort_queue
from nvrx_watch.reading_model import RunReading
from nvrx_watch.slurm_facts import MOST_CALLS, Accounting, SlurmFacts, unavailable_or_unobserved

ACCOUNTED_GENERATIONS = 8
"""Of how many generations, the newest that have begun, Slurm's accounting is read."""

REMEMBERED_GENERATIONS = 12
"""Of how many generations the memory of earlier passes is kept."""

LEAST_FILE_SECONDS = 0.5
"""What a chain gets when the others have used up the time for files. A mount that is known to hang takes none of it."""

NO_SCHEDULER = "no scheduler is asked (--platform none)"


class Reader(Protocol):
    """Reads the files of a chain; reading/ has the one that does it in a child process."""

    def read(
        self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        """All files of the chain, those of `adopted` (array job id, sequence) too. Never raises for what is on disk."""
        ...


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A chain to look at: who it is, where its files lie, and what earlier passes remember of it."""

    subject: Subject
    layout: Layout
    asked_job_id: int | None
    memory: Memory


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """A target with its files and what of the queue is its own."""

    target: Target
    subject: Subject
    reading: RunReading | Unobserved
    generations: tuple[Generation, ...]
    queue: Queue | Unobserved


class Gatherer:
    """Takes snapshots. `facts` None: no scheduler is asked. `watcher_uid` decides what an empty queue can mean.

    `file_deadline_seconds` is for the files of one chain, `file_budget_seconds` for those of all chains of a pass.
    """

    def __init__(
        self,
        *,
        reader: Reader,
        facts: SlurmFacts | None,
        clock: Clock,
        watcher_uid: int,
        file_deadline_seconds: float = 20.0,
        file_budget_seconds: float = 60.0,
    ) -> None:
        self._reader = reader
        self._facts = facts
        self._clock = clock
        self._watcher_uid = watcher_uid
        self._deadline = file_deadline_seconds
        self._budget = file_budget_seconds
        self._late: frozenset[Layout] = frozenset()
        self._adopted: dict[Layout, tuple[tuple[int, int], ...]] = {}

    def gather(self, targets: Sequence[Target], queue: QueueReading | Unobserved | None = None) -> tuple[Snapshot, ...]:
        """One snapshot per target, in their order. `queue` is a reading that the caller has made in this pass."""
        until = self._clock.monotonic() + self._budget
        files = self._read_files(targets, until)
        if queue is None:
            queue = self._read_queue(targets)
        reads = [self._sort(target, reading, queue) for target, reading in zip(targets, files, strict=True)]
        reads = [self._read_adopted(read, queue, until) for read in reads]
        self._adopted = {one.layout: self._adopted[one.layout] for one in targets if one.layout in self._adopted}
        accounting = self._read_accounting(reads)
        nodes = self._read_nodes(reads)
        now = self._clock.now()
        return tuple(_snapshot(read, accounting, nodes, now) for read in reads)

    def _read_files(self, targets: Sequence[Target], until: float) -> list[RunReading | Unobserved]:
        found: dict[int, RunReading | Unobserved] = {}
        # Those that gave no answer last time come last: a dead mount must not take the time of the others.
        for at in sorted(range(len(targets)), key=lambda at: targets[at].layout in self._late):
            found[at] = self._read_one(targets[at].layout, until)
        self._late = frozenset(targets[at].layout for at, one in found.items() if isinstance(one, Unobserved))
        return [found[at] for at in range(len(targets))]

    def _read_one(self, layout: Layout, until: float) -> RunReading | Unobserved:
        left = max(until - self._clock.monotonic(), LEAST_FILE_SECONDS)
        adopted = self._adopted.get(layout, ())
        return self._reader.read(layout, deadline_seconds=min(self._deadline, left), adopted=adopted)

    def _read_adopted(self, read: _Read, queue: QueueReading | Unobserved, until: float) -> _Read:
        """The same with the files of generations that only the queue knows to be the chain's: sbatch's reply got lost.

        Files are read before the queue, so that one which is new is read a second time; later passes know of it.
        """
        if not isinstance(read.queue, Queue) or not isinstance(read.reading, RunReading):
            return read
        layout = read.target.layout
        on_record = _ids(read.reading.generations)
        before = tuple(one for one in self._adopted.get(layout, ()) if one[0] not in read.queue.doubtful)
        # Beyond doubt: its name, user and comment are the chain's in every row.
        verified = {one.array_job_id: one for one in read.generations if one.array_job_id in read.queue.arrays}
        new = tuple((job, one.sequence) for job, one in verified.items() if job not in on_record)
        self._adopted[layout] = (*before, *(one for one in new if one not in before))
        if not read.subject.is_ours or not new:
            return read
        again = self._read_one(layout, until)
        # Out of time: the first reading is true all the same.
        return read if isinstance(again, Unobserved) else self._sort(read.target, again, queue)

    def _read_queue(self, targets: Sequence[Target]) -> QueueReading | Unobserved:
        if self._facts is None:
            return Unavailable(NO_SCHEDULER)
        return self._facts.queue(frozenset(target.subject.user for target in targets))

    def _sort(self, target: Target, reading: RunReading | Unobserved, queue: QueueReading | Unobserved) -> _Read:
        subject = target.subject
        generations: tuple[Generation, ...] = ()
        stamps: tuple[str, ...] = ()
        known = isinstance(reading, RunReading) and isinstance(reading.generations, tuple)
        if isinstance(reading, RunReading):
            subject = _with_manifest(subject, reading)
            generations = reading.generations if isinstance(reading.generations, tuple) else ()
            stamps = reading.open_stamps
        if isinstance(queue, Unobserved):
            return _Read(target=target, subject=subject, reading=reading, generations=generations, queue=queue)
        if subject.is_ours and not known:
            # Every job of the chain would look like a stranger's, and so like a chain that is gone.
            why = Unobserved("the submissions of the chain could not be read")
            return _Read(target=target, subject=subject, reading=reading, generations=generations, queue=why)
        generations, sorted_queue = sort_queue(
            queue, subject, generations, stamps, asked_job_id=target.asked_job_id, watcher_uid=self._watcher_uid
        )
        if _shows_nothing(sorted_queue) and not _is_decided(reading):
            why = Unobserved(
                f"no job of {subject.user} is shown to this user: they are gone, or private to their owner"
            )
            return _Read(target=target, subject=subject, reading=reading, generations=generations, queue=why)
        return _Read(target=target, subject=subject, reading=reading, generations=generations, queue=sorted_queue)

    def _read_accounting(self, reads: Sequence[_Read]) -> Accounting | Unobserved:
        if self._facts is None:
            return Accounting(unavailable=NO_SCHEDULER)
        self._facts.forget_all_but(frozenset(one.array_job_id for read in reads for one in read.generations))
        queues = [read.queue for read in reads if isinstance(read.queue, Queue)]
        live = frozenset(job for queue in queues for job in queue.arrays if queue.alive(job))
        return self._facts.accounting([_to_account(read) for read in reads], live=live)

    def _read_nodes(self, reads: Sequence[_Read]) -> Mapping[str, Node] | Unobserved:
        if self._facts is None:
            return Unavailable(NO_SCHEDULER)
        wanted = {name for read in reads for name in _nodes_in_use(read)}
        return self._facts.nodes(sorted(wanted))


def _ids(generations: Sequence[Generation] | Unobserved) -> frozenset[int]:
    return frozenset() if isinstance(generations, Unobserved) else frozenset(one.array_job_id for one in generations)


def _shows_nothing(queue: Queue) -> bool:
    """Whether the watcher may simply not be allowed to see the jobs (Slurm's PrivateData)."""
    return not queue.sees_user and not (queue.arrays or queue.doubtful or queue.foreign)


def _is_decided(reading: RunReading | Unobserved) -> bool:
    """Whether the chain has a verdict: then an empty queue is what is to be expected."""
    return isinstance(reading, RunReading) and isinstance(reading.verdict, ChainOutcome)


def _with_manifest(subject: Subject, reading: RunReading) -> Subject:
    if isinstance(reading.manifest, Unobserved) or reading.manifest is None:
        return subject
    if subject.chain_id is not None and reading.manifest.chain_id != subject.chain_id:
        # Another chain was submitted into the directory meanwhile; the files read are still of the one asked for.
        return subject
    return replace(subject, manifest=reading.manifest)


def _to_account(read: _Read) -> list[int]:
    """The newest generations of which something has ended, or of which the queue no longer shows anything."""
    if isinstance(read.queue, Unobserved):
        return []
    found = []
    for one in read.generations:
        rows = read.queue.rows(one.array_job_id)
        zero = read.queue.task(one.array_job_id, 0)
        # Slurm drops an ended task 0 from the queue after MinJobAge while the others of its array stay.
        sees_zero_alive = zero is not None and not zero.state.is_terminal
        is_cut = any(row.array_task_id is None for row in read.queue.alive(one.array_job_id))
        if not (sees_zero_alive or is_cut) or any(row.state.is_terminal for row in rows):
            found.append(one.array_job_id)
    return found[-ACCOUNTED_GENERATIONS:]


def _nodes_in_use(read: _Read) -> set[str]:
    if isinstance(read.queue, Unobserved):
        return set()
    found: set[str] = set()
    for rows in read.queue.arrays.values():
        for row in rows:
            if not row.state.is_terminal and not row.state.is_pending and row.nodelist:
                found.update(_expanded(row.nodelist))
    return found


def _expanded(nodelist: str) -> tuple[str, ...]:
    try:
        return tuple(expand_nodes(nodelist))
    except ValueError:
        # Not a list that Slurm could print: no node of that name can be asked for.
        return ()


def _snapshot(
    read: _Read, accounting: Accounting | Unobserved, nodes: Mapping[str, Node] | Unobserved, now: datetime
) -> Snapshot:
    files = read.reading
    iteration = files if isinstance(files, Unobserved) else files.iteration
    memory = observe(read.target.memory, _values(read, iteration), now)
    return Snapshot(
        subject=read.subject,
        taken_at=now,
        generations=read.generations,
        queue=read.queue,
        accounting=_own_rows(read, accounting),
        nodes=nodes,
        iteration=iteration,
        verdict=files if isinstance(files, Unobserved) else _verdict(read, files),
        hold=files if isinstance(files, Unobserved) else files.hold,
        memory=_pruned(memory, read.generations),
        sources=_report(read, accounting, nodes),
        can_write_run_directory=None if isinstance(files, Unobserved) else files.can_write,
        free_bytes=None if isinstance(files, Unobserved) else files.free_bytes,
        file_clock_ahead_seconds=None if isinstance(files, Unobserved) else files.file_clock_ahead_seconds,
        ending=None if isinstance(files, Unobserved) or isinstance(files.ending, Unobserved) else files.ending,
        successor=None if isinstance(files, Unobserved) else _successor(read, files),
    )


def _verdict(read: _Read, files: RunReading) -> ChainOutcome | Unobserved | None:
    """The verdict; of a chain that was to end with a generation, also when that is gone and left none."""
    ending, queue = files.ending, read.queue
    if files.verdict is not None or ending is None or isinstance(ending, Unobserved) or isinstance(queue, Unobserved):
        return files.verdict
    if any(queue.alive(job) for job in queue.arrays) or queue.doubtful or queue.foreign:
        return None
    closed = any(one.array_job_id == ending.array_job_id and one.closed is not None for one in read.generations)
    if not queue.sees_user and not closed:
        # A queue that shows nothing of the user may hide all of it.
        return None
    return ChainOutcome(
        chain_id=ending.chain_id,
        verdict=Verdict.CANCELLED,
        array_job_id=ending.array_job_id,
        by=ending.by,
        why=ending.why,
        evidence=(f"it was to end with generation {ending.array_job_id}, and nothing of it is in the queue",),
        decided_at=ending.decided_at,
    )


def _own_rows(read: _Read, accounting: Accounting | Unobserved) -> Mapping[int, tuple[AccountedTask, ...]] | Unobserved:
    if isinstance(accounting, Unobserved):
        return accounting
    missed = _left_out(read, accounting)
    if missed and accounting.unavailable is None:
        # Half of the rows would look like a chain of which Slurm knows no more.
        return Unobserved(f"sacct was not asked about {len(missed)} of its array jobs: too many are open at once")
    own = {one.array_job_id for one in read.generations}
    return {job: tasks for job, tasks in accounting.rows.items() if job in own}


def _left_out(read: _Read, accounting: Accounting) -> frozenset[int]:
    return accounting.left_out.intersection(_to_account(read))


def _values(read: _Read, iteration: int | Unobserved | None) -> dict[str, Value]:
    """What this pass saw, under the names of memory.py. A source that could not be observed adds nothing."""
    values: dict[str, Value] = {}
    if not isinstance(iteration, Unobserved):
        values[names.ITERATION_NAME] = iteration
        best = read.target.memory.value(names.BEST_ITERATION_NAME)
        known = [number for number in (best, iteration) if isinstance(number, int)]
        values[names.BEST_ITERATION_NAME] = max(known) if known else None
    recent = read.generations[-REMEMBERED_GENERATIONS:]
    for one in recent:
        for task, lease in one.leases.items():
            values[names.lease_name(one.array_job_id, task)] = lease.counter
        if isinstance(one.log, LogActivity):
            values[names.log_name(one.array_job_id)] = one.log.bytes
    if isinstance(read.queue, Queue):
        for one in recent:
            values |= _queue_values(read.queue, one.array_job_id)
        live = [one.array_job_id for one in read.generations if read.queue.running(one.array_job_id)]
        alive = any(read.queue.alive(one.array_job_id) for one in read.generations) or bool(read.queue.doubtful)
        values[names.LIVE_GENERATION_NAME] = live[-1] if live else None
        values[names.QUEUE_EMPTY_NAME] = "no" if alive or read.queue.foreign else "yes"
    return values


def _queue_values(queue: Queue, job: int) -> dict[str, Value]:
    row = queue.task(job, 0)
    pending = queue.pending(job)
    return {
        names.task_zero_name(job): row.raw_state if row is not None else "absent",
        names.waiting_name(job): ",".join(sorted({task.reason for task in pending})) if pending else None,
        names.completing_name(job): sum(task.state.value == "COMPLETING" for task in queue.rows(job)),
    }


def _pruned(memory: Memory, generations: Sequence[Generation]) -> Memory:
    """Without the generations that are so far back that no detector asks about them."""
    recent = {one.array_job_id for one in generations[-REMEMBERED_GENERATIONS:]}
    old = tuple(f"job/{job}/" for job in sorted(names.remembered_jobs(memory) - recent))
    return forget(memory, old) if old and generations else memory


def _report(read: _Read, accounting: Accounting | Unobserved, nodes: Mapping[str, Node] | Unobserved) -> SourceReport:
    files = read.reading
    answers: dict[Source, object] = {Source.QUEUE: read.queue, Source.NODES: nodes}
    rows = _own_rows(read, accounting)
    answers[Source.ACCOUNTING] = rows if isinstance(rows, Unobserved) else unavailable_or_unobserved(accounting)
    if isinstance(files, Unobserved):
        answers |= dict.fromkeys((Source.RECORDS, Source.CYCLES, Source.ITERATION), files)
    else:
        # Those that wait have no directory; a damaged record of long ago must not blind the watcher for ever.
        begun = [one for one in read.generations if one.has_directory][-1:]
        # Without the log nobody can tell a cycle that hangs from one that works.
        answers[Source.CYCLES] = _first_unobserved(*(said for one in begun for said in (one.cycles, one.log)))
        answers[Source.ITERATION] = files.iteration
        control = [said for one in begun for said in (one.closed, one.record, one.no_restart)]
        over = _superseded(_successor(read, files))
        answers[Source.RECORDS] = over or _first_unobserved(
            files.generations, files.verdict, files.hold, files.manifest, *control
        )
    return SourceReport(
        unobserved={
            source: answer.reason
            for source, answer in answers.items()
            if isinstance(answer, Unobserved) and not isinstance(answer, Unavailable)
        },
        unavailable={source: answer.reason for source, answer in answers.items() if isinstance(answer, Unavailable)},
        notes=(*(() if isinstance(files, Unobserved) else files.notes), *_accounting_notes(read, accounting)),
    )


def _accounting_notes(read: _Read, accounting: Accounting | Unobserved) -> tuple[str, ...]:
    if isinstance(accounting, Unobserved) or accounting.unavailable is None:
        return ()
    missed = sorted(_left_out(read, accounting))
    return tuple(f"scontrol was not asked about job {job} yet: {MOST_CALLS} jobs a pass" for job in missed)


def _successor(read: _Read, files: RunReading) -> str | None:
    """A resumed run directory holds another chain: to go on with the old one would be to look at nothing."""
    manifest, wanted = files.manifest, read.subject.chain_id
    if isinstance(manifest, ChainManifest) and wanted is not None and manifest.chain_id != wanted:
        return manifest.chain_id
    return None


def _superseded(successor: str | None) -> Unobserved | None:
    if successor is None:
        return None
    return Unobserved(f"the run directory now holds chain {successor}, which --run-dir or a job id of it names")


def _first_unobserved(*answers: object) -> object:
    return next((answer for answer in answers if isinstance(answer, Unobserved)), None)
