"""The small files in `control/` by which the tasks of one generation, their successors and the watcher talk.

One struct per file; docs/protocol.md lists every field with its unit and its writer. All carry the stamp of the
process that wrote them; a reader ignores a file whose `array_job_id` is not that of its directory. Pure vocabulary.
"""

from __future__ import annotations

import msgspec

from nvrx_chain.records.outcome import Outcome, Verdict

SCHEMA = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every file of ours: unknown fields of a later version are ignored, missing ones are an error."""

    schema: int = SCHEMA


class ControlRecord(Record, frozen=True, kw_only=True):
    """The stamp: which generation the file is about, and which process of which task wrote it."""

    array_job_id: int
    array_task_id: int
    restart_count: int
    host: str
    boot_id: str
    pid: int
    pid_started_at: int


class Rendezvous(ControlRecord, frozen=True, kw_only=True):
    """`rendezvous.json`, mode 600: where the launchers meet. `started_at` is None while the generation assembles."""

    rendezvous_host: str
    rendezvous_port: int
    nonce: str
    secret: str
    published_at: str
    started_at: str | None
    members: tuple[int, ...]
    present: tuple[int, ...]
    link_port: int | None = None


class Lease(ControlRecord, frozen=True, kw_only=True):
    """`lease.<k>.json`: alive while `counter` changes. `phase` is for people."""

    counter: int
    interval_seconds: float
    phase: str


class Joined(ControlRecord, frozen=True, kw_only=True):
    """`joined.<k>.json`: this task is at the gate and can see the run directory."""

    nodes: tuple[str, ...]
    joined_at: str


class LauncherExit(ControlRecord, frozen=True, kw_only=True):
    """`launcher_exit.<k>.<node>.json`: the launcher of one node ended and none of its processes is left."""

    node: str
    exit_code: int
    asked_to_stop: bool
    rendezvous_lost: bool
    started_at: str
    ended_at: str


class DrainedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that Slurm is asked to free: Slurm's word for its state, why, by whom and since when."""

    node: str
    state: str
    reason: str
    by: str
    since: str | None


class Drained(ControlRecord, frozen=True, kw_only=True):
    """`drained.<k>.json`: task 0 saw nodes of task `task` drained. Kept as evidence when they are not any more.

    `excluded`: a spare can take its place, so it takes no part in the next restart. `poll` grows with every question
    to Slurm, answered or not; `answer_age_seconds` is how old the answer was that this rests on.
    """

    task: int
    task_nodes: tuple[str, ...]
    drained_nodes: tuple[DrainedNode, ...]
    is_active: bool
    excluded: bool
    seen_at: str
    returned_at: str | None
    poll: int
    poll_seconds: float
    answer_age_seconds: float


class NoRestart(ControlRecord, frozen=True, kw_only=True):
    """`no_restart.json`: the launcher of a node said that a restart is useless."""

    node: str
    exit_code: int
    cause: str
    written_at: str


class Walltime(ControlRecord, frozen=True, kw_only=True):
    """`walltime.json`: Slurm warned this generation of its time limit."""

    warned_at: str


class LeaseSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How a closer saw one task's lease: its counter, and for how long it had stood still by then."""

    counter: int
    still_seconds: float
    interval_seconds: float


class Closed(ControlRecord, frozen=True, kw_only=True):
    """`closed.json`: this generation is over. Every task that reads it stops its ranks and leaves."""

    outcome: Outcome
    exit_code: int | None
    closed_by: str
    closed_at: str
    evidence: tuple[str, ...]
    leases: dict[str, LeaseSeen] = {}


class Left(ControlRecord, frozen=True, kw_only=True):
    """`left.<k>.json`: no rank of this task lives any more."""

    left_at: str
    evidence: str


class Silence(ControlRecord, frozen=True, kw_only=True):
    """`silence.<k>.json`: whether task 0's run-task answers this peer over the link; renewed while it does not."""

    silent: bool
    seconds: float
    written_at: str


class Cleared(ControlRecord, frozen=True, kw_only=True):
    """`cleared.json`: the queue was read again and nothing of the closed generation is left to cancel.

    `leases` as in `closed.json`, but at the end of the clearing, when a silent task has stood still for longer.
    """

    cleared_at: str
    evidence: str
    leases: dict[str, LeaseSeen] = {}


class Inquiry(ControlRecord, frozen=True, kw_only=True):
    """`inquiry.json`: who asked Slurm about whom last, and the answer. Spares the controller a crowd of askers."""

    about: int
    answer: str
    evidence: str
    asked_at: str


class GenerationRecord(ControlRecord, frozen=True, kw_only=True):
    """`record.json`: how a generation went. An iteration is None when there was no checkpoint, -1 when unreadable.

    `drained_tasks`: those of which a node was drained at any time.
    """

    chain_id: str
    started_at: str
    launched_at: str | None
    ended_at: str | None
    outcome: Outcome | None
    exit_code: int | None
    signalled: bool
    near_wall: bool
    iteration_at_start: int | None
    iteration_at_end: int | None
    cycles: int | None
    run_seconds: float | None
    evidence: tuple[str, ...] = ()
    drained_tasks: tuple[int, ...] = ()


class ChainOutcome(Record, frozen=True, kw_only=True):
    """`chain_outcome.json`: the final verdict of one chain_id."""

    chain_id: str
    verdict: Verdict
    array_job_id: int | None
    by: str
    why: str
    evidence: tuple[str, ...]
    decided_at: str


class Ending(Record, frozen=True, kw_only=True):
    """`ending.json`: the chain ends with the generation that runs. Final; the verdict follows when that has ended.

    `array_job_id` is the generation that ran when it was written: no other one may start after that.
    """

    chain_id: str
    array_job_id: int
    by: str
    why: str
    decided_at: str


class Excluded(Record, frozen=True, kw_only=True):
    """`excluded.json`: all nodes that the chain keeps away from, those of its submit too, each with the reason."""

    chain_id: str
    nodes: dict[str, str]
    by: str
    changed_at: str


class Hold(Record, frozen=True, kw_only=True):
    """`hold.json`: the brake or the operator holds the chain. Not final: `released_at` ends it."""

    chain_id: str
    by: str
    why: str
    held_at: str
    array_job_ids: tuple[int, ...]
    released_at: str | None = None
    released_by: str | None = None
