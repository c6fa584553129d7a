"""Any snapshot at all, for property tests: hostile ids, states, times and files, in combinations that no chain has.

A snapshot is made from one number, which a failing test prints: drawing each of its thousand parts through hypothesis
would leave time for a few dozen snapshots only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from nvrx_chain.clock import format_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.model import AccountedTask, QueuedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch import memory as names
from nvrx_watch.memory import Memory, Seen
from nvrx_watch.model import Cycle, Generation, LogActivity, Queue, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch import build

_T = TypeVar("_T")

JOBS = (11, 12, 13)
JOB_IDS = (*JOBS, *JOBS, -1, 0, 10**18)
TEXTS = ("", "n1", "n[1-3]", "n[1-", "x\x1b[2J\n", "../../etc", "'\"; rm -rf /", "\udcff", "\u202e\u2028", "é" * 400)
NUMBERS = (-1, 0, 1, 2, 5, 93, 221, -(2**63), 2**63 - 1)
REALS = (0.0, -1.0, 5.0, 599.0, 1e6, 1e300, -1e300, float("nan"), float("inf"), float("-inf"))
STATES = (*(state.value for state in JobState), "CANCELLED by 1001", "???", "")
# The usual ones more often: a chain of nothing but oddities reaches no action.
USUAL_STATES = ("RUNNING", "PENDING", "PENDING", "FAILED", "COMPLETING", "NODE_FAIL")
TASKS = (0, 0, 1, 2, 3, 4, None, 10**9)
FAR_TIMES = tuple(datetime(year, 1, 2, tzinfo=timezone.utc) for year in (1, 1970, 9999))
NO_TIMES = ("", "now", "2026-01-01", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")


class Dice(random.Random):
    """Picks the parts of a snapshot."""

    def maybe(self, make: Callable[[], _T], chance: float = 0.6) -> _T | None:
        return make() if self.random() < chance else None

    def source(self, make: Callable[[], _T], chance: float = 0.6) -> _T | Unobserved | None:
        """A value, none, or not observed."""
        return Unobserved(self.text()) if self.random() < 0.1 else self.maybe(make, chance)

    def some(self, values: Sequence[_T], most: int) -> list[_T]:
        """A few different ones of these."""
        return self.sample(sorted(set(values), key=str), self.randint(0, min(most, len(set(values)))))

    def text(self) -> str:
        if self.random() < 0.7:
            return self.choice(TEXTS)
        return "".join(chr(self.randrange(0x110000)) for _ in range(self.randint(0, 12)))

    def state(self) -> str:
        return self.choice(USUAL_STATES if self.random() < 0.7 else STATES)

    def at(self) -> datetime:
        if self.random() < 0.1:
            return self.choice(FAR_TIMES)
        return build.NOW - timedelta(seconds=self.choice((-1000, 0, 30, 61, 700, 4000, 10**6)))

    def written(self) -> str:
        return self.choice(NO_TIMES) if self.random() < 0.1 else format_time(self.at())


def queued_row(dice: Dice, job: int) -> QueuedTask:
    return build.row(
        job,
        dice.choice(TASKS),
        dice.state(),
        reason=dice.choice(("Priority", "JobHeldUser", "Dependency", dice.text())),
        nodelist=dice.choice(("n1", "n1", dice.text())),
        partition=dice.choice(("batch", "batch", "", "a,b", ",,")),
        started_at=dice.maybe(dice.at),
        submitted_at=dice.maybe(dice.at),
        is_array=dice.random() < 0.9,
        name=dice.choice((build.NAME, build.NAME, dice.text())),
    )


def any_queue(dice: Dice) -> Queue:
    return Queue(
        arrays={job: tuple(queued_row(dice, job) for _ in range(dice.randint(1, 6))) for job in dice.some(JOB_IDS, 4)},
        doubtful={job: dice.text() for job in dice.some(JOB_IDS, 1)},
        foreign=tuple(queued_row(dice, 99) for _ in range(dice.choice((0, 0, 1, 2)))),
        sees_user=dice.random() < 0.7,
        read_at=build.NOW,
    )


def accounted_row(dice: Dice, job: int) -> AccountedTask:
    return build.account(
        job,
        dice.choice(TASKS),
        dice.state(),
        ended_at=dice.maybe(dice.at),
        started_at=dice.maybe(dice.at),
        submitted_at=dice.maybe(dice.at),
        exit_code=dice.maybe(lambda: dice.choice(NUMBERS)),
        exit_signal=dice.maybe(lambda: dice.choice(NUMBERS)),
        step_exit_codes=tuple(dice.some(NUMBERS, 2)),
        nodelist=dice.text(),
    )


def any_cycle(dice: Dice, number: int) -> Cycle:
    return Cycle(
        attempt=dice.choice((0, 0, 1, *NUMBERS)),
        number=number,
        started_at=dice.maybe(dice.at, 0.9),
        ended_at=dice.maybe(dice.at, 0.8),
        active_nodes=tuple(dice.text() for _ in range(dice.randint(0, 3))),
        standby_nodes=tuple(dice.text() for _ in range(dice.randint(0, 2))),
        log_file=dice.text(),
        last_iteration=dice.maybe(lambda: dice.choice(NUMBERS)),
    )


def any_generation(dice: Dice, job: int) -> Generation:
    outcomes = [one.value for one in Outcome]
    return build.generation(
        job,
        submitted_at=dice.maybe(dice.at),
        has_directory=dice.random() < 0.7,
        rendezvous=dice.source(
            lambda: build.rendezvous(job, published_at=dice.written(), started_at=dice.maybe(dice.written))
        ),
        closed=dice.source(lambda: build.closed(job, dice.choice(outcomes), closed_at=dice.written()), 0.4),
        record=dice.source(
            lambda: build.record(
                job,
                dice.maybe(lambda: dice.choice(outcomes)),
                started_at=dice.written(),
                launched_at=dice.maybe(dice.written),
                ended_at=dice.maybe(dice.written),
                iteration_at_start=dice.maybe(lambda: dice.choice(NUMBERS)),
                iteration_at_end=dice.maybe(lambda: dice.choice(NUMBERS)),
                run_seconds=dice.maybe(lambda: dice.choice(REALS)),
            )
        ),
        no_restart=dice.source(
            lambda: build.no_restart(job, cause=dice.text(), node=dice.text(), written_at=dice.written()), 0.3
        ),
        leases={
            task: build.lease(
                job,
                task,
                counter=dice.choice(NUMBERS),
                interval_seconds=5.0 if dice.random() < 0.7 else dice.choice(REALS),
            )
            for task in dice.some((0, 1, 2), 3)
        },
        joined=frozenset(dice.some((-1, 0, 1, 2, 10**9), 3)),
        left=frozenset(dice.some((-1, 0, 1, 2, 10**9), 2)),
        cycles=dice.source(lambda: tuple(any_cycle(dice, number) for number in range(dice.randint(0, 8)))),
        unreadable_cycles=dice.choice(NUMBERS),
        log=dice.source(
            lambda: LogActivity(
                bytes=dice.choice(NUMBERS),
                newest=dice.text(),
                iteration=dice.choice(NUMBERS),
                iterations_per_second=dice.choice(REALS),
            )
        ),
    )


def any_memory(dice: Dice, generations: Sequence[Generation]) -> Memory:
    of_jobs = (names.log_name, names.task_zero_name, names.waiting_name, names.completing_name)
    every = [names.ITERATION_NAME, names.BEST_ITERATION_NAME, names.QUEUE_EMPTY_NAME, names.LIVE_GENERATION_NAME]
    every += [name(job) for name in of_jobs for job in JOBS]
    values: dict[str, Any] = {name: dice.choice((None, "yes", "FAILED", *NUMBERS)) for name in dice.some(every, 20)}
    for one in generations:
        # As a pass leaves it: the counter that it has just read.
        values |= {names.lease_name(one.array_job_id, task): lease.counter for task, lease in one.leases.items()}
    return Memory(
        seen={
            name: Seen(
                value=value,
                since=dice.written(),
                looked_at=dice.written(),
                changes=dice.choice(NUMBERS),
                looks=dice.choice(NUMBERS),
            )
            for name, value in values.items()
        }
    )


def any_snapshot(seed: int) -> Snapshot:
    """Every source in every shape: a value, none, or not observed."""
    dice = Dice(seed)
    generations = tuple(any_generation(dice, job) for job in dice.some(JOB_IDS, 5))
    verdicts = [one.value for one in Verdict]
    node = build.node("n1", dice.choice(("allocated", "down*", "allocated*", "drained", "", "???")), reason=dice.text())
    jobs = dice.some(JOB_IDS, 4)
    return build.snapshot(
        subject=dice.choice((build.subject(), build.foreign_subject())),
        generations=generations,
        queue=dice.source(lambda: any_queue(dice), 1.0),
        accounting=dice.source(
            lambda: {job: tuple(accounted_row(dice, job) for _ in range(dice.randint(0, 3))) for job in jobs}, 1.0
        ),
        nodes=dice.source(lambda: build.nodes(node), 1.0),
        iteration=dice.source(lambda: dice.choice(NUMBERS)),
        verdict=dice.source(
            lambda: build.verdict(
                dice.choice(verdicts),
                array_job_id=dice.maybe(lambda: dice.choice(JOB_IDS)),
                by=dice.text(),
                why=dice.text(),
                evidence=(dice.text(),),
                decided_at=dice.written(),
            ),
            0.2,
        ),
        hold=dice.source(
            lambda: build.hold(
                by=dice.text(), why=dice.text(), held_at=dice.written(), released_at=dice.maybe(dice.written)
            ),
            0.3,
        ),
        memory=any_memory(dice, generations),
        sources=build.sources(
            {source: dice.text() for source in dice.some(list(Source), 1)} if dice.random() < 0.2 else {},
            notes=(dice.text(),),
        ),
        can_write_run_directory=dice.choice((True, False, None)),
        free_bytes=dice.maybe(lambda: dice.choice(NUMBERS)),
        file_clock_ahead_seconds=dice.maybe(lambda: dice.choice(REALS)),
    )


def any_thresholds(seed: int) -> WatchThresholds:
    """Settings of which a few are odd."""
    dice = Dice(seed)
    defaults = WatchThresholds()
    values: dict[str, Any] = {}
    for name in dice.some(WatchThresholds.__struct_fields__, 6):
        whole = isinstance(getattr(defaults, name), int)
        values[name] = dice.choice((-1, 0, 1, 2, 3) if whole else (-1.0, 0.0, 1e9, float("inf")))
    return WatchThresholds(**values)
