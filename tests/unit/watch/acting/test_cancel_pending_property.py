"""Whatever the queue and the findings look like, a cancel names waiting tasks of orphaned generations only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from hypothesis import find, given, settings
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import AccountedTask, QueuedTask, QueueReading
from nvrx_chain.slurm.states import JobState
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.acting.perform import perform
from nvrx_watch.action_model import Rights
from nvrx_watch.memory import Memory
from nvrx_watch.model import ActionKind, Generation, Queue, Snapshot, SourceReport, Subject
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.watch.acting.scene import finding
from tests.unit.watch.build import manifest

UID = 1001
USER, NAME, CHAIN = "ann", "train-7b", manifest().chain_id
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
JOBS = (11, 12, 13)

STATES = st.sampled_from(
    [
        *[JobState.PENDING] * 2,
        JobState.RUNNING,
        JobState.COMPLETING,
        JobState.FAILED,
        JobState.NODE_FAIL,
        JobState.CANCELLED,
        JobState.UNKNOWN,
        JobState.SUSPENDED,
        JobState.REQUEUED,
        JobState.REQUEUE_HOLD,
    ]
)


class Recorder(FakeSlurm):
    """Answers with readings that were made up, and remembers what it was asked to cancel."""

    readings: list[QueueReading | Unobserved]
    cancelled: list[tuple[str, bool, QueueReading]]

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        assert user == USER
        self.last = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return self.last

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        assert isinstance(self.last, QueueReading)
        self.cancelled += [(spec, pending_only, self.last) for spec in specs]


@st.composite
def rows(draw: st.DrawFn) -> QueuedTask:
    job = draw(st.sampled_from((*JOBS, 99)))
    state = draw(STATES)
    usual = st.booleans().map(lambda odd: not odd)
    stranger = draw(st.sampled_from([False] * 12 + [True]))
    wrong = draw(st.sampled_from(["name", "user", "comment", "time", "no time"])) if stranger else ""
    comment = f"nvrx-chain:{'other' if wrong == 'comment' else CHAIN}/{job}"
    at: datetime | None = BEGAN + timedelta(seconds=job + (3600 if wrong == "time" else 0))
    return QueuedTask(
        job_id=job,
        array_job_id=job,
        array_task_id=draw(st.one_of(st.sampled_from([0, 0, 1, 2, 3, 4]), st.none())),
        is_array=draw(usual) or draw(usual),
        state=state,
        raw_state=state.value,
        reason="",
        nodelist="",
        partition="main",
        dependency="",
        user="bob" if wrong == "user" else USER,
        submitted_at=None if wrong == "no time" else at,
        started_at=None,
        comment=comment,
        name="other" if wrong == "name" else NAME,
    )


@st.composite
def accounts(draw: st.DrawFn) -> AccountedTask:
    job, state = draw(st.sampled_from(JOBS)), draw(STATES)
    return AccountedTask(
        job_id=job,
        array_job_id=job,
        array_task_id=draw(st.sampled_from([0, 0, 1, None])),
        state=state,
        raw_state=state.value,
        cancelled_by=None,
        exit_code=None,
        exit_signal=None,
        step_exit_codes=(),
        submitted_at=BEGAN + timedelta(seconds=job),
        started_at=None,
        ended_at=None,
        nodelist="",
        user=draw(st.sampled_from([USER, USER, USER, "bob"])),
        name=NAME,
    )


READINGS = st.lists(rows(), max_size=14).map(lambda found: QueueReading(tasks=tuple(found), read_at=BEGAN))


def is_orphaned(job: int, reading: QueueReading, accounting: Sequence[AccountedTask]) -> bool:
    """Said in other words than the code: nothing of task 0 lives, and somebody saw it end."""
    of_zero = [row for row in reading.of(job) if row.array_task_id == 0]
    if any(not row.state.is_terminal for row in of_zero):
        return False
    ends = [row for row in accounting if (row.array_job_id, row.array_task_id, row.user) == (job, 0, USER)]
    return bool(of_zero) or (bool(ends) and all(row.state.is_terminal for row in ends))


@settings(max_examples=600, deadline=None)
@given(
    seen=READINGS,
    later=st.lists(st.one_of(READINGS, st.just(Unobserved("away"))), min_size=1, max_size=3),
    same=st.booleans(),
    accounting=st.one_of(st.lists(accounts(), max_size=4), st.just(Unobserved("slurmdbd is down"))),
    asked=st.lists(st.sampled_from((*JOBS, 99, None)), max_size=5),
    ours=st.booleans(),
)
def test_no_cancel_names_anything_but_a_waiting_task_of_an_orphaned_generation(
    seen: QueueReading,
    later: list[QueueReading | Unobserved],
    same: bool,
    accounting: list[AccountedTask] | Unobserved,
    asked: list[int | None],
    ours: bool,
) -> None:
    clock = FakeClock()
    slurm = Recorder(clock)
    slurm.readings, slurm.cancelled = [seen, *later] if same else later, []
    known = [] if isinstance(accounting, Unobserved) else accounting
    subject = Subject(
        key="key",
        name=NAME,
        user=USER,
        uid=UID,
        chain_id=CHAIN if ours else None,
        manifest=manifest() if ours else None,
    )
    snapshot = Snapshot(
        subject=subject,
        taken_at=BEGAN,
        generations=tuple(
            Generation(array_job_id=job, sequence=job, submitted_at=BEGAN + timedelta(seconds=job)) for job in JOBS
        ),
        queue=Queue(arrays={job: seen.of(job) for job in JOBS}),
        accounting=accounting
        if isinstance(accounting, Unobserved)
        else {job: tuple(row for row in accounting if row.array_job_id == job) for job in JOBS},
        nodes={},
        iteration=None,
        verdict=None,
        hold=None,
        memory=Memory(),
        sources=SourceReport(),
    )

    def never(argv: Sequence[str], seconds: float) -> CommandAnswer:
        raise AssertionError(f"{argv} was run within {seconds} s")

    desk = ActionDesk(
        client=slurm,
        clock=clock,
        rights=Rights(user=USER, uid=UID, act=True),
        run_command=never,
        host="login1",
    )
    reports = perform([finding(ActionKind.CANCEL_PENDING, job) for job in asked], snapshot, desk)

    wanted = {job for job in asked if job in JOBS}
    for spec, pending_only, reading in slurm.cancelled:
        assert pending_only
        job, _, index = spec.partition("_")
        assert int(job) in wanted
        assert is_orphaned(int(job), reading, known)
        named = [row for row in reading.of(int(job)) if row.array_task_id == int(index) and row.is_array]
        assert any(row.state.is_pending for row in named)
        assert all((row.name, row.user) == (NAME, USER) for row in reading.of(int(job)))
        assert all(row.submitted_at == BEGAN + timedelta(seconds=int(job)) for row in reading.of(int(job)))
        assert not ours or all(row.comment.startswith(f"nvrx-chain:{CHAIN}/") for row in reading.of(int(job)))
    assert {spec for report in reports for spec in report.asked} == {spec for spec, _, _ in slurm.cancelled}


def test_such_queues_do_lead_to_cancels() -> None:
    """Otherwise the claim above would hold for a watcher that does nothing."""

    def leads_to_a_cancel(reading: QueueReading) -> bool:
        rows_of_job = reading.of(11)
        waits = any(row.state.is_pending and row.is_array and row.array_task_id for row in rows_of_job)
        return waits and is_orphaned(11, reading, ()) and all(row.user == USER for row in rows_of_job)

    assert find(READINGS, leads_to_a_cancel)
