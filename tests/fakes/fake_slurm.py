"""A Slurm with a memory on a fake clock, behind the SlurmClient contract. What it imitates: see fake_controller.py.

A test drives it by `finish`, `ignore_term`, `lose_node` and the like, makes calls fail by `script` and `always`, and
counts what was asked by `asked`. Nothing happens but at a call: `task` and every method look at the clock first.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import (
    AccountedTask,
    ClusterConfig,
    JobDetail,
    Node,
    Partition,
    QueuedTask,
    QueueReading,
    Submitted,
)
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_chain.slurm.states import JobState, NodeState
from tests.fakes.fake_controller import FakeController, FakeNode, FakeTask, Limits

_T = TypeVar("_T")


class Act(enum.Enum):
    """Outcomes of a call that are no error."""

    NORMAL = "as usual"
    IGNORED = "says yes and does nothing; a submit gives out an id that the next submit gets too"


@dataclass(frozen=True)
class AfterDoing:
    """Do what was asked, then raise: "Socket timed out" although the job was queued."""

    error: Exception


Outcome = Act | AfterDoing | Exception | Unobserved


@dataclass(frozen=True)
class Call:
    """One call of a client method, e.g. Call("cancel", (("7_0",), False))."""

    operation: str
    arguments: tuple[object, ...]


_WHILE_BUSY = {NodeState.IDLE: NodeState.ALLOCATED, NodeState.DRAINED: NodeState.DRAINING}
_NODES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8")


class FakeSlurm(SlurmClient):
    """One partition `main` of exclusive nodes. `user` is who submits, cancels and asks.

    `stores_comments`: whether accounting keeps comments, which it does not by default.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        nodes: Sequence[str] = _NODES,
        user: str = "alice",
        uid: int = 1001,
        accounting: bool = True,
        gpus_per_node: int | None = 8,
        limits: Limits | None = None,
        first_job_id: int = 1,
    ) -> None:
        self.calls: list[Call] = []
        self.user = user
        self.stores_comments = False
        self._uid = uid
        self._clock = clock
        self._accounting = accounting
        self._gpus_per_node = gpus_per_node
        self._controller = FakeController(clock, limits or Limits(), nodes, first_job_id)
        self._scripted: dict[str, list[Outcome]] = {}
        self._standing: dict[str, Outcome] = {}

    # What a test does to it.

    def script(self, operation: str, *outcomes: Outcome) -> None:
        """What the next calls of a method do, one outcome a call: then as usual again."""
        self._scripted.setdefault(operation, []).extend(outcomes)

    def always(self, operation: str, outcome: Outcome) -> None:
        """What every call of a method does that `script` says nothing about; Act.NORMAL ends it."""
        self._standing[operation] = outcome

    def asked(self, operation: str) -> list[Call]:
        """The calls of one method so far."""
        return [call for call in self.calls if call.operation == operation]

    def submit_as(self, user: str, argv: Sequence[str]) -> int:
        """Submit for somebody else, unrecorded and never failing by script. Returns the array job id."""
        array = self._controller.submit(user, argv)
        self._controller.settle()
        return array.job_id

    def task(self, spec: str) -> QueuedTask:
        """The truth about one task, whatever the reads are scripted to say."""
        self._controller.settle()
        return self._row(self._controller.find(spec))

    def finish(self, spec: str, exit_code: int = 0, *, signal: int = 0, step_exit_codes: Iterable[int] = ()) -> None:
        """A running task's batch script ends."""
        self._controller.settle()
        task = self._controller.find(spec)
        if not task.is_live:
            raise AssertionError(f"{spec} does not run, it is {task.state.value}")
        task.step_exit_codes = tuple(step_exit_codes)
        state = JobState.FAILED if exit_code or signal else JobState.COMPLETED
        self._controller.end(task, state, exit_code, signal)
        self._controller.settle()

    def ignore_term(self, spec: str) -> None:
        """When cancelled, the task stays COMPLETING until KillWait is over."""
        self._controller.find(spec).ignores_term = True

    def force_state(self, spec: str, state: JobState) -> None:
        """Put a task into a state that nothing here leads to, such as SUSPENDED or UNKNOWN."""
        self._controller.find(spec).state = state

    def lose_node(self, name: str) -> None:
        """Power loss or a cut cable: Slurm goes on believing in the node until it notices, or is nudged."""
        self._controller.lose_node(name)

    def restore_node(self, name: str) -> None:
        """The node answers again; what ran on it and was not yet given up still runs."""
        self._controller.nodes[name] = FakeNode(name)
        self._controller.settle()

    def set_down(self, name: str, reason: str = "set by the operator") -> None:
        """An operator sets the node down: its tasks are NODE_FAIL at once."""
        self._controller.fail_node(self._controller.nodes[name], reason)
        self._controller.settle()

    def settled(self) -> FakeController:
        """The memory behind it, up to date: for a fake of another way to ask."""
        self._controller.settle()
        return self._controller

    def config_now(self) -> ClusterConfig:
        """The configuration, whatever the reads are scripted to say."""
        limits = self._controller.limits
        return ClusterConfig(
            cluster_name="fake",
            version="22.05.8",
            max_array_size=limits.max_array_size,
            kill_wait_seconds=limits.kill_wait_seconds,
            slurmd_timeout_seconds=limits.slurmd_timeout_seconds,
            min_job_age_seconds=limits.min_job_age_seconds,
            preempt_mode="OFF",
            accounting=self._accounting,
        )

    def drain(self, name: str, reason: str = "bad disk", by: str = "root") -> None:
        """An operator wants the node back: what runs there goes on, nothing new starts. `restore_node` undoes it."""
        node = self._controller.nodes[name]
        node.state, node.reason, node.reason_by, node.reason_at = NodeState.DRAINED, reason, by, self._clock.now()

    # SlurmClient.

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        def look() -> QueueReading:
            rows = [self._row(task) for task in self._listed() if user in (None, task.array.user)]
            return QueueReading(tasks=tuple(rows), read_at=self._clock.now())

        return self._read("queue", (user,), look)

    def accounting(self, array_job_ids: Sequence[int], since: datetime) -> tuple[AccountedTask, ...] | Unobserved:
        def look() -> tuple[AccountedTask, ...] | Unobserved:
            if array_job_ids and not self._accounting:
                return Unobserved("sacct failed with 1: Slurm accounting storage is disabled")
            return tuple(
                self._accounted(task)
                for array in self._controller.arrays.values()
                if array.job_id in array_job_ids and array.submitted_at >= since
                for task in array.tasks
                if not task.state.is_pending and not self._is_folded_away(task)
            )

        return self._read("accounting", (tuple(array_job_ids), since), look)

    def show_job(self, job_id: int) -> tuple[JobDetail, ...] | Unobserved | None:
        def look() -> tuple[JobDetail, ...] | None:
            found = [task for task in self._listed() if job_id in (task.job_id, task.array.job_id)]
            shown = [task for task in found if task not in task.array.waiting[1:]]
            return tuple(self._detail(task) for task in shown) or None

        return self._read("show_job", (job_id,), look)

    def batch_script(self, job_id: int) -> str | Unobserved | None:
        def look() -> str | None:
            found = [task for task in self._listed() if job_id in (task.job_id, task.array.job_id)]
            return Path(found[0].array.asked.script[0]).read_text() if found else None

        return self._read("batch_script", (job_id,), look)

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        def look() -> Mapping[str, Node]:
            known = self._controller.nodes
            return {name: self._node(known[name]) for name in names or known if name in known}

        return self._read("nodes", (tuple(names),), look)

    def config(self) -> ClusterConfig | Unobserved:
        return self._read("config", (), self.config_now)

    def partitions(self) -> tuple[Partition, ...] | Unobserved:
        def look() -> tuple[Partition, ...]:
            return (
                Partition(
                    name="main",
                    is_default=True,
                    available=True,
                    max_time_seconds=None,
                    node_count=len(self._controller.nodes),
                    gpus_per_node=self._gpus_per_node,
                    nodelist=fold_nodes(self._controller.nodes),
                ),
            )

        return self._read("partitions", (), look)

    def submit(self, argv: Sequence[str]) -> Submitted:
        outcome = self._outcome("submit", (tuple(argv),))
        if isinstance(outcome, Exception):
            raise outcome
        array = self._controller.submit(self.user, argv)
        if outcome is Act.IGNORED:
            self._controller.forget(array)
        self._controller.settle()
        if isinstance(outcome, AfterDoing):
            raise outcome.error
        return Submitted(array_job_id=array.job_id, cluster=None, warnings="")

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        def act() -> None:
            for array, task in self._controller.named(specs):
                self._controller.cancel(array, task, pending_only=pending_only, uid=self._uid)

        self._write("cancel", (tuple(specs), pending_only), act)

    def nudge(self, spec: str) -> None:
        def act() -> None:
            for array, task in self._controller.named([spec]):
                for one in array.tasks if task is None else [task]:
                    self._controller.nudge(one)

        self._write("nudge", (spec,), act)

    def hold(self, specs: Sequence[str]) -> None:
        self._write("hold", (tuple(specs),), lambda: self._set_held(specs, held=True))

    def exclude(self, spec: str, nodes: Sequence[str]) -> None:
        def act() -> None:
            for array, one in self._controller.named([spec]):
                for task in array.tasks if one is None else [one]:
                    if task.state.is_pending:
                        task.excluded = tuple(nodes)

        self._write("exclude", (spec, tuple(nodes)), act)

    def release(self, specs: Sequence[str]) -> None:
        self._write("release", (tuple(specs),), lambda: self._set_held(specs, held=False))

    # How a call is recorded and made to fail.

    def _outcome(self, operation: str, arguments: tuple[object, ...]) -> Outcome:
        self.calls.append(Call(operation, arguments))
        self._controller.settle()
        scripted = self._scripted.get(operation)
        return scripted.pop(0) if scripted else self._standing.get(operation, Act.NORMAL)

    def _read(self, operation: str, arguments: tuple[object, ...], look: Callable[[], _T]) -> _T | Unobserved:
        outcome = self._outcome(operation, arguments)
        return outcome if isinstance(outcome, Unobserved) else look()

    def _write(self, operation: str, arguments: tuple[object, ...], act: Callable[[], None]) -> None:
        outcome = self._outcome(operation, arguments)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not Act.IGNORED:
            act()
            self._controller.settle()
        if isinstance(outcome, AfterDoing):
            raise outcome.error

    # How tasks and nodes are shown.

    def _listed(self) -> list[FakeTask]:
        return [task for task in self._controller.tasks() if task.is_listed]

    def _is_folded_away(self, task: FakeTask) -> bool:
        """sacct has one row for all tasks of an array that were cancelled before they started."""
        never_ran = [other for other in task.array.tasks if other.state.is_terminal and not other.nodes]
        return task in never_ran[1:]

    def _set_held(self, specs: Sequence[str], *, held: bool) -> None:
        for array, task in self._controller.named(specs):
            self._controller.set_held(array, task, held=held)

    def _row(self, task: FakeTask) -> QueuedTask:
        array = task.array
        return QueuedTask(
            job_id=task.job_id,
            array_job_id=array.job_id,
            array_task_id=None if task.is_rest else task.index,
            is_array=array.spec is not None,
            state=task.state,
            raw_state=task.state.value,
            reason=task.reason,
            nodelist=fold_nodes(task.nodes),
            partition=array.asked.partition,
            dependency=self._dependency(task),
            user=array.user,
            submitted_at=array.submitted_at,
            started_at=task.started_at or task.ended_at,
            comment=array.asked.comment,
            name=array.asked.job_name,
            work_dir=array.asked.chdir,
        )

    def _detail(self, task: FakeTask) -> JobDetail:
        row, asked = self._row(task), task.array.asked
        waits = task.state.is_pending and task.job_id == task.array.job_id
        return JobDetail(
            job_id=row.job_id,
            array_job_id=row.array_job_id,
            array_task_id=None if waits and task.array.spec is not None else row.array_task_id,
            name=row.name,
            user=row.user,
            state=row.state,
            reason=row.reason,
            dependency=row.dependency,
            requeue=asked.requeue,
            restarts=0,
            exit_code=task.exit_code,
            exit_signal=task.exit_signal,
            array_task_throttle=task.array.spec.throttle if task.array.spec else None,
            nodelist=row.nodelist,
            batch_host=task.nodes[0] if task.nodes else "",
            comment=row.comment,
            work_dir=asked.chdir,
            command=" ".join(asked.script),
            partition=row.partition,
            time_limit_seconds=asked.time_limit,
            submitted_at=row.submitted_at,
            started_at=row.started_at,
            ended_at=task.ended_at,
            fields={"ExcNodeList": fold_nodes(task.excluded) or "(null)"},
        )

    def _accounted(self, task: FakeTask) -> AccountedTask:
        row = self._row(task)
        state = task.becomes if task.state is JobState.COMPLETING else task.state
        by = task.cancelled_by if state is JobState.CANCELLED else None
        # sacct shows 0:0 for what was cancelled or ran out of time, whatever scontrol shows.
        is_hidden = state in (JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL)
        return AccountedTask(
            job_id=row.job_id,
            array_job_id=row.array_job_id,
            array_task_id=row.array_task_id if task.nodes else None,
            state=state,
            raw_state=state.value if by is None else f"{state.value} by {by}",
            cancelled_by=by,
            exit_code=0 if is_hidden else task.exit_code,
            exit_signal=0 if is_hidden else task.exit_signal,
            step_exit_codes=task.step_exit_codes,
            submitted_at=row.submitted_at,
            started_at=task.started_at,
            ended_at=task.ended_at,
            nodelist=row.nodelist,
            user=row.user,
            name=row.name,
            work_dir=task.array.asked.chdir,
            comment=row.comment if self.stores_comments else "",
        )

    def _dependency(self, task: FakeTask) -> str:
        waits = task.array.waits_for_singleton and task.state.is_pending
        return "singleton(unfulfilled)" if waits else ""

    def _node(self, node: FakeNode) -> Node:
        tasks = self._controller.tasks()
        busy = any(node.name in task.nodes and not task.state.is_terminal for task in tasks)
        state = _WHILE_BUSY.get(node.state, node.state) if busy else node.state
        return Node(
            name=node.name,
            state=state,
            raw_state=state.value.lower() + ("" if node.responding else "*"),
            responding=node.responding,
            reason=node.reason,
            reason_by=node.reason_by,
            reason_at=node.reason_at,
        )
