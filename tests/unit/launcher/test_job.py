"""A job of launchers over real connections: rounds, losses, spares, endings. Each launcher here is a `Job`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nvrx_chain.launcher.coordinator import Limits
from nvrx_chain.launcher.events import Cause, Ended, Event, Filled, Hosted, JobState, Opened
from nvrx_chain.launcher.guest import HostSilent
from nvrx_chain.launcher.job import Job, Meeting, new_agent_id
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.reasons import Reason
from nvrx_chain.launcher.talk import Excluded, Refused
from nvrx_chain.launcher.verdict import Attendance, Exclusion, Judge, Keeper

PATIENCE_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


class Crowd:
    """The launchers of one job; index 0 is the host."""

    def __init__(self, spec: Spec, *, max_restarts: int = 5, liveness_seconds: float = 5.0) -> None:
        self.spec = spec
        self.limits = Limits(max_restarts=max_restarts, no_restart_exit_code=93)
        self.port = free_port()
        self.liveness_seconds = liveness_seconds
        self.jobs: dict[int, Job] = {}
        self.judge: Judge = lambda opened, state: None
        self.keeper: Keeper | None = None
        self.news: dict[int, list[object]] = {}

    def arrive(self, index: int, *, secret: str = "s", procs_per_node: int = 1, group: str = "") -> Job:
        meeting = Meeting(
            host="localhost",
            port=self.port,
            run_id="run",
            secret=secret,
            is_host=index == 0,
            connect_seconds=PATIENCE_SECONDS,
            liveness_seconds=self.liveness_seconds,
        )
        member = Member(
            agent_id=new_agent_id(index), infra_rank=index, group=group or f"t{index}", address=f"node{index}"
        )
        job = Job(meeting, self.spec, self.limits, member, procs_per_node=procs_per_node)
        job.connect(judge=self.judge, keeper=self.keeper)
        self.jobs[index] = job
        self.news[index] = []
        return job

    def look(self) -> None:
        for index, job in self.jobs.items():
            self.news[index] += job.take(0.002)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, what
            self.look()

    def until_open(self, round_number: int) -> None:
        self.until(lambda: all(job.state.round >= round_number for job in self.jobs.values()), f"open {round_number}")

    def join_all(self) -> None:
        for job in self.jobs.values():
            job.join(job.state.round)

    def active(self, index: int = 0) -> list[int]:
        filled = self.jobs[index].state.filled
        names = {job.member.agent_id: number for number, job in self.jobs.items()}
        return [] if filled is None else [names[agent] for agent in filled.active]

    def until_filled(self, round_number: int) -> None:
        def holds() -> bool:
            states = [job.state for job in self.jobs.values()]
            return all(state.round == round_number and state.filled is not None for state in states)

        self.until(holds, f"filled {round_number}")


@contextmanager
def crowd(
    count: int, spec: Spec, *, judge: Judge | None = None, keeper: Keeper | None = None, **options: float
) -> Iterator[Crowd]:
    found = Crowd(spec, **options)  # type: ignore[arg-type]
    found.judge, found.keeper = judge or found.judge, keeper
    for index in range(count):
        found.arrive(index)
    found.until_open(0)
    found.join_all()
    found.until_filled(0)
    yield found
    for index in sorted(found.jobs, reverse=True):
        found.jobs[index].leave(host_waits_seconds=0.0)


def test_the_lowest_places_train_and_everybody_learns_it() -> None:
    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)) as job:
        assert [job.active(index) for index in range(3)] == [[0, 1]] * 3


def test_a_failure_that_one_announces_opens_a_round_for_all_with_its_cause() -> None:
    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)) as job:
        job.jobs[1].open(Cause(kind="worker", rank=1, exit_code=-9))
        job.until_open(1)
        assert {found.state.cause for found in job.jobs.values()} == {Cause(kind="worker", rank=1, exit_code=-9)}
        job.join_all()
        job.until_filled(1)
        assert job.active() == [0, 1]


def test_two_that_fail_at_once_open_one_round() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=2)) as job:
        job.jobs[0].open(Cause(kind="worker", rank=0))
        job.jobs[1].open(Cause(kind="worker", rank=1))
        job.until_open(1)
        job.join_all()
        job.until_filled(1)
        causes = {found.state.cause for found in job.jobs.values()}
        assert causes in ({Cause(kind="worker", rank=0)}, {Cause(kind="worker", rank=1)})
        assert {found.state.round for found in job.jobs.values()} == {1}


def test_a_launcher_whose_connection_ends_gives_its_seat_to_a_spare() -> None:
    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)) as job:
        lost = job.jobs.pop(1)
        lost.leave(host_waits_seconds=0.0)
        job.until_open(1)
        job.join_all()
        job.until_filled(1)
        assert job.active() == [0, 2]


def test_a_late_spare_learns_how_things_stand_and_disturbs_nobody() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=3)) as job:
        job.arrive(2)
        job.until_filled(0)
        assert job.jobs[2].state == job.jobs[0].state


def test_old_events_are_forgotten_and_a_late_spare_still_learns_how_things_stand() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=3), max_restarts=100) as job:
        for number in range(1, 9):
            job.jobs[0].open(Cause(kind="worker", rank=0))
            job.until_open(number)
            job.join_all()
            job.until_filled(number)
        late = job.arrive(2)
        job.until_filled(8)
        assert late.state.filled == job.jobs[0].state.filled
        assert late.state.previous == job.jobs[0].state.previous
        assert late.read == job.jobs[0].read
        assert len([news for news in job.news[2] if hasattr(news, "round")]) <= 10


def test_an_end_reaches_everybody_with_its_code_and_the_first_one_counts() -> None:
    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)) as job:
        job.jobs[2].end(Reason.WORKLOAD_STOP, "it is enough")
        job.jobs[1].end(Reason.FAILED, "late")
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")
        ends = {
            (found.state.ended.reason, found.state.ended.exit_code) for found in job.jobs.values() if found.state.ended
        }
        assert ends in ({(Reason.WORKLOAD_STOP, 93)}, {(Reason.FAILED, 1)})


def test_the_ranks_of_a_round_meet_where_the_first_node_says() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=2)) as job:
        job.jobs[0].host_ranks(0, 4711)
        job.until(lambda: all(found.state.hosted is not None for found in job.jobs.values()), "hosted")
        assert {found.state.hosted for found in job.jobs.values()} == {Hosted(round=0, address="node0", port=4711)}


def test_a_task_that_is_excluded_is_told_and_another_takes_its_seat() -> None:
    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5)) as job:
        job.jobs[1].exclude_own_task("its GPU is lost")
        job.until(lambda: Excluded(why="its GPU is lost") in job.news[1], "the word")
        job.until_open(1)
        job.join_all()
        job.until_filled(1)
        assert job.active() == [0, 2]


class Note:
    """A keeper that can be slow, and says what every launcher had heard when it was done."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.noted: list[tuple[Filled | Ended, Attendance]] = []
        self.heard_events: list[Event] = []

    def before(self, event: Filled | Ended, attendance: Attendance) -> None:
        time.sleep(self.seconds)
        self.noted.append((event, attendance))

    def heard(self, event: Event) -> None:
        self.heard_events.append(event)


