"""What one reading of the queue shows of a chain: its own jobs, those that only may be, and how both are put. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.errors import IdentityError
from nvrx_chain.slurm.identity import ChainIdentity, parse_comment, verify_array
from nvrx_chain.slurm.model import QueuedTask, QueueReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainQueue:
    """What one reading of the queue shows of a chain.

    `arrays`: the rows of each array job that is the chain's beyond doubt. `doubtful`: array jobs on record with live
    rows that are not, or cannot be shown to be, the chain's, and why: they are never touched. `strays`: live array
    jobs that carry the chain's comment and are not on record.
    """

    arrays: Mapping[int, tuple[QueuedTask, ...]]
    doubtful: Mapping[int, str]
    strays: tuple[int, ...]

    def alive(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The tasks of an array job that Slurm has not ended."""
        return tuple(task for task in self.arrays.get(array_job_id, ()) if not task.state.is_terminal)

    @property
    def live_jobs(self) -> tuple[int, ...]:
        """The array jobs of the chain with a task that has not ended."""
        return tuple(job for job in self.arrays if self.alive(job))


def sort_queue(reading: QueueReading, identity: ChainIdentity) -> ChainQueue:
    """Tell the chain's array jobs in a reading from those that only seem to be."""
    arrays: dict[int, tuple[QueuedTask, ...]] = {}
    doubtful: dict[int, str] = {}
    for job in identity.submitted_at:
        try:
            arrays[job] = verify_array(reading, job, identity)
        except IdentityError as error:
            if any(not task.state.is_terminal for task in reading.of(job)):
                doubtful[job] = error.part or error.message
    return ChainQueue(
        arrays={job: rows for job, rows in arrays.items() if rows},
        doubtful=doubtful,
        strays=tuple(sorted({task.array_job_id for task in reading.tasks if _is_stray(task, identity)})),
    )


def _is_stray(task: QueuedTask, identity: ChainIdentity) -> bool:
    if task.state.is_terminal or task.user != identity.user or task.array_job_id in identity.submitted_at:
        return False
    stamp = parse_comment(task.comment)
    return stamp is not None and stamp[0] == identity.chain_id


def describe_states(tasks: Sequence[QueuedTask]) -> str:
    """E.g. `3 running, 2 pending`, the most frequent first."""
    return ", ".join(f"{number} {state}" for state, number in count_states(tasks).items())


def count_states(tasks: Sequence[QueuedTask]) -> dict[str, int]:
    """Tasks per state in Slurm's word, lower case; a word that we do not know as Slurm printed it."""
    words = Counter(task.raw_state.split()[0].lower() if task.raw_state.split() else "unknown" for task in tasks)
    return dict(words.most_common())


def describe_left_alone(queue: ChainQueue) -> dict[int, str]:
    """Live array jobs that may be the chain's and were not touched, with the reason."""
    stray = "it carries the chain's comment and is not on record"
    return {**queue.doubtful, **dict.fromkeys(queue.strays, stray)}
