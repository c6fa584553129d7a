"""The rows of the table: each fault, what repaired it, and the price. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvrx_chain.demo.evidence import Evidence, FaultDone, find_resumption
from nvrx_chain.sandbox import FaultKind

NOT_REPAIRED = "not repaired"
NAMES = {FaultKind.KILL_RANK: "a rank killed", FaultKind.KILL_NODE: "the node of task 0 lost"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One row. `seconds` from the fault to the first step and `steps_lost` are None where training did not go on."""

    fault: str
    repaired_by: str
    seconds: float | None = None
    steps_lost: int | None = None


FindRepairs = Callable[[Evidence], tuple[Repair, ...]]


def repairs_of_faults(evidence: Evidence) -> tuple[Repair, ...]:
    """A row for each fault that the demo did."""
    return tuple(
        describe_repair(evidence, f"{NAMES[fault.kind]} ({fault.target})", fault.at, fault.array_job_id)
        for fault in evidence.faults
        if fault.kind in NAMES
    )


def describe_repair(
    evidence: Evidence, fault: str, at: float, array_job_id: int, *, until: float | None = None
) -> Repair:
    """The row of a fault that hit a generation at the moment `at`; `until` as in find_resumption."""
    resumption = find_resumption(evidence, at, until=until)
    if resumption is None:
        return Repair(fault=fault, repaired_by=NOT_REPAIRED)
    if resumption.array_job_id == array_job_id:
        by = "in-job restart cycle"
    else:
        taker = evidence.generation(resumption.array_job_id)
        by = f"hand-off to {taker.label if taker else 'an unknown generation'}"
    return Repair(fault=fault, repaired_by=by, seconds=resumption.seconds, steps_lost=resumption.steps_lost)


def is_repaired(evidence: Evidence, fault: FaultDone) -> bool:
    """Whether a training step was done after the fault."""
    resumption = find_resumption(evidence, fault.at)
    return resumption is not None and resumption.seconds is not None
