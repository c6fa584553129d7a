"""What the rendezvous host makes of its members: rounds are opened and filled, and nobody dead or excluded trains."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nvrx_chain.launcher.coordinator import Coordinator, Limits, Step
from nvrx_chain.launcher.events import Cause, Ended, Filled, Opened
from nvrx_chain.launcher.members import Member, Spec, Standing
from nvrx_chain.launcher.reasons import Reason


class Job:
    """A coordinator with a clock and the log of events that it and others wrote."""

    def __init__(self, *, may_be_replaced: bool = False, max_restarts: int = 5, **spec: object) -> None:
        values = {"min_nodes": 2, "max_nodes": 3, **spec}
        self.now = 0.0
        self.log: list[object] = []
        self.desk = Coordinator(
            Spec(**values),  # type: ignore[arg-type]
            Limits(max_restarts=max_restarts, no_restart_exit_code=93),
            by="host",
            may_be_replaced=may_be_replaced,
            allow_shared_node=False,
        )
        self.settle()

    def settle(self) -> Step:
        """Carry out what the coordinator wants until it wants nothing more."""
        while True:
            step = self.desk.next_step(self.now, at=1000.0 + self.now)
            if step.event is None:
                return step
            self.log.append(step.event)
            self.desk.heard(step.event, self.now)

    def open(self, kind: str = "worker") -> None:
        event = Opened(round=self.round + 1, cause=Cause(kind=kind), at=0.0)
        self.log.append(event)
        self.desk.heard(event, self.now)
        self.settle()

    def arrive(self, *names: str) -> None:
        for name in names:
            assert self.desk.hello(member(name)) is None
            self.desk.join(name, self.round)
        self.settle()

    def join(self, *names: str) -> None:
        for name in names:
            self.desk.join(name, self.round)
        self.settle()

    @property
    def round(self) -> int:
        return self.desk.state.round

    @property
    def active(self) -> tuple[str, ...] | None:
        filled = self.desk.state.filled
        return None if filled is None else filled.active

    @property
    def ended(self) -> Ended | None:
        return self.desk.state.ended


def member(name: str, group: str | None = None, place: int | None = None) -> Member:
    number = int(name.strip("abcdefgh") or 0)
    return Member(
        agent_id=name, infra_rank=number if place is None else place, group=group or name, address=f"node-{name}"
    )


def test_a_round_is_filled_as_soon_as_enough_have_come() -> None:
    job = Job()
    job.arrive("a1")
    assert job.active is None
    job.arrive("a0")
    assert (job.round, job.active) == (0, ("a0", "a1"))


def test_a_late_spare_disturbs_nobody_and_is_used_when_one_is_lost() -> None:
    job = Job()
    job.arrive("a0", "a1")
    job.arrive("a2")
    assert (job.round, job.active) == (0, ("a0", "a1"))
    job.desk.leave("a1", Standing.LOST, "its connection ended")
    job.settle()
    assert job.round == 1
    assert job.desk.state.cause == Cause(
        kind="agent_lost", agent_id="a1", node="node-a1", detail="its connection ended"
    )
    job.join("a2")
    assert job.active is None, "the other one still stops its workers"
    job.join("a0")
    assert job.active == ("a0", "a2")


def test_more_launchers_than_expected_wait_and_harm_nobody() -> None:
    job = Job()
    job.arrive("a0", "a1", "a2", "a3", "a4")
    assert job.active == ("a0", "a1")
    job.open()
    job.join("a4", "a3", "a1", "a0")
    assert job.active == ("a0", "a1")


def test_a_sick_node_takes_its_task_out_for_good() -> None:
    job = Job(group_size=2, min_nodes=2, max_nodes=4)
    for name, group in (("a0", "t0"), ("a1", "t0"), ("a2", "t1"), ("a3", "t1")):
        assert job.desk.hello(member(name, group)) is None
        job.desk.join(name, 0)
    job.settle()
    assert job.active == ("a0", "a1")
    job.desk.exclude("t0", "GPU 3 is gone")
    job.settle()
    assert job.desk.state.cause == Cause(
        kind="unhealthy", agent_id="a0", node="node-a0", detail="GPU 3 is gone; and 1 more"
    )
    job.join("a0", "a1", "a2", "a3")
    assert job.active == ("a2", "a3")
    assert job.desk.hello(member("b0", "t0")) == "its array task is excluded: GPU 3 is gone"


def crowd_of_tasks(count: int, **options: object) -> Job:
    """Tasks t0, t1, ... of one launcher each, a0, a1, ...; the host is that of t0."""
    job = Job(max_nodes=count, **options)
    host = Member(agent_id="host", infra_rank=99, group="t0", address="node-host")
    assert job.desk.hello(host) is None
    for number in range(count):
        assert job.desk.hello(member(f"a{number}", f"t{number}")) is None
        job.desk.join(f"a{number}", 0)
    job.settle()
    assert job.active == ("a0", "a1")
    return job


def test_the_suspect_is_the_task_that_is_named_most_and_the_earliest_of_equals() -> None:
    assert crowd_of_tasks(4).desk.exclude_suspect(("a1", "a2", "a2"), "") == "t2"
    assert crowd_of_tasks(4).desk.exclude_suspect(("a1", "a2"), "") == "t1"
    assert crowd_of_tasks(4).desk.exclude_suspect(("b9", "a3"), "") == "t3"


def test_a_suspect_gives_its_seat_to_a_spare() -> None:
    job = crowd_of_tasks(3)
    job.open()
    assert job.desk.exclude_suspect(("a1",), "it flaps") == "t1"
    job.join("a0", "a1", "a2")
    assert job.active == ("a0", "a2")
    (out,) = job.desk.attendance().excluded
    assert (out.group, out.nodes, out.why) == ("t1", ("node-a1",), "it flaps")
    assert "a1" not in job.desk.attendance().members


def test_nobody_is_excluded_whom_no_spare_replaces_nor_the_task_of_the_host_nor_somebody_unknown() -> None:
    job = crowd_of_tasks(3)
    for names in ((), ("b7",), ("a0", "a0", "a1")):
        assert job.desk.exclude_suspect(names, "") is None
    job.desk.leave("a2", Standing.LOST, "")
    job.desk.leave("host", Standing.LOST, "")
    assert job.desk.exclude_suspect(("a1",), "") is None
    assert job.desk.excluded == {}


def test_a_second_launcher_of_a_node_is_refused_while_the_first_lives() -> None:
    job = Job()
    job.arrive("a0")
    again = Member(agent_id="b0", infra_rank=0, group="b0", address="node-a0")
    assert job.desk.hello(again) == "a launcher of node-a0 is here already"
    job.desk.leave("a0", Standing.LOST, "frozen")
    assert job.desk.hello(again) is None


def test_the_job_ends_when_nobody_is_left_who_could_take_a_seat() -> None:
    job = Job()
    job.arrive("a0", "a1")
    job.desk.leave("a1", Standing.LOST, "x")
    job.settle()
    job.join("a0")
    assert job.ended is not None
    assert (job.ended.reason, job.ended.exit_code) == (Reason.NOT_ENOUGH_NODES, 1)


def test_where_tasks_are_replaced_the_seat_is_kept_for_the_next_one() -> None:
    job = Job(may_be_replaced=True, join_timeout_seconds=60.0)
    job.arrive("a0", "a1")
    job.desk.leave("a1", Standing.LOST, "x")
    job.settle()
    job.join("a0")
    assert job.ended is None
    job.now += 59
    job.arrive("a7")
    assert job.active == ("a0", "a7")


def test_the_last_restart_is_made_and_the_one_after_it_ends_the_job_everywhere() -> None:
    job = Job(max_restarts=1)
    job.arrive("a0", "a1")
    job.open()
    job.join("a0", "a1")
    assert job.ended is None
    job.open()
    assert job.ended is not None
    assert (job.ended.reason, job.ended.detail) == (Reason.BUDGET_SPENT, "1 restarts are spent")


def test_the_job_succeeds_when_all_that_train_are_done_and_a_failure_before_that_brings_them_back() -> None:
    job = Job()
    job.arrive("a0", "a1")
    job.desk.done("a0", 0)
    job.settle()
    assert job.ended is None
    job.open()
    job.join("a0", "a1")
    assert (job.round, job.active) == (1, ("a0", "a1"))
    job.desk.done("a0", 1)
    job.desk.done("a1", 1)
    job.settle()
    assert job.ended is not None
    assert (job.ended.reason, job.ended.exit_code) == (Reason.SUCCESS, 0)


def test_a_launcher_that_is_lost_after_its_workers_were_done_costs_no_round() -> None:
    job = Job()
    job.arrive("a0", "a1")
    job.desk.done("a0", 0)
    job.desk.leave("a0", Standing.LOST, "x")
    job.settle()
    assert job.round == 0


class Crowd(RuleBasedStateMachine):
    """Random comings, deaths, exclusions and failures: what can be filled is filled, and only with who may train."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job(may_be_replaced=True, min_nodes=3, max_nodes=5, max_restarts=10**6, join_timeout_seconds=1e9)
        self.names = itertools.count()
        self.live: set[str] = set()
        self.groups: dict[str, str] = {}
        self.sick: set[str] = set()
        self.checked = 0

    def _check(self) -> None:
        for event in self.job.log[self.checked :]:
            if isinstance(event, Filled):
                assert len(event.active) == len(set(event.active)) == 3
                assert set(event.active) <= self.live
                assert not {self.groups[name] for name in event.active} & self.sick
        self.checked = len(self.job.log)

    @rule(group=st.integers(0, 6))
    def come(self, group: int) -> None:
        name = f"a{next(self.names)}"
        self.groups[name] = f"t{group}"
        refused = self.job.desk.hello(member(name, f"t{group}"))
        assert (refused is not None) == (f"t{group}" in self.sick)
        if refused is None:
            self.live.add(name)
            self.job.settle()
            self._check()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def be_ready(self, data: st.DataObject) -> None:
        self.job.join(data.draw(st.sampled_from(sorted(self.live))))
        self._check()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), seconds=st.floats(0, 100))
    def announce(self, data: st.DataObject, seconds: float) -> None:
        self.job.desk.stopping(data.draw(st.sampled_from(sorted(self.live))), self.job.now + seconds)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.live.discard(name)
        self.job.desk.leave(name, Standing.LOST, "killed")
        self.job.settle()
        self._check()

    @rule(group=st.integers(0, 6))
    def sicken(self, group: int) -> None:
        if len(self.sick) > 3:
            return
        self.sick.add(f"t{group}")
        self.live = {name for name in self.live if self.groups[name] not in self.sick}
        self.job.desk.exclude(f"t{group}", "sick")
        self.job.settle()
        self._check()

    @precondition(lambda self: self.job.active is not None)
    @rule()
    def fail(self) -> None:
        self.job.open()
        self._check()

    @rule(seconds=st.floats(0, 40))
    def pass_time(self, seconds: float) -> None:
        self.job.now += seconds
        self.job.settle()
        self._check()

    @invariant()
    def nobody_who_trains_is_gone(self) -> None:
        if self.job.active is not None:
            assert set(self.job.active) <= self.live

    def teardown(self) -> None:
        """No deadlock: whatever came before, three healthy launchers that are ready train once time has passed."""
        for group in ("t7", "t8", "t9"):
            name = f"a{next(self.names)}"
            self.groups[name] = group
            assert self.job.desk.hello(member(name, group)) is None
            self.live.add(name)
        self.job.settle()
        for _ in range(3):
            self.job.join(*sorted(self.live))
            self.job.now += 31
            self.job.settle()
        assert self.job.active is not None
        self._check()


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
