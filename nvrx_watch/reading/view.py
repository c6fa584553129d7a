"""What the watcher keeps of one chain between readings: told changes, made into a RunReading. Pure."""

from __future__ import annotations

import operator

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_watch.model import Cycle, Generation, LogActivity
from nvrx_watch.reading.cycles import unpack_rows
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


class _GenerationView:
    def __init__(self, nodes: NodeLists) -> None:
        self._nodes = nodes
        self.control = ControlPart()
        self.made: Generation | None = None
        self.made_for: KnownDirectory | None = None
        self._log: LogActivity | Unobserved | None = None
        self._iterations: dict[tuple[int, int], int] = {}
        self._closed: list[Cycle] = []
        self._bad_closed = 0
        self._open: list[Cycle] = []
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
            self._closed, self._bad_closed = [], 0
        closed, bad_closed = self._make_all(unpack_rows(change.closed))
        self._open, bad_open = self._make_all(unpack_rows(change.open))
        self._bad_closed += bad_closed
        if closed:
            self._closed += closed
            self._closed.sort(key=_key)
        self._unreadable = change.unreadable + self._bad_closed + bad_open
        self._problem = change.problem

    def _make_all(self, rows: list[CycleRow]) -> tuple[list[Cycle], int]:
        """The cycles of these rows, and how many of them name nodes that are none."""
        nodes = self._nodes
        cycles = []
        for row in rows:
            try:
                active, standby = nodes[row.active_nodes], nodes[row.standby_nodes]
            except ValueError:
                continue
            cycles.append(
                Cycle(
                    attempt=row.attempt,
                    number=row.number,
                    started_at=row.started_at,
                    ended_at=row.ended_at,
                    active_nodes=active,
                    standby_nodes=standby,
                    log_file=row.log_file,
                )
            )
        return cycles, len(rows) - len(cycles)

    def _cycles(self) -> tuple[Cycle, ...] | Unobserved | None:
        if self._problem is not None:
            return Unobserved(self._problem)
        cycles = sorted((*self._closed, *self._open), key=_key) if self._open else self._closed
        if not cycles:
            return Unobserved(f"none of {self._unreadable} cycle records can be read") if self._unreadable else None
        if not self._iterations:
            return tuple(cycles)
        return tuple(self._with_iteration(cycle) for cycle in cycles)

    def _with_iteration(self, cycle: Cycle) -> Cycle:
        iteration = self._iterations.get(_key(cycle))
        if iteration is None:
            return cycle
        return msgspec.structs.replace(cycle, last_iteration=iteration)


_key = operator.attrgetter("attempt", "number")
