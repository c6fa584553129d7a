"""What Slurm says, as values: one dataclass per kind of answer. Pure vocabulary, nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from nvrx_chain.slurm.states import JobState, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """One row of squeue: one array task (a job that is no array is its own task 0 with `is_array` False).

    `array_task_id` is None for a row that stands for several tasks that could not be told apart (a list that
    Slurm cut short, the rest of an array that was cancelled before it started): "at least one task, more unknown".
    Times are aware UTC, None when Slurm has none (yet).
    """

    job_id: int
    array_job_id: int
    array_task_id: int | None
    is_array: bool
    state: JobState
    raw_state: str
    reason: str
    nodelist: str
    partition: str
    dependency: str
    user: str
    submitted_at: datetime | None
    started_at: datetime | None
    comment: str
    name: str
    work_dir: str = ""

    @property
    def spec(self) -> str:
        """The words that name exactly this task to scancel and scontrol, e.g. `123_4`."""
        if not self.is_array or self.array_task_id is None:
            return str(self.job_id)
        return f"{self.array_job_id}_{self.array_task_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """A queue that was shown. Ended tasks stay listed for MinJobAge; absence proves nothing by itself.

    `unparsed`: what was shown and is no task that we understand; the reading may be partial. Of squeue it may also be
    the rest of somebody's job name with a newline in it, so nothing is decided by it.
    """

    tasks: tuple[QueuedTask, ...]
    read_at: datetime
    unparsed: tuple[str, ...] = ()

    def of(self, array_job_id: int) -> tuple[QueuedTask, ...]:
        """The tasks of one array job, in the order of their index (unknown indices last)."""
        rows = [task for task in self.tasks if task.array_job_id == array_job_id]
        return tuple(sorted(rows, key=lambda t: (t.array_task_id is None, t.array_task_id or 0)))

    def task(self, array_job_id: int, array_task_id: int) -> QueuedTask | None:
        """The row of one array task; a live row wins over an ended one of the same index."""
        rows = [t for t in self.of(array_job_id) if t.array_task_id == array_task_id]
        rows.sort(key=lambda t: t.state.is_terminal)
        return rows[0] if rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedTask:
    """One sacct row of an allocation, with the exit codes of its ended numbered steps (srun's).

    `array_task_id` is None for the waiting or cancelled rest of an array, which 22.05 shows under its first range or
    under the bare id: never a task that ran. `exit_code` and `exit_signal` are the printed numbers, None before the
    end and where sacct left them empty. sacct of 22.05 and 24.11 cuts the highest bit off codes (221 is shown as 93,
    143 as 15), and shows 0 for CANCELLED and TIMEOUT of any version: the state comes first. `comment` is empty unless
    the site stores it (AccountingStoreFlags=job_comment).
    """

    job_id: int | None
    array_job_id: int
    array_task_id: int | None
    state: JobState
    raw_state: str
    cancelled_by: int | None
    exit_code: int | None
    exit_signal: int | None
    step_exit_codes: tuple[int, ...]
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    nodelist: str
    user: str
    name: str
    work_dir: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """One record of `scontrol show job`. `fields` holds every key as Slurm printed it.

    A job that is no array is its own task 0. `array_task_id` is None for the rest of an array: waiting (its list is
    in `fields["ArrayTaskId"]`) or cancelled before it started. The exit code is None until the job has ended.
    """

    job_id: int
    array_job_id: int
    array_task_id: int | None
    name: str
    user: str
    state: JobState
    reason: str
    dependency: str
    requeue: bool | None
    restarts: int
    exit_code: int | None
    exit_signal: int | None
    array_task_throttle: int | None
    nodelist: str
    batch_host: str
    comment: str
    work_dir: str
    command: str
    partition: str
    time_limit_seconds: int | None
    submitted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    fields: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo shows it. `reason_by` set the reason at `reason_at`; empty and None when nobody did."""

    name: str
    state: NodeState
    raw_state: str
    responding: bool
    reason: str
    reason_by: str = ""
    reason_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What a chain depends on in `scontrol show config`. Durations in seconds, None when not shown.

    `fields` holds every key as Slurm printed it.
    """

    cluster_name: str
    version: str
    max_array_size: int | None
    kill_wait_seconds: int | None
    slurmd_timeout_seconds: int | None
    min_job_age_seconds: int | None
    preempt_mode: str
    accounting: bool
    fields: Mapping[str, str] = field(default_factory=dict, compare=False)
    max_job_count: int | None = None
    enforce: str = ""

    @property
    def enforces_limits(self) -> bool:
        """Whether limits of associations and QOS hold (AccountingStorageEnforce)."""
        return bool({"all", "limits", "safe", "1"}.intersection(self.enforce.lower().split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationLimit:
    """One association of a user. `partition` is empty where it holds for all; `max_submit` None is no limit."""

    account: str
    partition: str
    default_qos: str
    max_submit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLimits:
    """How many jobs, array tasks counted one by one, may be in the queue at once."""

    associations: tuple[AssociationLimit, ...]
    by_qos: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition. `max_time_seconds` None is no limit; `gpus_per_node` None is "sinfo did not say".

    `fields` holds every key as Slurm printed it.
    """

    name: str
    is_default: bool
    available: bool
    max_time_seconds: int | None
    node_count: int
    gpus_per_node: int | None
    fields: Mapping[str, str] = field(default_factory=dict, compare=False)
    nodelist: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """sbatch took the job. `cluster` is set when sbatch named one."""

    array_job_id: int
    cluster: str | None
    warnings: str
