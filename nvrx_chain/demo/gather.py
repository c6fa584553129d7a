"""Reads what a demo's chain leaves behind into one Evidence: control files, checkpoint tracker, event lines, queue.

Slurm is asked only every few seconds: the demo must not be the load that it measures. Touches: the run directory
(reads), Slurm (reads).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.demo.evidence import Evidence, FaultDone, GenerationSeen, TrackerSample
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import NoRestart
from nvrx_chain.records.files import list_names, read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.progress import read_iteration
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import Node, QueuedTask
from nvrx_chain.submit.chain import SubmitResult
from nvrx_chain.workloads.events import Event, read_events

ASK_SLURM_SECONDS = 2.0


class Gatherer:
    """Reads one chain again and again; remembers what only a series of readings can tell."""

    def __init__(self, chain: SubmitResult, client: SlurmClient, clock: Clock) -> None:
        self._chain = chain
        self._run = RunDirectory(chain.run_directory)
        self._files = ChainFiles(self._run, chain.chain_id)
        self._client = client
        self._clock = clock
        self._tracker: list[TrackerSample] = []
        self._faults: list[FaultDone] = []
        self._queue: tuple[QueuedTask, ...] | None = None
        self._nodes: Mapping[str, Node] | None = None
        self._asked_at: float | None = None

    def add_fault(self, fault: FaultDone) -> None:
        """A fault that was done; later evidence has it."""
        self._faults.append(fault)

    def read(self, reference: Mapping[int, str] | Unobserved | None = None, *, ask_now: bool = False) -> Evidence:
        """Everything as it is now; `ask_now` does not wait for the next turn to ask Slurm. Raises RecordError."""
        # Records before events: a generation that is seen as closed then has all of its lines.
        outcome = self._files.outcome()
        generations = tuple(
            self._read_generation(sequence, job) for sequence, job in enumerate(self._chain.array_job_ids, start=1)
        )
        self._sample_tracker()
        self._ask_slurm(ask_now=ask_now)
        return Evidence(
            at=self._clock.monotonic(),
            generations=generations,
            events=read_all_events(self._run.path / "events"),
            tracker=tuple(self._tracker),
            faults=tuple(self._faults),
            outcome=outcome,
            queue=self._queue,
            nodes=self._nodes,
            reference=reference,
        )

    def _read_generation(self, sequence: int, array_job_id: int) -> GenerationSeen:
        directory = self._run.generation(array_job_id)
        said = read_record(directory.no_restart, NoRestart)
        return GenerationSeen(
            sequence=sequence,
            array_job_id=array_job_id,
            has_run=list_names(directory.path) is not None,
            closed=self._files.closed_of(array_job_id),
            no_restart=said if isinstance(said, NoRestart) else None,
        )

    def _sample_tracker(self) -> None:
        now = self._clock.monotonic()
        iteration = read_iteration(self._run.default_iteration_file)
        known = self._tracker[-1].iteration if self._tracker else None
        if not isinstance(iteration, Unobserved) and iteration != known:
            self._tracker.append(TrackerSample(at=now, iteration=iteration))

    def _ask_slurm(self, *, ask_now: bool) -> None:
        now = self._clock.monotonic()
        if not ask_now and self._asked_at is not None and now - self._asked_at < ASK_SLURM_SECONDS:
            return
        self._asked_at = now
        # A reading that failed changes nothing: what was known stays known, and the wait has its deadline.
        queue = self._client.queue()
        if not isinstance(queue, Unobserved):
            jobs = set(self._chain.array_job_ids)
            self._queue = tuple(task for task in queue.tasks if task.array_job_id in jobs)
        nodes = self._client.nodes(())
        if not isinstance(nodes, Unobserved):
            self._nodes = nodes


def read_all_events(directory: Path) -> tuple[Event, ...]:
    """Every line of every rank below `directory`, in the order of time. Raises RecordError for a line that is none."""
    names = list_names(directory)
    if names is None or isinstance(names, Unobserved):
        return ()
    events = [event for name in names if name.endswith(".jsonl") for event in read_events(directory / name)]
    return tuple(sorted(events, key=lambda event: event.monotonic))
