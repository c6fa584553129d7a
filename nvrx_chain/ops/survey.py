"""Looking at a chain for `nvrx-chain status`: every file that tells something, and one reading of the queue.

Touches: the run directory (reads), Slurm (one squeue; one `scontrol show config` where the manifest names a cluster).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.ops.chain import OpenChain, find_other_cluster, read_chain_queue
from nvrx_chain.ops.status import ChainStatus
from nvrx_chain.ops.status_build import ChainFacts, GenerationFiles, build_status
from nvrx_chain.records.control import Drained, Lease
from nvrx_chain.records.cycle_info import count_cycles
from nvrx_chain.records.files import list_names, read_record
from nvrx_chain.records.layout import GenerationDirectory, parse_indexed_name
from nvrx_chain.records.progress import read_iteration
from nvrx_chain.slurm.chain_queue import ChainQueue
from nvrx_chain.slurm.client import SlurmClient

T = TypeVar("T")


def survey_chain(chain: OpenChain, client: SlurmClient, clock: Clock) -> ChainStatus:
    """The status of a chain. A file that cannot be read is named in `problems`, never an error.

    The order matters while the chain moves: ids before the queue, or a new job would look like one that has ended;
    the verdict after the queue, or a chain that ends meanwhile would look as if it had run dry.
    """
    return survey_with(chain, lambda: _queue(chain, client), clock)


def survey_with(chain: OpenChain, look: Callable[[], ChainQueue | Unobserved], clock: Clock) -> ChainStatus:
    """The same with a queue that somebody else reads, after the ids."""
    problems: list[str] = []
    submitted = _submitted(chain, problems)
    queue = look()
    generations = tuple(_with_files(chain, generation) for generation in submitted)
    iteration = read_iteration(Path(chain.manifest.checkpoint_iteration_file))
    if isinstance(iteration, Unobserved):
        problems.append(iteration.reason)
    verdict = _or_problem(chain.verdict, problems)
    hold = _or_problem(chain.hold, problems)
    ending = _or_problem(chain.ending, problems)
    return build_status(
        ChainFacts(
            manifest=chain.manifest,
            run_directory=str(chain.directory.path),
            verdict=verdict,
            hold=hold,
            ending=ending,
            iteration=iteration,
            generations=generations,
            queue=queue,
            read_at=clock.now(),
            problems=tuple(problems),
        )
    )


def _or_problem(read: Callable[[], T | None], problems: list[str]) -> T | None:
    try:
        return read()
    except RecordError as error:
        problems.append(str(error))
        return None


def _queue(chain: OpenChain, client: SlurmClient) -> ChainQueue | Unobserved:
    queue = read_chain_queue(chain, client)
    # In this order, for a controller that hangs lets every question wait.
    other = None if isinstance(queue, Unobserved) else find_other_cluster(chain, client)
    return queue if other is None else Unobserved(other)


def _submitted(chain: OpenChain, problems: list[str]) -> list[GenerationFiles]:
    """Every generation with a submission, in order; those of which only the intent is there too."""
    names = list_names(chain.directory.submissions)
    if isinstance(names, Unobserved):
        problems.append(names.reason)
    unresolved = {
        intent.sequence: GenerationFiles(sequence=intent.sequence, array_job_id=None, submitted_at=None)
        for intent in chain.files.open_intents()
    }
    known = {
        found.sequence: GenerationFiles(
            sequence=found.sequence, array_job_id=found.array_job_id, submitted_at=found.submitted_at
        )
        for found in chain.files.generations()
    }
    return [generation for _, generation in sorted({**unresolved, **known}.items())]


def _with_files(chain: OpenChain, generation: GenerationFiles) -> GenerationFiles:
    job = generation.array_job_id
    if job is None:
        return generation
    directory = chain.directory.generation(job)
    closed = chain.files.closed_of(job)
    return replace(
        generation,
        record=chain.files.record_of(job),
        closed=closed,
        lease=_lease_of_task_zero(directory, chain.manifest.uid),
        cycles=count_cycles(directory),
        drained=_drained(directory, chain.manifest.uid) if closed is None else (),
    )


def _drained(directory: GenerationDirectory, owner_uid: int) -> tuple[Drained, ...]:
    """The markers of drained tasks that can be read, in the order of the tasks."""
    names = list_names(directory.control)
    if names is None or isinstance(names, Unobserved):
        return ()
    found = filter(None, (parse_indexed_name(name) for name in names))
    tasks = sorted(task for prefix, task in found if prefix == "drained")
    records = (read_record(directory.drained(task), Drained, owner_uid=owner_uid) for task in tasks)
    return tuple(r for r in records if isinstance(r, Drained) and r.array_job_id == directory.array_job_id)


def _lease_of_task_zero(directory: GenerationDirectory, owner_uid: int) -> Lease | None:
    record = read_record(directory.lease(0), Lease, owner_uid=owner_uid)
    return record if isinstance(record, Lease) and record.array_job_id == directory.array_job_id else None
