"""A synthetic chain whose ranks, records and queue a test writes line by line, as evidence for the demo's judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from nvrx_chain.clock import format_time
from nvrx_chain.demo.evidence import Evidence, FaultDone, GenerationSeen, TrackerSample
from nvrx_chain.demo.expectations import Expectation, RowState
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome, Closed, NoRestart
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import FaultKind
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.slurm.states import JobState, NodeState
from nvrx_chain.workloads.events import Event, EventKind

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
START_UP_SECONDS = 3.0


def loss_of(iteration: int) -> str:
    """The loss that every run of the same training has at an iteration, as hexadecimal text."""
    return (1.0 / (iteration + 1)).hex()


@dataclass(slots=True, kw_only=True)
class Story:
    """What happened so far; `evidence()` is a reading of it. Seconds are monotonic."""

    events: list[Event] = field(default_factory=list)
    tracker: list[TrackerSample] = field(default_factory=list)
    faults: list[FaultDone] = field(default_factory=list)
    generations: dict[int, GenerationSeen] = field(default_factory=dict)
    rows: dict[str, QueuedTask] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    outcome: ChainOutcome | None = None
    reference: Mapping[int, str] | Unobserved | None = None
    at: float = 0.0

    def evidence(self) -> Evidence:
        return Evidence(
            at=self.at,
            generations=tuple(self.generations.values()),
            events=tuple(sorted(self.events, key=lambda event: event.monotonic)),
            tracker=tuple(self.tracker),
            faults=tuple(self.faults),
            outcome=self.outcome,
            queue=tuple(self.rows.values()),
            nodes=dict(self.nodes),
            reference=self.reference,
        )

    # Records

    def queued(self, *array_job_ids: int, tasks: int = 2) -> None:
        """Generations in the order of the chain, all of their tasks pending."""
        for sequence, job in enumerate(array_job_ids, start=1):
            self.generations[job] = GenerationSeen(sequence=sequence, array_job_id=job)
            for task in range(tasks):
                self.row(job, task, JobState.PENDING)

    def runs(self, array_job_id: int, *nodes: str) -> None:
        """A generation has started on these nodes, its task 0 on the first one."""
        self._change(array_job_id, has_run=True)
        for task, node in enumerate(nodes):
            self.row(array_job_id, task, JobState.RUNNING, node)

    def row(self, array_job_id: int, task: int, state: JobState, nodelist: str = "") -> None:
        self.rows[f"{array_job_id}_{task}"] = QueuedTask(
            job_id=array_job_id * 100 + task,
            array_job_id=array_job_id,
            array_task_id=task,
            is_array=True,
            state=state,
            raw_state=state.value,
            reason="",
            nodelist=nodelist,
            partition="main",
            dependency="",
            user="alice",
            submitted_at=None,
            started_at=None,
            comment="",
            name="demo",
        )

    def ends(self, array_job_id: int, state: JobState) -> None:
        """Every task of a generation is in this state now."""
        for row in [row for row in self.rows.values() if row.array_job_id == array_job_id]:
            self.row(array_job_id, row.array_task_id or 0, state, row.nodelist)

    def node(self, name: str, state: NodeState = NodeState.IDLE, *, responding: bool = True) -> None:
        self.nodes[name] = Node(name=name, state=state, raw_state=state.value, responding=responding, reason="")

    def closed(self, array_job_id: int, outcome: Outcome, *, by_task: int = 0) -> None:
        closed = Closed(
            outcome=outcome,
            exit_code=None,
            closed_by=f"{array_job_id}_{by_task} on n1",
            closed_at=format_time(EPOCH),
            evidence=("because",),
            **_stamp(array_job_id, by_task),
        )
        self._change(array_job_id, closed=closed)

    def says_no_restart(self, array_job_id: int, node: str, exit_code: int = 93) -> None:
        said = NoRestart(
            node=node,
            exit_code=exit_code,
            cause=f"the launcher on {node} exited with {exit_code}",
            written_at=format_time(EPOCH),
            **_stamp(array_job_id, 0),
        )
        self._change(array_job_id, no_restart=said)

    def decided(self, verdict: Verdict, array_job_id: int) -> None:
        self.outcome = ChainOutcome(
            chain_id="c",
            verdict=verdict,
            array_job_id=array_job_id,
            by="somebody",
            why="because",
            evidence=(),
            decided_at=format_time(EPOCH),
        )

    def fault(self, kind: FaultKind, array_job_id: int, node: str, at: float) -> None:
        self.faults.append(
            FaultDone(kind=kind, target="the victim", node=node, array_job_id=array_job_id, at=at, verified="dead")
        )

    def _change(self, array_job_id: int, **changes: Any) -> None:
        seen = self.generations[array_job_id]
        fields = {name: getattr(seen, name) for name in GenerationSeen.__dataclass_fields__}
        self.generations[array_job_id] = GenerationSeen(**{**fields, **changes})

    # Ranks

    def trains(
        self,
        array_job_id: int,
        start: int,
        end: int,
        *,
        at: float,
        restart: int = 0,
        hosts: Iterable[str] = ("n1", "n2"),
        save_interval: int = 0,
        losses: Mapping[int, str] | None = None,
    ) -> float:
        """Ranks announce themselves at the moment `at` and do a step a second; the moment of the last line.

        Their processes began START_UP_SECONDS earlier.
        """
        moment = at
        for rank, host in enumerate(hosts):
            self.line(
                EventKind.START,
                array_job_id,
                start,
                at=at,
                rank=rank,
                host=host,
                restart=restart,
                since_process_start_seconds=START_UP_SECONDS,
            )
            for iteration in range(start + 1, end + 1):
                moment = at + iteration - start
                loss = (losses or {}).get(iteration, loss_of(iteration))
                self.line(
                    EventKind.STEP, array_job_id, iteration, at=moment, rank=rank, host=host, restart=restart, loss=loss
                )
                if rank == 0 and save_interval and iteration % save_interval == 0:
                    self.saves(array_job_id, iteration, at=moment, host=host, restart=restart)
        return moment

    def saves(self, array_job_id: int, iteration: int, *, at: float, host: str = "n1", restart: int = 0) -> None:
        self.line(EventKind.SAVE_FINISHED, array_job_id, iteration, at=at, rank=0, host=host, restart=restart)
        self.tracker.append(TrackerSample(at=at, iteration=iteration))

    def line(
        self,
        kind: EventKind,
        array_job_id: int,
        iteration: int,
        *,
        at: float,
        rank: int = 0,
        host: str = "n1",
        restart: int = 0,
        loss: str | None = None,
        **fields: Any,
    ) -> None:
        moment = EPOCH + timedelta(seconds=at)
        self.events.append(
            Event(
                event=kind,
                at=format_time(moment),
                unix=moment.timestamp(),
                monotonic=at,
                rank=rank,
                local_rank=0,
                world_size=2,
                host=host,
                pid=100,
                array_job_id=array_job_id,
                array_task_id=rank,
                restart_count=restart,
                iteration=iteration,
                loss_hex=loss,
                **fields,
            )
        )


def _stamp(array_job_id: int, array_task_id: int) -> dict[str, Any]:
    return {
        "array_job_id": array_job_id,
        "array_task_id": array_task_id,
        "restart_count": 0,
        "host": "n1",
        "boot_id": "boot",
        "pid": 1,
        "pid_started_at": 1,
    }


def state_of(rows: Iterable[Expectation], name: str) -> RowState:
    """How the row with this name stands."""
    (row,) = (row for row in rows if row.name == name)
    return row.state
