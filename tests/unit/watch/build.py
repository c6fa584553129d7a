"""Snapshots for the tests of the watcher: a healthy chain by default, and anything else by keyword.

The chain has the shape T=2 H=1 C=2 and depth 3: generation 11 trains on n1 and n2 with its hot spare on n3 and two cold
spares pending, 12 and 13 are queued. Every helper takes overrides by keyword; times are relative to `NOW`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import (
    ChainOutcome,
    Closed,
    Ending,
    GenerationRecord,
    Hold,
    Lease,
    NoRestart,
    Rendezvous,
)
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
    Thresholds,
)
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.model import AccountedTask, Node, QueuedTask
from nvrx_chain.slurm.states import parse_job_state, parse_node_state
from nvrx_watch.memory import Memory, Seen, Value
from nvrx_watch.model import (
    Cycle,
    Generation,
    LogActivity,
    Queue,
    Snapshot,
    SourceReport,
    Subject,
)

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=timezone.utc)
CHAIN_ID = "c0ffee00c0ffee00"
COMMENT = f"nvrx-chain:{CHAIN_ID}"
NAME = "train-7b"
USER = "ann"
UID = 1001
RUN_DIRECTORY = Path("/scratch/a b & #1/run")
TASKS = 5
THROTTLE = 3


def ago(seconds: float) -> datetime:
    """The instant so many seconds before `NOW`."""
    return NOW - timedelta(seconds=seconds)


def ago_text(seconds: float) -> str:
    """The same as the records state it."""
    return format_time(ago(seconds))


def submitted(array_job_id: int) -> datetime:
    """When a generation was submitted: one after the other, a second apart."""
    return ago(10_000 - min(max(array_job_id, 0), 1000))


def shape(**overrides: Any) -> Shape:
    values: dict[str, Any] = {
        "train_tasks": 2,
        "hot_spares": 1,
        "cold_spares": 2,
        "nodes_per_task": 1,
        "gpus_per_node": 8,
        "procs_per_node": 8,
    }
    return Shape(**{**values, **overrides})


def manifest(**overrides: Any) -> ChainManifest:
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "job_name": NAME,
        "user": USER,
        "uid": UID,
        "cluster": "sandbox",
        "run_directory": str(RUN_DIRECTORY),
        "submitted_at": ago_text(10_000),
        "package_version": "0.1.0",
        "interpreter": "/usr/bin/python3",
        "shape": shape(),
        "chain_depth": 3,
        "time_limit_seconds": 86_400,
        "launcher": Launcher(kind=LauncherKind.FT_LAUNCHER, python="/usr/bin/python3", max_restarts=10),
        "workload": ("python", "train.py"),
        "checkpoint_iteration_file": str(RUN_DIRECTORY / "checkpoints" / "latest_checkpointed_iteration.txt"),
        "completion": Completion(kind=CompletionKind.TARGET_ITERATION, target_iteration=1_000_000),
        "thresholds": Thresholds(),
    }
    return ChainManifest(**{**values, **overrides})


def subject(**overrides: Any) -> Subject:
    """A chain of ours. `foreign_subject` for one that nvrx-chain did not submit."""
    values: dict[str, Any] = {
        "key": CHAIN_ID,
        "name": NAME,
        "user": USER,
        "uid": UID,
        "cluster": "sandbox",
        "chain_id": CHAIN_ID,
        "run_directory": RUN_DIRECTORY,
        "manifest": manifest(),
        "max_restarts": 10,
    }
    return Subject(**{**values, **overrides})


def foreign_subject(**overrides: Any) -> Subject:
    """A chain that nvrx-chain did not submit."""
    values: dict[str, Any] = {
        "key": f"{USER}/{NAME}",
        "chain_id": None,
        "run_directory": None,
        "manifest": None,
        "max_restarts": None,
    }
    return subject(**{**values, **overrides})


def row(array_job_id: int, array_task_id: int | None, state: str = "RUNNING", **overrides: Any) -> QueuedTask:
    """One squeue row. A pending one has no node and no start; task k of a running one sits on n<k+1>."""
    parsed = parse_job_state(state)
    pending = parsed.state.is_pending
    index = array_task_id if array_task_id is not None else 0
    values: dict[str, Any] = {
        "job_id": array_job_id * 100 + index,
        "array_job_id": array_job_id,
        "array_task_id": array_task_id,
        "is_array": True,
        "state": parsed.state,
        "raw_state": parsed.raw,
        "reason": "Priority" if pending else "None",
        "nodelist": "" if pending else f"n{index + 1}",
        "partition": "batch",
        "dependency": "",
        "user": USER,
        "submitted_at": submitted(array_job_id),
        "started_at": None if pending else ago(3600),
        "comment": COMMENT,
        "name": NAME,
    }
    return QueuedTask(**{**values, **overrides})


def running_rows(array_job_id: int = 11, **overrides: Any) -> tuple[QueuedTask, ...]:
    """A generation that trains: T + H tasks run, the cold spares wait for a slot."""
    held = tuple(row(array_job_id, task, "RUNNING", **overrides) for task in range(THROTTLE))
    cold = tuple(
        row(array_job_id, task, "PENDING", **{"reason": "JobArrayTaskLimit", **overrides})
        for task in range(THROTTLE, TASKS)
    )
    return held + cold


def queued_rows(array_job_id: int, **overrides: Any) -> tuple[QueuedTask, ...]:
    """A generation that waits for its predecessor."""
    values: dict[str, Any] = {"reason": "Dependency", "dependency": "singleton(unfulfilled)"}
    return tuple(row(array_job_id, task, "PENDING", **{**values, **overrides}) for task in range(TASKS))


def queue(*rows: QueuedTask, **overrides: Any) -> Queue:
    """A reading of these rows, sorted into array jobs; without rows, that of the healthy chain.

    `queue(arrays={})` is an empty reading.
    """
    if not rows:
        rows = running_rows(11) + queued_rows(12) + queued_rows(13)
    arrays: dict[int, tuple[QueuedTask, ...]] = {}
    for one in rows:
        arrays[one.array_job_id] = (*arrays.get(one.array_job_id, ()), one)
    values: dict[str, Any] = {"arrays": arrays, "sees_user": True, "read_at": NOW}
    return Queue(**{**values, **overrides})


def account(array_job_id: int, array_task_id: int | None, state: str = "FAILED", **overrides: Any) -> AccountedTask:
    """One sacct row, of a task that ended 600 s ago unless its state says that it lives."""
    parsed = parse_job_state(state)
    ended = parsed.state.is_terminal
    index = array_task_id if array_task_id is not None else 0
    values: dict[str, Any] = {
        "job_id": array_job_id * 100 + index,
        "array_job_id": array_job_id,
        "array_task_id": array_task_id,
        "state": parsed.state,
        "raw_state": parsed.raw,
        "cancelled_by": parsed.cancelled_by,
        "exit_code": {"COMPLETED": 0, "FAILED": 1}.get(parsed.state.value),
        "exit_signal": 0 if ended else None,
        "step_exit_codes": (),
        "submitted_at": submitted(array_job_id),
        "started_at": None if parsed.state.is_pending else ago(3600),
        "ended_at": ago(600) if ended else None,
        "nodelist": f"n{index + 1}",
        "user": USER,
        "name": NAME,
    }
    return AccountedTask(**{**values, **overrides})


def stamp(array_job_id: int, array_task_id: int = 0) -> dict[str, Any]:
    """The stamp that every control record carries."""
    return {
        "array_job_id": array_job_id,
        "array_task_id": array_task_id,
        "restart_count": 0,
        "host": f"n{array_task_id + 1}",
        "boot_id": "boot",
        "pid": 100 + array_task_id,
        "pid_started_at": 5,
    }


def rendezvous(array_job_id: int, **overrides: Any) -> Rendezvous:
    values: dict[str, Any] = {
        "rendezvous_host": "n1",
        "rendezvous_port": 29_500,
        "nonce": "nonce",
        "secret": "secret",
        "published_at": ago_text(3590),
        "started_at": ago_text(3580),
        "members": (0, 1, 2),
        "present": (0, 1, 2),
    }
    return Rendezvous(**{**stamp(array_job_id), **values, **overrides})


def closed(array_job_id: int, outcome: str = "failed", **overrides: Any) -> Closed:
    values: dict[str, Any] = {
        "outcome": Outcome(outcome),
        "exit_code": 1,
        "closed_by": f"{array_job_id}_0 on n1",
        "closed_at": ago_text(600),
        "evidence": ("the launcher exited with 1",),
    }
    return Closed(**{**stamp(array_job_id), **values, **overrides})


def record(array_job_id: int, outcome: str | None = "failed", **overrides: Any) -> GenerationRecord:
    """How a generation went: an hour from iteration 100 to 200, ended 600 s ago (running when the outcome is None)."""
    ended = outcome is not None
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "started_at": ago_text(4200),
        "launched_at": ago_text(4190),
        "ended_at": ago_text(600) if ended else None,
        "outcome": Outcome(outcome) if outcome is not None else None,
        "exit_code": 1 if ended else None,
        "signalled": False,
        "near_wall": False,
        "iteration_at_start": 100,
        "iteration_at_end": 200 if ended else None,
        "cycles": 1 if ended else None,
        "run_seconds": 3600.0 if ended else None,
    }
    return GenerationRecord(**{**stamp(array_job_id), **values, **overrides})


def no_restart(array_job_id: int, **overrides: Any) -> NoRestart:
    values: dict[str, Any] = {"node": "n1", "exit_code": 93, "cause": "loss is NaN", "written_at": ago_text(600)}
    return NoRestart(**{**stamp(array_job_id), **values, **overrides})


def lease(array_job_id: int, array_task_id: int, counter: int = 700, **overrides: Any) -> Lease:
    values: dict[str, Any] = {"counter": counter, "interval_seconds": 5.0, "phase": "training"}
    return Lease(**{**stamp(array_job_id, array_task_id), **values, **overrides})


def verdict(word: str = "completed", **overrides: Any) -> ChainOutcome:
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "verdict": Verdict(word),
        "array_job_id": 11,
        "by": "11_0 on n1",
        "why": "the target iteration is reached",
        "evidence": (),
        "decided_at": ago_text(600),
    }
    return ChainOutcome(**{**values, **overrides})


def hold(**overrides: Any) -> Hold:
    """A hold by the brake, 600 s old, not released."""
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "by": "brake in 11_0 on n1",
        "why": "2 generations in a row failed within 300 s each",
        "held_at": ago_text(600),
        "array_job_ids": (12, 13),
    }
    return Hold(**{**values, **overrides})


def ending(**overrides: Any) -> Ending:
    """The order that generation 11 is the last, 600 s old."""
    values: dict[str, Any] = {
        "chain_id": CHAIN_ID,
        "array_job_id": 11,
        "by": "ann on login1",
        "why": "the budget is spent",
        "decided_at": ago_text(600),
    }
    return Ending(**{**values, **overrides})


def node(name: str, state: str = "allocated", **overrides: Any) -> Node:
    """One node by the text that sinfo prints, e.g. `down*`."""
    parsed, responding = parse_node_state(state)
    values: dict[str, Any] = {
        "name": name,
        "state": parsed,
        "raw_state": state,
        "responding": responding,
        "reason": "",
    }
    return Node(**{**values, **overrides})


def nodes(*given: Node) -> dict[str, Node]:
    """n1 to n6, allocated and well, but for the nodes that are given."""
    well = [node(f"n{number}") for number in range(1, 7)]
    return {one.name: one for one in (*well, *given)}


def cycle(number: int, **overrides: Any) -> Cycle:
    """A cycle that ended 600 s ago after half an hour. `started=` and `ended=` are seconds before `NOW`."""
    started, ended = overrides.pop("started", 2400), overrides.pop("ended", 600)
    values: dict[str, Any] = {
        "attempt": 0,
        "number": number,
        "started_at": ago(started) if started is not None else None,
        "ended_at": ago(ended) if ended is not None else None,
        "active_nodes": ("n1", "n2"),
        "standby_nodes": ("n3",),
        "log_file": f"/logs/app_cycle{number}.log",
    }
    return Cycle(**{**values, **overrides})


def generation(array_job_id: int, **overrides: Any) -> Generation:
    """A generation that has not started."""
    values: dict[str, Any] = {
        "array_job_id": array_job_id,
        "sequence": array_job_id - 11,
        "submitted_at": submitted(array_job_id),
    }
    return Generation(**{**values, **overrides})


def running_generation(array_job_id: int = 11, **overrides: Any) -> Generation:
    """A generation in its first cycle: published, launched, three leases that move, a log that grows."""
    values: dict[str, Any] = {
        "has_directory": True,
        "rendezvous": rendezvous(array_job_id),
        "record": record(array_job_id, None),
        "leases": {task: lease(array_job_id, task) for task in range(THROTTLE)},
        "joined": frozenset(range(THROTTLE)),
        "cycles": (cycle(0, started=3500, ended=None),),
        "log": LogActivity(bytes=1_000_000, newest="/logs/app_cycle0.log", iteration=150),
    }
    return generation(array_job_id, **{**values, **overrides})


def ended_generation(array_job_id: int, outcome: str = "failed", **overrides: Any) -> Generation:
    """A generation that is over, with its record and closed file."""
    values: dict[str, Any] = {
        "has_directory": True,
        "rendezvous": rendezvous(array_job_id),
        "closed": closed(array_job_id, outcome),
        "record": record(array_job_id, outcome),
        "leases": {0: lease(array_job_id, 0)},
        "joined": frozenset(range(THROTTLE)),
        "left": frozenset(range(THROTTLE)),
        "cycles": (cycle(0),),
    }
    return generation(array_job_id, **{**values, **overrides})


def generations(**by_job: Generation) -> tuple[Generation, ...]:
    """The healthy three; `g11=...` puts another in the place of one, or adds it."""
    found = {11: running_generation(11), 12: generation(12), 13: generation(13)}
    found.update({int(name.removeprefix("g")): one for name, one in by_job.items()})
    return tuple(found[job] for job in sorted(found))


def remember(values: Mapping[str, tuple[Value, float]], changes: int = 0, looks: int = 2) -> Memory:
    """What earlier passes saw: for each name the value and for how many seconds it has been that."""
    return Memory(
        seen={
            name: Seen(value=value, since=ago_text(seconds), looked_at=ago_text(0), changes=changes, looks=looks)
            for name, (value, seconds) in values.items()
        }
    )


def sources(unobserved: Mapping[Any, str] | None = None, notes: Iterable[str] = (), **overrides: Any) -> SourceReport:
    """What answered: everything, but for what is given."""
    return SourceReport(unobserved=dict(unobserved or {}), notes=tuple(notes), **overrides)


def snapshot(**overrides: Any) -> Snapshot:
    """The healthy chain at `NOW`. An `Unobserved` in a field also needs its word in `sources` where that is asked."""
    values: dict[str, Any] = {
        "subject": subject(),
        "taken_at": NOW,
        "generations": generations(),
        "queue": queue(),
        "accounting": {},
        "nodes": nodes(),
        "iteration": 150,
        "verdict": None,
        "hold": None,
        "memory": Memory(),
        "sources": SourceReport(),
        "can_write_run_directory": True,
        "free_bytes": 1 << 40,
        "file_clock_ahead_seconds": None,
    }
    return Snapshot(**{**values, **overrides})


def blind(reason: str = "it did not answer") -> Unobserved:
    """A source that could not be observed."""
    return Unobserved(reason)
