"""The memory behind FakeSlurm: jobs, tasks and nodes, and what a controller does with them as time passes.

What it imitates on purpose, as measured on a real one: singleton does not wait for COMPLETING tasks, nor does the
throttle of an array count them; a lost node stays unnoticed until two thirds of SlurmdTimeout, or a nudge; what is
cancelled on a lost node stays COMPLETING; a task keeps a fresh id, the last to start that of the array.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SlurmError
from nvrx_chain.slurm.array import ArraySpec, is_task_spec, parse_array_spec
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.slurm.parse.values import parse_duration
from nvrx_chain.slurm.states import JobState, NodeState

_NUDGE_NOTICED_SECONDS = 12.0


@dataclass(eq=False)
class FakeArray:
    """One submission. `spec` None is a job that is no array; `waits_for_singleton` until it first may start."""

    job_id: int
    user: str
    submitted_at: datetime
    spec: ArraySpec | None
    asked: argparse.Namespace
    waits_for_singleton: bool
    tasks: list[FakeTask] = field(default_factory=list)
    was_split: bool = False

    @property
    def waiting(self) -> list[FakeTask]:
        """The tasks that have no record of their own yet."""
        return [task for task in self.tasks if task.state.is_pending and task.job_id == self.job_id]


@dataclass(eq=False)
class FakeTask:
    """One array task. `started`, `ended` and `killed_at` are readings of the monotonic clock."""

    array: FakeArray
    index: int
    job_id: int
    state: JobState = JobState.PENDING
    reason: str = "None"
    held: bool = False
    nodes: tuple[str, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    step_exit_codes: tuple[int, ...] = ()
    cancelled_by: int | None = None
    ignores_term: bool = False
    started: float = 0.0
    ended: float = 0.0
    killed_at: float = 0.0
    becomes: JobState = JobState.CANCELLED
    is_rest: bool = False
    is_listed: bool = True
    excluded: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """It runs, in Slurm's eyes: a COMPLETING task holds its nodes, but neither singleton nor throttle."""
        return not (self.state.is_terminal or self.state.is_pending or self.state is JobState.COMPLETING)


@dataclass(eq=False)
class FakeNode:
    """One node. Lost from when `given_up_at` is set; noticed by Slurm at `noticed_at`, or earlier after a nudge."""

    name: str
    state: NodeState = NodeState.IDLE
    responding: bool = True
    reason: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None
    noticed_at: float | None = None
    given_up_at: float | None = None

    @property
    def is_lost(self) -> bool:
        return self.given_up_at is not None or self.state is NodeState.DOWN

    @property
    def takes_jobs(self) -> bool:
        return not (self.is_lost or self.state is NodeState.DRAINED)


@dataclass(kw_only=True)
class Limits:
    """The settings of the cluster that a chain depends on. Durations in seconds."""

    kill_wait_seconds: int = 30
    slurmd_timeout_seconds: int = 300
    min_job_age_seconds: int = 300
    max_array_size: int = 1001


