"""`nvrx-chain list`: the chains of one user, one line each, from directories and from the queue.

A job leads to its run directory by the working directory that squeue shows, and only when its comment, its owner and
the manifest there agree. Touches: the run directories (reads), Slurm (one squeue).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nvrx_chain.clock import Clock, format_time, parse_time, render_age
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.ops.chain import OpenChain, open_run_directory
from nvrx_chain.ops.resolve import open_chains_below
from nvrx_chain.ops.status import ChainState, ChainStatus, GenerationState
from nvrx_chain.ops.survey import survey_with
from nvrx_chain.ops.words import render_safely
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.files import list_names
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.records.progress import UNREADABLE
from nvrx_chain.slurm.chain_queue import ChainQueue, sort_queue
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import QueuedTask, QueueReading

log = logging.getLogger(__name__)

_BEGUN = frozenset({GenerationState.RUNNING, GenerationState.COMPLETING})


class ListedChain(msgspec.Struct, frozen=True, kw_only=True):
    """One chain. `generation`: the newest one that has begun, 0 before the first; of `submitted` generations.

    `iteration` None: no checkpoint, -1: it cannot be read. `problem`: what of it could not be read.
    """

    chain_id: str
    name: str
    user: str
    run_directory: str
    state: ChainState
    verdict: ChainOutcome | None
    generation: int
    submitted: int
    array_job_id: int | None
    iteration: int | None
    target_iteration: int | None
    submitted_at: str
    problem: str | None


class ChainList(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, the newest submit last. `no_answer`: why Slurm could not be read.

    `problems`: jobs with a chain's comment whose run directory could not be read. `hidden`: ended chains left out.
    """

    schema: int = 1
    read_at: str
    chains: tuple[ListedChain, ...]
    hidden: int
    no_answer: str | None
    problems: tuple[str, ...]


def list_chains(
    client: SlurmClient, clock: Clock, *, user: str, here: Path, run_root: Path | None, include_ended: bool
) -> ChainList:
    """The chains near `here` and in the queue of `user`, or those in and directly below `run_root` alone."""
    near = open_chains_below(here, here / CHAINS_DIRECTORY) if run_root is None else _in_root(run_root)
    # Ids before the queue: a job that comes between would look like one that has ended.
    known = {str(chain.directory.path): chain.files.list_generations() for chain in near}
    owners = {chain.manifest.user for chain in near} | ({user} if run_root is None else set())
    reading = client.queue(next(iter(owners)) if len(owners) == 1 else None) if owners else Unobserved("nothing to ask")
    problems: list[str] = []
    if run_root is None and isinstance(reading, QueueReading):
        near = [*near, *_from_queue(reading, user, near, problems)]
    listed = [_look(chain, reading, clock, known.get(str(chain.directory.path))) for chain in near]
    listed.sort(key=lambda chain: (chain.submitted_at, chain.run_directory))
    shown = [chain for chain in listed if include_ended or chain.state is not ChainState.ENDED]
    return ChainList(
        read_at=format_time(clock.now()),
        chains=tuple(shown),
        hidden=len(listed) - len(shown),
        no_answer=reading.reason if isinstance(reading, Unobserved) and owners else None,
        problems=tuple(problems),
    )


def _in_root(root: Path) -> list[OpenChain]:
    """The chain in a directory and those directly below it. Raises RecordError when it cannot be listed."""
    names = list_names(root)
    if not isinstance(names, tuple):
        raise RecordError(
            f"listing the chains of {root}",
            part=names.reason if names else "it is not there",
            hint="--run-root takes a directory that chains lie in, such as nvrx-chains",
        )
    return open_chains_below(root, root)


def _from_queue(reading: QueueReading, user: str, near: Sequence[OpenChain], problems: list[str]) -> list[OpenChain]:
    """The chains of this user's jobs that no directory near by has."""
    seen = {chain.manifest.chain_id for chain in near}
    found: list[OpenChain] = []
    for chain_id, task in _stamped(reading, user).items():
        if chain_id in seen:
            continue
        chain = _follow(task, chain_id, user)
        if isinstance(chain, OpenChain):
            found.append(chain)
        elif not task.state.is_terminal:
            problems.append(chain)
    return found


