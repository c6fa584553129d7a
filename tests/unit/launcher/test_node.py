"""What one launcher does next: rounds, seats, failures, endings."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nvrx_chain.launcher.events import Cause, Ended, Event, Filled, Hosted, JobState, Opened
from nvrx_chain.launcher.node import (
    Actions,
    CheckHealth,
    EndJob,
    ExcludeTask,
    Grace,
    HostWorkers,
    Join,
    Leave,
    Node,
    OpenRound,
    Phase,
    ReportDone,
    StartWorkers,
    StopWorkers,
)
from nvrx_chain.launcher.reasons import Reason

GRACE = Grace(restart=2.0, ending=60.0)
FAILURE = Cause(kind="worker", rank=1, exit_code=-9)


def opened(number: int) -> Opened:
    return Opened(round=number, cause=FAILURE, at=0.0)


def filled(number: int, *active: str) -> Filled:
    return Filled(round=number, active=active, at=0.0)


def hosted(number: int) -> Hosted:
    return Hosted(round=number, address="node0", port=4711)


def ended(reason: Reason, code: int = 1) -> Ended:
    return Ended(reason=reason, exit_code=code, by="x")


class Play:
    """A node and the job that it hears of."""

    def __init__(self, *, is_host: bool = False) -> None:
        self.node = Node("me", GRACE, is_host=is_host)
        self.state = JobState()

    def hear(self, *events: Event) -> Actions:
        for event in events:
            self.state = self.state.after(event)
        return self.node.heard(self.state)

    def train(self, number: int = 0) -> None:
        self.hear(opened(number))
        self.node.checked(number, None)
        self.hear(filled(number, "other", "me"), hosted(number))
        assert self.node.phase is Phase.RUNNING


def test_a_healthy_node_joins_takes_its_seat_and_starts_its_ranks() -> None:
    play = Play()
    assert play.hear(opened(0)) == (CheckHealth(round=0),)
    assert play.node.checked(0, None) == (Join(round=0),)
    assert play.hear(filled(0, "other", "me")) == ()
    assert play.hear(hosted(0)) == (StartWorkers(round=0, group_rank=1, hosted=hosted(0)),)
    assert play.node.is_active


def test_the_node_of_group_rank_0_hosts_the_store_of_the_ranks_and_starts_once_all_know_it() -> None:
    play = Play()
    play.hear(opened(0))
    play.node.checked(0, None)
    assert play.hear(filled(0, "me", "other")) == (HostWorkers(round=0),)
    assert play.hear(hosted(0)) == (StartWorkers(round=0, group_rank=0, hosted=hosted(0)),)


def test_a_node_without_a_seat_stands_by_and_joins_the_next_round_at_once() -> None:
    play = Play()
    play.hear(opened(0))
    play.node.checked(0, None)
    assert play.hear(filled(0, "a", "b"), hosted(0)) == ()
    assert play.node.phase is Phase.STANDBY
    assert not play.node.is_active
    assert play.hear(opened(1)) == (CheckHealth(round=1),)


def test_a_node_that_is_healthy_after_the_round_was_filled_stands_by() -> None:
    play = Play()
    play.hear(opened(0), filled(0, "a", "b"), hosted(0))
    assert play.node.checked(0, None) == ()
    assert play.node.phase is Phase.STANDBY


def test_a_failed_rank_opens_a_round_before_the_others_are_ended() -> None:
    play = Play()
    play.train()
    assert play.node.failed(FAILURE) == (OpenRound(cause=FAILURE), StopWorkers(grace_seconds=2.0))


def test_the_second_rank_that_fails_says_nothing_new() -> None:
    play = Play()
    play.train()
    play.node.failed(FAILURE)
    assert play.node.failed(FAILURE) == ()


@pytest.mark.parametrize("news_first", [True, False])
def test_a_node_joins_the_round_that_its_own_failure_opened_once_its_ranks_are_gone(news_first: bool) -> None:
    play = Play()
    play.train()
    play.node.failed(FAILURE)
    if news_first:
        assert play.hear(opened(1)) == ()
        assert play.node.stopped() == (CheckHealth(round=1),)
    else:
        assert play.node.stopped() == ()
        assert play.hear(opened(1)) == (CheckHealth(round=1),)


def test_a_failure_elsewhere_ends_the_ranks_here() -> None:
    play = Play()
    play.train()
    assert play.hear(opened(1)) == (StopWorkers(grace_seconds=2.0),)


def test_a_node_whose_ranks_are_done_stops_nothing_and_joins_again_when_another_fails() -> None:
    play = Play()
    play.train()
    assert play.node.all_done() == (ReportDone(),)
    assert play.hear(opened(1)) == (StopWorkers(grace_seconds=2.0),)
    assert play.node.stopped() == (CheckHealth(round=1),)


def test_a_node_that_stopped_too_late_for_its_seat_stands_by() -> None:
    play = Play()
    play.train()
    play.hear(opened(1))
    play.hear(filled(1, "a", "b"), hosted(1))
    assert play.node.stopped() == (CheckHealth(round=1),)
    assert play.node.checked(1, None) == ()
    assert play.node.phase is Phase.STANDBY


def test_what_was_found_out_for_an_older_round_counts_for_nothing() -> None:
    play = Play()
    play.hear(opened(0))
    play.hear(opened(1))
    assert play.node.checked(0, None) == ()
    assert play.node.checked(1, None) == (Join(round=1),)


def test_a_sick_node_leaves_alone_and_takes_its_task_out() -> None:
    play = Play()
    play.hear(opened(0))
    actions = play.node.checked(0, "GPU 3 is lost")
    assert actions == (ExcludeTask(why="GPU 3 is lost"), Leave(reason=Reason.UNHEALTHY, detail="GPU 3 is lost"))


def test_a_training_node_that_is_excluded_ends_its_ranks_before_it_leaves() -> None:
    play = Play()
    play.train()
    assert play.node.excluded("drained") == (StopWorkers(grace_seconds=2.0, tell_host=False),)
    assert play.node.stopped() == (Leave(reason=Reason.UNHEALTHY, detail="drained"),)


def test_a_sick_host_goes_on_serving_the_others() -> None:
    play = Play(is_host=True)
    play.train()
    assert play.node.exclude("GPU 3 is lost") == (
        ExcludeTask(why="GPU 3 is lost"),
        StopWorkers(grace_seconds=2.0, tell_host=False),
    )
    assert play.node.stopped() == ()
    assert play.hear(opened(1)) == ()
    assert play.hear(ended(Reason.SUCCESS, 0)) == (Leave(reason=Reason.SUCCESS, detail=""),)


def test_an_end_of_the_job_ends_ranks_and_then_the_launcher() -> None:
    play = Play()
    play.train()
    assert play.hear(ended(Reason.NO_PROGRESS, 93)) == (StopWorkers(grace_seconds=2.0, tell_host=False),)
    assert play.node.stopped() == (Leave(reason=Reason.NO_PROGRESS, detail=""),)
    assert play.node.phase is Phase.LEFT


def test_ranks_of_a_terminated_job_get_the_time_to_save() -> None:
    play = Play()
    play.train()
    assert play.hear(ended(Reason.TERMINATED, 143)) == (StopWorkers(grace_seconds=60.0, tell_host=False),)


def test_a_launcher_that_is_told_to_end_leaves_alone_and_the_host_takes_the_job_along() -> None:
    play = Play()
    play.train()
    assert play.node.told_to_end("TERM") == (StopWorkers(grace_seconds=60.0, tell_host=False),)
    assert play.node.stopped() == (Leave(reason=Reason.TERMINATED, detail="TERM"),)
    host = Play(is_host=True)
    host.train()
    assert host.node.told_to_end("TERM")[0] == EndJob(reason=Reason.TERMINATED, detail="TERM")


def test_a_verdict_that_comes_while_a_launcher_leaves_gives_its_code() -> None:
    play = Play()
    play.train()
    play.node.told_to_end("TERM")
    play.hear(ended(Reason.NO_PROGRESS, 93))
    assert play.node.stopped() == (Leave(reason=Reason.NO_PROGRESS, detail=""),)


def test_a_lost_host_ends_ranks_without_grace() -> None:
    play = Play()
    play.train()
    assert play.node.lost_host("gone") == (StopWorkers(grace_seconds=0.0, tell_host=False),)
    assert play.node.stopped() == (Leave(reason=Reason.HOST_LOST, detail="gone"),)


def test_a_node_with_ranks_that_cannot_be_killed_starts_none_beside_them() -> None:
    play = Play()
    play.train()
    play.node.failed(FAILURE)
    assert play.node.unkillable("pid 7") == (
        ExcludeTask(why="pid 7"),
        Leave(reason=Reason.UNHEALTHY, detail="pid 7"),
    )


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: ranks are never started beside others, and every end is an end."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play()
        self.has_ranks = False
        self.stopping = False
        self.left = 0
        self.checking: list[int] = []

    @property
    def is_busy(self) -> bool:
        return self.has_ranks or self.stopping

    def carry_out(self, actions: Actions) -> None:
        for action in actions:
            assert self.left == 0, "nothing is done after leaving"
            if isinstance(action, StartWorkers):
                assert not self.is_busy
                assert self.play.node.is_active
                self.has_ranks = True
            elif isinstance(action, StopWorkers):
                self.stopping = True
            elif isinstance(action, Join):
                assert not self.is_busy
            elif isinstance(action, CheckHealth):
                self.checking.append(action.round)
            elif isinstance(action, Leave):
                assert not self.is_busy
                self.left += 1

    @rule()
    def open(self) -> None:
        self.carry_out(self.play.hear(opened(self.play.state.round + 1)))

    @rule(active=st.sampled_from([("me", "a"), ("a", "me"), ("a", "b")]))
    def fill(self, active: tuple[str, str]) -> None:
        if self.play.state.round >= 0 and (self.play.node.phase is Phase.JOINED or "me" not in active):
            self.carry_out(self.play.hear(filled(self.play.state.round, *active)))

    @rule()
    def host(self) -> None:
        if self.play.state.filled is not None:
            self.carry_out(self.play.hear(hosted(self.play.state.round)))

    @rule(reason=st.sampled_from([Reason.SUCCESS, Reason.NO_PROGRESS, Reason.TERMINATED]))
    def end(self, reason: Reason) -> None:
        self.carry_out(self.play.hear(ended(reason)))

    @precondition(lambda self: self.checking)
    @rule(sick=st.sampled_from([None, None, None, "GPU"]))
    def check(self, sick: str | None) -> None:
        self.carry_out(self.play.node.checked(self.checking.pop(0), sick))

    @precondition(lambda self: self.has_ranks and not self.stopping)
    @rule()
    def fail(self) -> None:
        self.carry_out(self.play.node.failed(FAILURE))

    @precondition(lambda self: self.has_ranks and not self.stopping)
    @rule()
    def finish(self) -> None:
        self.has_ranks = False
        self.carry_out(self.play.node.all_done())

    @precondition(lambda self: self.stopping)
    @rule()
    def all_gone(self) -> None:
        self.has_ranks = self.stopping = False
        self.carry_out(self.play.node.stopped())

    @rule()
    def lose_host(self) -> None:
        self.carry_out(self.play.node.lost_host("gone"))

    @rule()
    def tell(self) -> None:
        self.carry_out(self.play.node.told_to_end("TERM"))

    @invariant()
    def an_end_is_reached(self) -> None:
        if self.play.state.ended is not None:
            assert self.left == 1 or self.stopping


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
