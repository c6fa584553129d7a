"""What the watcher keeps of one chain between readings: told changes, made into a RunReading. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_watch.model import Cycle, Generation, LogActivity
from nvrx_watch.reading.cycles import count_rows, pack_rows, unpack_rows
from nvrx_watch.reading.messages import (
    ControlPart,
    CycleChange,
    CycleRow,
    GenerationChange,
    KnownDirectory,
    ReadSummary,
)
from nvrx_watch.reading.nodes import NodeLists
from nvrx_watch.reading_model import RunReading

_CONTROL = msgspec.msgpack.Decoder(ControlPart)


class RunView:
    """One chain."""

    def __init__(self) -> None:
        self._nodes = NodeLists()
        self._generations: dict[int, _GenerationView] = {}

    def apply(self, change: GenerationChange) -> None:
        """Take in what is new about one generation."""
        view = self._generations.get(change.array_job_id)
        if view is None:
            view = self._generations[change.array_job_id] = _GenerationView(self._nodes)
        view.apply(change)

    def reading(self, summary: ReadSummary) -> RunReading:
        """The whole, once the reading is complete."""
        generations: tuple[Generation, ...] | Unobserved
        notes = list(summary.notes)
        if isinstance(summary.generations, Unobserved):
            generations = summary.generations
        else:
            known = {each.array_job_id for each in summary.generations}
            for gone in self._generations.keys() - known:
                del self._generations[gone]
            generations = tuple(self._generation(each) for each in summary.generations)
            for generation in generations:
                notes += self._notes_of(generation)
        return RunReading(
            manifest=summary.manifest,
            generations=generations,
            open_stamps=summary.open_stamps,
            iteration=summary.iteration,
            verdict=summary.verdict,
            hold=summary.hold,
            ending=summary.ending,
            can_write=summary.can_write,
            free_bytes=summary.free_bytes,
            file_clock_ahead_seconds=summary.file_clock_ahead_seconds,
            notes=tuple(notes),
        )

    def _generation(self, known: KnownDirectory) -> Generation:
        view = self._generations.get(known.array_job_id) if known.has_directory else None
        if view is None:
            return Generation(
                array_job_id=known.array_job_id,
                sequence=known.sequence,
                submitted_at=known.submitted_at,
                has_directory=known.has_directory,
            )
        if view.made is None or view.made_for != known:
            view.made, view.made_for = view.make(known), known
        return view.made

    def _notes_of(self, generation: Generation) -> list[str]:
        view = self._generations.get(generation.array_job_id)
        notes = list(view.control.notes) if view is not None and generation.has_directory else []
        if generation.unreadable_cycles:
            notes.append(
                f"{generation.unreadable_cycles} cycle records of job {generation.array_job_id} are unreadable"
            )
        return notes


class LazyCycles(Sequence[Cycle]):
    """The cycles of one generation, made when somebody looks at them: of a long chain only the newest are looked at.

    How many there are is known without that. A node list that is none stands as an empty one.
    """

    def __init__(self, packed: Sequence[bytes], nodes: NodeLists, iterations: Mapping[tuple[int, int], int]) -> None:
        self._count = sum(map(count_rows, packed))
        self._packed = tuple(packed)
        self._nodes = nodes
        self._iterations = iterations
        self._made: list[Cycle] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Cycle: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Cycle]: ...

    def __getitem__(self, index: int | slice) -> Cycle | Sequence[Cycle]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Cycle]:
        return iter(self._all())

    def __reversed__(self) -> Iterator[Cycle]:
        return reversed(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} cycles>"

    def _all(self) -> list[Cycle]:
        if self._made is None:
            made = [self._make(row) for packed in self._packed for row in unpack_rows(packed)]
            self._made = sorted(made, key=_key)
        return self._made

    def _make(self, row: CycleRow) -> Cycle:
        return Cycle(
            attempt=row.attempt,
            number=row.number,
            started_at=row.started_at,
            ended_at=row.ended_at,
            active_nodes=self._expand(row.active_nodes),
            standby_nodes=self._expand(row.standby_nodes),
            log_file=row.log_file,
            last_iteration=self._iterations.get((row.attempt, row.number)),
        )

    def _expand(self, text: str) -> tuple[str, ...]:
        try:
            return self._nodes[text]
        except ValueError:
            return ()


class _GenerationView:
    def __init__(self, nodes: NodeLists) -> None:
        self._nodes = nodes
        self.control = ControlPart()
        self.made: Generation | None = None
        self.made_for: KnownDirectory | None = None
        self._log: LogActivity | Unobserved | None = None
        self._iterations: dict[tuple[int, int], int] = {}
        self._closed: list[bytes] = []
        self._open: bytes = pack_rows(0, b"")
        self._unreadable = 0
        self._problem: str | None = None

    def apply(self, change: GenerationChange) -> None:
        self.made = None
        if change.control is not None:
            self.control = _CONTROL.decode(change.control)
        if change.cycles is not None:
            self._apply_cycles(change.cycles)
        self._log = change.log
        self._iterations = {(attempt, number): iteration for attempt, number, iteration in change.iterations}

    def make(self, known: KnownDirectory) -> Generation:
        control, lost = self.control, self.control.unobserved
        cycles = self._cycles()
        return Generation(
            array_job_id=known.array_job_id,
            sequence=known.sequence,
            submitted_at=known.submitted_at,
            has_directory=True,
            rendezvous=Unobserved(lost["rendezvous"]) if "rendezvous" in lost else control.rendezvous,
            closed=Unobserved(lost["closed"]) if "closed" in lost else control.closed,
            record=Unobserved(lost["record"]) if "record" in lost else control.record,
            no_restart=Unobserved(lost["no_restart"]) if "no_restart" in lost else control.no_restart,
            leases={lease.array_task_id: lease for lease in control.leases},
            joined=frozenset(control.joined),
            left=frozenset(control.left),
            cycles=cycles,
            unreadable_cycles=self._unreadable,
            log=self._log,
        )

    def _apply_cycles(self, change: CycleChange) -> None:
        if change.reset:
            self._closed = []
        if count_rows(change.closed):
            self._closed.append(change.closed)
        self._open = change.open
        self._unreadable = change.unreadable
        self._problem = change.problem

    def _cycles(self) -> Sequence[Cycle] | Unobserved | None:
        if self._problem is not None:
            return Unobserved(self._problem)
        cycles = LazyCycles((*self._closed, self._open), self._nodes, self._iterations)
        if not cycles:
            return Unobserved(f"none of {self._unreadable} cycle records can be read") if self._unreadable else None
        return cycles


_key = operator.attrgetter("attempt", "number")
