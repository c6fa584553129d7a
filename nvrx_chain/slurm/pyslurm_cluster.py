"""PySlurm's records of nodes and of accounting. Pure.

Nodes were recorded from a real one; accounting is as PySlurm documents it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nvrx_chain.slurm.array import NO_ARRAY_TASK
from nvrx_chain.slurm.model import AccountedTask, Node
from nvrx_chain.slurm.pyslurm_fields import Record, name_of, number_of, text_of, time_of, user_of
from nvrx_chain.slurm.states import NodeState, parse_job_state, parse_node_state

# What sinfo prints for a node with the flag: busy, else idle. A node that is DOWN stays so here, where sinfo hides it.
_FLAGGED = {
    "DRAIN": (NodeState.DRAINING, NodeState.DRAINED),
    "FAIL": (NodeState.FAILING, NodeState.FAIL),
}
_BUSY = frozenset({NodeState.ALLOCATED, NodeState.MIXED, NodeState.COMPLETING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedNodes:
    """Nodes by name, and what is wrong with the records that name none."""

    nodes: dict[str, Node]
    junk: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedAccounting:
    """The allocations, and what is wrong with the records that are none."""

    tasks: tuple[AccountedTask, ...]
    junk: tuple[str, ...]


def convert_nodes(records: Sequence[object]) -> ConvertedNodes:
    """Nodes by name. A state that is not shown is UNKNOWN, which is not down."""
    nodes: dict[str, Node] = {}
    junk: list[str] = []
    for record in records:
        if not isinstance(record, dict) or not text_of(record, "name"):
            junk.append(f"PySlurm showed a node without a name: {str(record)[:80]!r}")
            continue
        name, raw = text_of(record, "name"), text_of(record, "state")
        state, responding = _node_state(raw)
        nodes[name] = Node(
            name=name, state=state, raw_state=raw, responding=responding, reason=text_of(record, "reason")
        )
    return ConvertedNodes(nodes=nodes, junk=tuple(junk))


def _node_state(raw: str) -> tuple[NodeState, bool]:
    state, responding = parse_node_state(raw)
    for flag in raw.upper().split("+")[1:]:
        if flag in _FLAGGED and state is not NodeState.DOWN:
            busy, idle = _FLAGGED[flag]
            return (busy if state in _BUSY else idle), responding
    return state, responding


def convert_accounting(records: Sequence[object]) -> ConvertedAccounting:
    """Allocations with the exit codes of their ended numbered steps.

    Task 0 has no index here either: an allocation without one is task 0 when it had nodes and started. The exit codes
    are whole, where sacct of 22.05 and 24.11 cuts their highest bit off.
    """
    tasks: list[AccountedTask] = []
    junk: list[str] = []
    for record in records:
        if not isinstance(record, dict) or not number_of(record, "id"):
            junk.append(f"PySlurm showed an accounted job without an id: {str(record)[:80]!r}")
            continue
        if number_of(record, "array_id") is None and record.get("array_id", "") is not None:
            junk.append(f"PySlurm did not show of which array job {record['id']} is")
            continue
        tasks.append(_accounted(record))
    return ConvertedAccounting(tasks=tuple(tasks), junk=tuple(junk))


def _accounted(record: Record) -> AccountedTask:
    parsed = parse_job_state(text_of(record, "state"))
    ended = parsed.state.is_terminal
    job_id = number_of(record, "id")
    assert job_id is not None
    return AccountedTask(
        job_id=job_id,
        array_job_id=number_of(record, "array_id") or job_id,
        array_task_id=_accounted_index(record),
        state=parsed.state,
        raw_state=parsed.raw,
        cancelled_by=number_of(record, "cancelled_by"),
        exit_code=number_of(record, "exit_code") if ended else None,
        exit_signal=number_of(record, "exit_code_signal") if ended else None,
        step_exit_codes=_step_exit_codes(record.get("steps")),
        submitted_at=time_of(record, "submit_time"),
        started_at=time_of(record, "start_time"),
        ended_at=time_of(record, "end_time"),
        nodelist=text_of(record, "nodelist"),
        user=user_of(record),
        name=name_of(record),
        work_dir=text_of(record, "working_directory"),
        comment=text_of(record, "comment"),
    )


def _accounted_index(record: Record) -> int | None:
    index = number_of(record, "array_task_id")
    if index is not None:
        return None if index >= NO_ARRAY_TASK else index
    if record.get("array_task_id", "") is not None:
        return None
    return 0 if text_of(record, "nodelist") and time_of(record, "start_time") is not None else None


def _step_exit_codes(steps: object) -> tuple[int, ...]:
    """Of the steps with a number: not of `batch` and `extern`."""
    codes: list[int] = []
    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, dict) or not str(step.get("id", "")).isdigit():
            continue
        code = number_of(step, "exit_code")
        if code is not None and parse_job_state(text_of(step, "state")).state.is_terminal:
            codes.append(code)
    return tuple(codes)