class FakeController:
    """Everything happens in `settle`, which brings the jobs and nodes up to the clock."""

    def __init__(self, clock: Clock, limits: Limits, nodes: Iterable[str], first_job_id: int) -> None:
        self.limits = limits
        self.nodes = {name: FakeNode(name) for name in nodes}
        self.arrays: dict[int, FakeArray] = {}
        self._clock = clock
        self._next_job_id = first_job_id

    def tasks(self) -> list[FakeTask]:
        return [task for array in self.arrays.values() for task in array.tasks]

    def find(self, spec: str) -> FakeTask:
        """The task of `123_4`, or of a plain job `123`. Raises KeyError or StopIteration for none."""
        array_job_id, _, index = spec.partition("_")
        return next(task for task in self.arrays[int(array_job_id)].tasks if task.index == int(index or 0))

    def named(self, specs: Sequence[str]) -> list[tuple[FakeArray, FakeTask | None]]:
        """What the specs name, None for all of an array; what is not there is left out."""
        found: list[tuple[FakeArray, FakeTask | None]] = []
        for spec in specs:
            if not is_task_spec(spec):
                raise SlurmError("name a job to Slurm", part=f"{spec!r} is no job id")
            number, _, wanted = spec.partition("_")
            array = self.arrays.get(int(number))
            if array is None:
                found += [(task.array, task) for task in self.tasks() if task.job_id == int(number)]
                continue
            if not wanted:
                found.append((array, None))
                continue
            indices = parse_array_spec(wanted)
            found += [(array, task) for task in array.tasks if indices and task.index in indices.indices]
        return found

    def submit(self, user: str, argv: Sequence[str]) -> FakeArray:
        asked = _parse_sbatch(argv)
        spec = parse_array_spec(asked.array) if asked.array is not None else None
        if spec is not None and not (spec.complete and max(spec.indices) < self.limits.max_array_size):
            refusal = "sbatch: error: Batch job submission failed: Invalid job array specification"
            raise SlurmError("submit a job", part=refusal)
        array = FakeArray(
            job_id=self._take_job_id(),
            user=user,
            submitted_at=self._clock.now().replace(microsecond=0),
            spec=spec,
            asked=asked,
            waits_for_singleton="singleton" in (asked.dependency or ""),
        )
        indices = (0,) if spec is None else spec.indices
        array.tasks = [
            FakeTask(array, index, array.job_id, held=asked.hold, excluded=expand_nodes(asked.exclude or ""))
            for index in indices
        ]
        self.arrays[array.job_id] = array
        return array

    def forget(self, array: FakeArray) -> None:
        """As after an unclean death of slurmctld: the job is not there, and its id is given out again."""
        del self.arrays[array.job_id]
        self._next_job_id = array.job_id

    def cancel(self, array: FakeArray, one: FakeTask | None, *, pending_only: bool, uid: int) -> None:
        unsplit = array.waiting if len(array.waiting) > 1 else []
        if one is None:
            self._fold_rest(array, unsplit)
        elif one in unsplit:
            # Slurm forgets a waiting task that was cancelled alone.
            one.is_listed = False
        for task in array.tasks if one is None else [one]:
            if task.state.is_terminal or task.state is JobState.COMPLETING:
                continue
            if task.state.is_pending:
                task.cancelled_by = uid
                self.end(task, JobState.CANCELLED, 0, 0)
            elif not pending_only:
                task.cancelled_by = uid
                self._terminate(task, JobState.CANCELLED)

    def set_held(self, array: FakeArray, one: FakeTask | None, *, held: bool) -> None:
        for task in array.tasks if one is None else [one]:
            if not task.state.is_pending:
                continue
            task.held = held
            if one is not None:
                self._split(task)

    def nudge(self, task: FakeTask) -> None:
        for name in task.nodes:
            node = self.nodes[name]
            if node.noticed_at is not None:
                node.noticed_at = min(node.noticed_at, self._clock.monotonic() + _NUDGE_NOTICED_SECONDS)

    def lose_node(self, name: str) -> None:
        now = self._clock.monotonic()
        self.nodes[name].noticed_at = now + self.limits.slurmd_timeout_seconds * 2 / 3
        self.nodes[name].given_up_at = now + self.limits.slurmd_timeout_seconds

    def fail_node(self, node: FakeNode, reason: str) -> None:
        if node.state is NodeState.DOWN:
            return
        node.state, node.reason = NodeState.DOWN, reason
        for task in self.tasks():
            if node.name in task.nodes and not task.state.is_terminal:
                was_cancelled = task.state is JobState.COMPLETING
                self.end(task, task.becomes if was_cancelled else JobState.NODE_FAIL, 0, 0)

    def end(self, task: FakeTask, state: JobState, exit_code: int, signal: int) -> None:
        task.state = state
        task.exit_code, task.exit_signal = exit_code, signal
        task.ended_at = self._clock.now().replace(microsecond=0)
        task.ended = self._clock.monotonic()

    def settle(self) -> None:
        now = self._clock.monotonic()
        for node in self.nodes.values():
            if node.noticed_at is not None and now >= node.noticed_at:
                node.responding = False
            if node.given_up_at is not None and now >= node.given_up_at:
                self.fail_node(node, "Not responding")
        for task in self.tasks():
            self._age(task, now)
        self._start_waiting()

    def _age(self, task: FakeTask, now: float) -> None:
        limit = task.array.asked.time_limit
        if task.is_live and limit is not None and now - task.started >= limit:
            self._terminate(task, JobState.TIMEOUT)
        if task.state is JobState.COMPLETING and now >= task.killed_at and not self._is_lost(task):
            self.end(task, task.becomes, 0, 9)
        if task.state.is_terminal and now - task.ended > self.limits.min_job_age_seconds:
            task.is_listed = False

    def _start_waiting(self) -> None:
        """One pass of the scheduler, in the order of job ids."""
        tasks = self.tasks()
        busy = {name for task in tasks if not task.state.is_terminal for name in task.nodes}
        free = [name for name, node in self.nodes.items() if node.takes_jobs and name not in busy]
        looked_at: set[int] = set()
        waiting = [task for task in tasks if task.state.is_pending]
        for task in sorted(waiting, key=lambda each: (each.job_id, each.index)):
            array = task.array
            if array.waits_for_singleton and array.job_id not in looked_at:
                looked_at.add(array.job_id)
                array.waits_for_singleton = self._is_blocked(array)
            usable = [name for name in free if name not in task.excluded]
            task.reason = self._reason_to_wait(task, len(usable))
            if task.reason == "None":
                chosen = tuple(usable[: array.asked.nodes])
                self._start(task, chosen)
                free = [name for name in free if name not in chosen]

    def _reason_to_wait(self, task: FakeTask, free_nodes: int) -> str:
        array = task.array
        throttle = array.spec.throttle if array.spec is not None else None
        if task.held:
            return "JobHeldUser"
        if array.waits_for_singleton:
            return "Dependency"
        if throttle is not None and sum(other.is_live for other in array.tasks) >= throttle:
            return "JobArrayTaskLimit"
        return "Resources" if free_nodes < array.asked.nodes else "None"

    def _start(self, task: FakeTask, nodes: tuple[str, ...]) -> None:
        self._split(task)
        task.state = JobState.RUNNING
        task.nodes = nodes
        task.started_at = self._clock.now().replace(microsecond=0)
        task.started = self._clock.monotonic()

    def _is_blocked(self, array: FakeArray) -> bool:
        """Another job of this user and name runs, or waits under a smaller id."""
        name = (array.user, array.asked.job_name)
        return any(
            other.is_live or (other.state.is_pending and other.job_id < array.job_id)
            for other in self.tasks()
            if other.array is not array and (other.array.user, other.array.asked.job_name) == name
        )

    def _terminate(self, task: FakeTask, becomes: JobState) -> None:
        """TERM, and KILL after KillWait, which reaches no lost node."""
        task.becomes = becomes
        if task.ignores_term or self._is_lost(task):
            task.state = JobState.COMPLETING
            task.killed_at = self._clock.monotonic() + self.limits.kill_wait_seconds
        else:
            self.end(task, becomes, 0, 15)

    def _is_lost(self, task: FakeTask) -> bool:
        return any(self.nodes[name].is_lost for name in task.nodes)

    def _split(self, task: FakeTask) -> None:
        """Give a task a record of its own; the last one without has the array's."""
        if task.job_id == task.array.job_id and len(task.array.waiting) > 1:
            task.job_id = self._take_job_id()
            task.array.was_split = True

    def _fold_rest(self, array: FakeArray, unsplit: Sequence[FakeTask]) -> None:
        """What is cancelled before it started, after others had: one row, of which no index is known any more."""
        if array.was_split:
            for position, task in enumerate(unsplit):
                task.is_rest = True
                task.is_listed = position == 0

    def _take_job_id(self) -> int:
        self._next_job_id += 1
        return self._next_job_id - 1


def _parse_sbatch(argv: Sequence[str]) -> argparse.Namespace:
    """The options that shape a job. Others must have the form `--name=value` or take no value."""
    parser = argparse.ArgumentParser(prog="sbatch", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--parsable", action="store_true")
    parser.add_argument("--array", "-a")
    parser.add_argument("--job-name", "-J", default="sbatch")
    parser.add_argument("--comment", default="")
    parser.add_argument("--dependency", "-d")
    parser.add_argument("--requeue", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--time", "-t", dest="time_limit", type=_seconds)
    parser.add_argument("--nodes", "-N", type=int, default=1)
    parser.add_argument("--partition", "-p", default="main")
    parser.add_argument("--chdir", "-D", default="/")
    parser.add_argument("--output", "-o")
    parser.add_argument("--exclude", "-x")
    parser.add_argument("--hold", "-H", action="store_true")
    parser.add_argument("script", nargs="*")
    return parser.parse_known_args(list(argv))[0]


def _seconds(text: str) -> int | None:
    """sbatch's time limit: minutes, or a duration with colons."""
    return int(text) * 60 if text.isdigit() else parse_duration(text)