def test_who_trains_and_how_it_ends_is_written_down_before_anybody_hears_it() -> None:
    note = Note(seconds=0.15)
    with crowd(2, Spec(min_nodes=2, max_nodes=2), keeper=note) as job:
        assert len(note.noted) == 1
        began = time.monotonic()
        job.jobs[1].end(Reason.WORKLOAD_STOP, "it is enough")
        while not note.noted[1:]:
            job.look()
            assert all(found.state.ended is None for found in job.jobs.values()) or note.noted[1:]
        assert time.monotonic() - began >= note.seconds
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")
        (filled, attendance), (ended, _) = note.noted
        assert isinstance(filled, Filled)
        assert {member.address for member in attendance.members.values()} == {"node0", "node1"}
        assert ended == job.jobs[0].state.ended
        assert isinstance(ended, Ended)
        assert ended.by == job.jobs[1].member.agent_id
        job.until(lambda: len(note.heard_events) == 3, "the keeper to hear of the end")
        assert [type(event) for event in note.heard_events] == [Opened, Filled, Ended]


def test_records_that_cannot_be_kept_stop_nothing() -> None:
    class Broken(Note):
        def before(self, event: Filled | Ended, attendance: Attendance) -> None:
            raise OSError("no space")

    with crowd(2, Spec(min_nodes=2, max_nodes=2), keeper=Broken()) as job:
        job.jobs[1].end(Reason.FAILED, "")
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")