def _stamped(reading: QueueReading, user: str) -> dict[str, QueuedTask]:
    """By chain id one of its tasks, a live one when there is any."""
    found: dict[str, QueuedTask] = {}
    for task in reading.tasks:
        stamp = parse_comment(task.comment)
        if stamp is None or task.user != user:
            continue
        earlier = found.get(stamp[0])
        if earlier is None or (earlier.state.is_terminal and not task.state.is_terminal):
            found[stamp[0]] = task
    return found


def _follow(task: QueuedTask, chain_id: str, user: str) -> OpenChain | str:
    """The chain in a job's working directory, or why it is not believed."""
    what = f"job {task.array_job_id} of chain {chain_id}"
    if not task.work_dir.startswith("/"):
        return f"{what}: Slurm shows the working directory {task.work_dir!r}"
    try:
        chain = open_run_directory(Path(task.work_dir))
    except RecordError as error:
        return f"{what}: {error}"
    if chain.manifest.chain_id != chain_id:
        return f"{what}: {task.work_dir} now holds chain {chain.manifest.chain_id}"
    if chain.manifest.user != user:
        return f"{what}: the chain in {task.work_dir} belongs to {chain.manifest.user}"
    return chain


def _look(chain: OpenChain, reading: QueueReading | Unobserved, clock: Clock, known: object) -> ListedChain:
    def queue() -> ChainQueue | Unobserved:
        if isinstance(known, Unobserved):
            return known
        return reading if isinstance(reading, Unobserved) else sort_queue(reading, chain.identity(reading))

    return _row(survey_with(chain, queue, clock), chain)


def _row(seen: ChainStatus, chain: OpenChain) -> ListedChain:
    begun = [one for one in seen.generations if one.state in _BEGUN or one.started_at is not None]
    newest = begun[-1] if begun else None
    return ListedChain(
        chain_id=seen.chain_id,
        name=seen.name,
        user=seen.user,
        run_directory=os.path.abspath(chain.directory.path),
        state=seen.state,
        verdict=seen.verdict,
        generation=newest.sequence if newest is not None else 0,
        submitted=max((one.sequence for one in seen.generations), default=0),
        array_job_id=newest.array_job_id if newest is not None else None,
        iteration=seen.iteration,
        target_iteration=seen.target_iteration,
        submitted_at=seen.submitted_at,
        problem=seen.problems[0] if seen.problems else None,
    )


_HEAD = ("NAME", "STATE", "GEN", "ITERATION", "AGE", "DIRECTORY")


def render_list(found: ChainList) -> str:
    """One line per chain under a head; what could not be read after them."""
    now = parse_time(found.read_at)
    rows = [_HEAD, *(_cells(chain, now.timestamp() if now else 0.0) for chain in found.chains)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    if not found.chains:
        lines = ["no chains" if not found.hidden else "no chains that have not ended"]
    if found.hidden:
        lines.append(f"{found.hidden} ended, shown with --all")
    if found.no_answer:
        lines.append(f"Slurm could not be read, what only it knows is unknown: {render_safely(found.no_answer)}")
    return "\n".join([*lines, *(f"problem: {render_safely(problem)}" for problem in found.problems)])


def _cells(chain: ListedChain, now: float) -> tuple[str, ...]:
    submitted = parse_time(chain.submitted_at)
    iteration = {None: "-", UNREADABLE: "?"}.get(chain.iteration, str(chain.iteration))
    target = f"/{chain.target_iteration}" if chain.target_iteration is not None else ""
    return (
        render_safely(chain.name),
        chain.verdict.verdict.value if chain.verdict else chain.state.value,
        f"{chain.generation}/{chain.submitted}",
        f"{iteration}{target}",
        render_age(now - submitted.timestamp()) if submitted is not None else "?",
        render_safely(chain.run_directory),
    )
