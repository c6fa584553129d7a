"""What PySlurm would show of a FakeSlurm, with the traps that were recorded: the file that fake_pyslurm reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nvrx_chain.slurm.array import render_array_spec
from nvrx_chain.slurm.nodelist import fold_nodes
from tests.fakes.fake_controller import FakeController, FakeNode, FakeTask
from tests.fakes.fake_slurm import FakeSlurm

_UIDS = {"alice": 1001, "bob": 1002}
_NO_DEPENDENCY = {
    "after": [],
    "afterany": [],
    "afterburstbuffer": [],
    "aftercorr": [],
    "afternotok": [],
    "afterok": [],
    "satisfy": "all",
    # Also of a job that was submitted with it.
    "singleton": False,
}


def pyslurm_world(slurm: FakeSlurm, faults: Mapping[str, str] | None = None) -> dict[str, Any]:
    controller = slurm.settled()
    return {
        "jobs": {str(record["id"]): record for record in _jobs(controller)},
        "nodes": {node.name: _node(node, controller) for node in controller.nodes.values()},
        "accounting": _accounting(controller) if slurm.config_now().accounting else None,
        "faults": dict(faults or {}),
    }


def _jobs(controller: FakeController) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for array in controller.arrays.values():
        waiting = array.waiting
        if waiting and array.spec is not None:
            records.append(_job(waiting[0], render_array_spec(task.index for task in waiting)))
        alone = [task for task in array.tasks if task.is_listed and (array.spec is None or task not in waiting)]
        unstarted = [task for task in alone if task.state.is_terminal and not task.nodes and not task.is_rest]
        if unstarted and array.spec is not None:
            # An array that was cancelled whole keeps one record, with the range of what had not started.
            records.append(_job(unstarted[0], render_array_spec(task.index for task in unstarted)))
            alone = [task for task in alone if task not in unstarted]
        records += [_job(task, None) for task in alone]
    return records


def _job(task: FakeTask, waiting: str | None) -> dict[str, Any]:
    array, asked = task.array, task.array.asked
    pending = task.state.is_pending
    depends = pending and array.waits_for_singleton
    limit = asked.time_limit
    has_index = array.spec is not None and waiting is None and not task.is_rest
    return {
        "id": task.job_id,
        "array_id": array.job_id if array.spec is not None else None,
        # 0 is read as "not set".
        "array_task_id": (task.index or None) if has_index else None,
        "array_tasks_waiting": waiting,
        "array_tasks_parallel": array.spec.throttle if array.spec is not None else None,
        "name": asked.job_name,
        "user_id": _UIDS.get(array.user),
        "user_name": array.user,
        "state": task.state.value,
        "state_reason": task.reason,
        "dependencies": dict(_NO_DEPENDENCY) if depends else None,
        "allocated_nodes": fold_nodes(task.nodes) or None,
        "batch_host": task.nodes[0] if task.nodes else None,
        "partition": asked.partition,
        "comment": asked.comment or None,
        "working_directory": asked.chdir,
        "command": asked.script[0] if asked.script else None,
        "time_limit": None if limit is None else limit // 60,
        "submit_time": _epoch(array.submitted_at),
        # Of a task that was cancelled before it started it is when that was.
        "start_time": _epoch(task.started_at or task.ended_at),
        "end_time": _epoch(task.ended_at),
        "exit_code": task.exit_code or 0,
        "exit_code_signal": task.exit_signal or 0,
        "is_requeueable": asked.requeue,
        "requeue_count": 0,
    }


def _accounting(controller: FakeController) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for array in controller.arrays.values():
        never_ran = [task for task in array.tasks if task.state.is_terminal and not task.nodes]
        for task in array.tasks:
            if task.state.is_pending or task in never_ran[1:]:
                continue
            record = _job(task, None)
            rows.append(
                {
                    **record,
                    "array_task_id": None if task in never_ran else record["array_task_id"],
                    "nodelist": record["allocated_nodes"],
                    "cancelled_by": None,
                    "steps": {
                        str(number): {"id": number, "state": "FAILED" if code else "COMPLETED", "exit_code": code}
                        for number, code in enumerate(task.step_exit_codes)
                    },
                }
            )
    return rows


def _node(node: FakeNode, controller: FakeController) -> dict[str, Any]:
    busy = any(node.name in task.nodes and not task.state.is_terminal for task in controller.tasks())
    state = "ALLOCATED" if busy and node.state.value == "IDLE" else node.state.value
    flags = "" if node.responding else "+NOT_RESPONDING"
    return {"name": node.name, "state": f"{state}{flags}", "reason": node.reason or None}


def _epoch(instant: datetime | None) -> int | None:
    return None if instant is None else int(instant.timestamp())