def test_a_suspect_is_sent_away_for_a_spare() -> None:
    asked: list[Opened] = []

    def judge(opened: Opened, state: JobState) -> Ended | Exclusion | None:
        asked.append(opened)
        end = Ended(reason=Reason.NO_PROGRESS, exit_code=93, by="")
        return Exclusion(agent_ids=(opened.cause.agent_id,), why="it flaps", otherwise=end)

    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5), judge=judge) as job:
        suspect = job.jobs[1]
        suspect.open(Cause(kind="worker", agent_id=suspect.member.agent_id))
        job.until(lambda: any(isinstance(news, Excluded) for news in job.news[1]), "the word that it is excluded")
        assert "it flaps" in next(news.why for news in job.news[1] if isinstance(news, Excluded))
        del job.jobs[1]
        job.until_open(1)
        job.join_all()
        job.until_filled(1)
        assert job.active() == [0, 2]
        # No spare is left now, so the next verdict ends the job.
        job.jobs[2].open(Cause(kind="worker", agent_id=job.jobs[2].member.agent_id))
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")
        assert {found.state.ended.exit_code for found in job.jobs.values() if found.state.ended} == {93}
        assert [opened.round for opened in asked] == [1, 2]


def test_all_launchers_of_an_excluded_task_are_told() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=4)) as job:
        job.arrive(2, group="t2")
        job.arrive(3, group="t2")
        job.until_filled(0)
        job.jobs[2].exclude_own_task("GPU 3 is gone")
        word = Excluded(why="GPU 3 is gone")
        job.until(lambda: word in job.news[3] and word in job.news[2], "the word that it is excluded")
        assert job.active() == [0, 1]


def test_the_host_is_never_the_one_that_is_excluded() -> None:
    end = Ended(reason=Reason.NO_PROGRESS, exit_code=93, by="")

    def judge(opened: Opened, state: JobState) -> Ended | Exclusion | None:
        return Exclusion(agent_ids=(opened.cause.agent_id,), why="it flaps", otherwise=end)

    with crowd(3, Spec(min_nodes=2, max_nodes=3, first_grace_seconds=5), judge=judge) as job:
        job.jobs[0].open(Cause(kind="worker", agent_id=job.jobs[0].member.agent_id))
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")


def test_an_end_that_is_ordered_before_the_launcher_is_taken_in_is_not_lost() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=3)) as job:
        job.arrive(2).end(Reason.TERMINATED, "at once")
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")
        assert {found.state.ended.reason for found in job.jobs.values() if found.state.ended} == {Reason.TERMINATED}


def test_the_host_waits_for_the_others_to_leave() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=2)) as job:
        job.jobs[1].end(Reason.SUCCESS, "")
        job.until(lambda: all(found.state.ended is not None for found in job.jobs.values()), "the end")
        host = job.jobs[0]._host
        assert host is not None
        assert not host.await_all_gone(0.05)
        job.jobs.pop(1).leave(host_waits_seconds=0.0)
        job.jobs.pop(0).leave(host_waits_seconds=PATIENCE_SECONDS)
        assert host.await_all_gone(0.0)


@pytest.mark.parametrize(("changes", "why"), [({"procs_per_node": 2}, "1 ranks")])
def test_a_launcher_of_another_shape_is_refused_with_the_reason(changes: dict[str, int], why: str) -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=3)) as job:
        job.arrive(2, **changes)
        job.until(lambda: any(isinstance(news, Refused) for news in job.news[2]), "the refusal")
        assert why in next(news.why for news in job.news[2] if isinstance(news, Refused))
        del job.jobs[2]
        assert job.active() == [0, 1]


def test_a_stranger_without_the_secret_never_takes_part() -> None:
    with crowd(2, Spec(min_nodes=2, max_nodes=3)) as job:
        job.arrive(2, secret="another")
        job.until(lambda: any(isinstance(news, HostSilent) for news in job.news[2]), "the end of the connection")
        del job.jobs[2]
        assert job.active() == [0, 1]
