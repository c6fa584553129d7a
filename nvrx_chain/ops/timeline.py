"""What `nvrx-chain status --timeline` says: how long each step of each recovery took, as values with a JSON form.

Docs: docs/cli.md lists the fields. Touches: the marks and the cycle facts of the generations, reads only.
"""

from __future__ import annotations

import msgspec

from nvrx_chain.clock import format_epoch
from nvrx_chain.errors import Unobserved
from nvrx_chain.ops.chain import OpenChain
from nvrx_chain.records.cycle_info import CycleEnd, CycleFacts, parse_facts_name
from nvrx_chain.records.files import list_names, read_record
from nvrx_chain.records.layout import GenerationDirectory
from nvrx_chain.records.marks import read_marks
from nvrx_chain.records.recovery import Recovery, fold_marks


class CycleRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """How a generation came to train in one of its cycles. `after_seconds`: step -> seconds after the failure.

    A step that nobody noted is not there. `approximate_steps`: those for which the clocks of two nodes were compared.
    `cause`: why the cycle before ended; of the first cycle, that it is the start.
    """

    array_job_id: int
    cycle_number: int
    failed_at: str
    cause: str
    after_seconds: dict[str, float]
    approximate_steps: tuple[str, ...]
    is_recovered: bool
    recovered_iteration: int | None
    active_launchers: int


class ChainTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The recoveries of a chain, in order, and what of them could not be read."""

    schema: int = 1
    chain_id: str
    run_directory: str
    recoveries: tuple[CycleRecovery, ...]
    problems: tuple[str, ...]


def survey_timeline(chain: OpenChain, array_job_id: int | None) -> ChainTimeline:
    """The recoveries of one generation, or of all of them. Slurm is not asked."""
    problems: list[str] = []
    recoveries: list[CycleRecovery] = []
    for submitted in chain.files.generations():
        if array_job_id in (None, submitted.array_job_id):
            recoveries += _of_generation(
                chain.directory.generation(submitted.array_job_id), chain.manifest.uid, problems
            )
    return ChainTimeline(
        chain_id=chain.manifest.chain_id,
        run_directory=str(chain.directory.path),
        recoveries=tuple(recoveries),
        problems=tuple(problems),
    )


def _of_generation(directory: GenerationDirectory, uid: int, problems: list[str]) -> list[CycleRecovery]:
    found = read_marks(directory.timeline, owner_uid=uid)
    if found is None:
        return []
    marks, unread = found
    problems += unread
    ends = _read_ends(directory, uid, problems)
    return [_describe(directory.array_job_id, recovery, ends) for recovery in fold_marks(marks)]


def _read_ends(directory: GenerationDirectory, uid: int, problems: list[str]) -> dict[int, CycleEnd]:
    """Why each cycle ended, as far as it is on record; of the newest attempt."""
    names = list_names(directory.cycle_infos)
    if names is None or isinstance(names, Unobserved):
        return {}
    keys = sorted((key, name) for name in names if (key := parse_facts_name(name)) is not None)
    ends: dict[int, CycleEnd] = {}
    for (_, cycle), name in keys:
        record = read_record(directory.cycle_infos / name, CycleFacts, owner_uid=uid)
        if isinstance(record, Unobserved):
            problems.append(record.reason)
        elif record is not None and record.end is not None:
            ends[cycle] = record.end
    return ends


def _describe(array_job_id: int, recovery: Recovery, ends: dict[int, CycleEnd]) -> CycleRecovery:
    return CycleRecovery(
        array_job_id=array_job_id,
        cycle_number=recovery.cycle,
        failed_at=format_epoch(recovery.began_at),
        cause=_describe_cause(recovery, ends.get(recovery.cycle - 1)),
        after_seconds={name.value: round(seconds, 6) for name, seconds in recovery.seconds.items()},
        approximate_steps=tuple(name.value for name in recovery.approximate),
        is_recovered=recovery.is_recovered,
        recovered_iteration=recovery.iteration,
        active_launchers=recovery.launchers,
    )


def _describe_cause(recovery: Recovery, end: CycleEnd | None) -> str:
    if recovery.cycle == 0:
        return "start"
    if end is None:
        rank = "" if recovery.rank is None else f"rank {recovery.rank} "
        return f"{rank}on {recovery.node}" + (f": {recovery.detail}" if recovery.detail else "")
    parts = [end.reason]
    parts += [] if end.rank is None else [f"rank {end.rank}"]
    parts += [f"on {end.node}"] if end.node else []
    parts += [end.signal] if end.signal else []
    parts += [] if end.exit_code is None else [f"exit code {end.exit_code}"]
    parts += [f"in section {end.section}"] if end.section else []
    return " ".join(parts) + (f": {end.detail}" if end.detail else "")
