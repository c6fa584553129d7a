"""The player: acts in their order, deadlines, the first broken promise, and faults that are noted with their moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.demo.evidence import Evidence, FaultDone
from nvrx_chain.demo.expectations import Expectation, RowState, check, failures, undecided
from nvrx_chain.demo.play import POLL_SECONDS, Play, Stage
from nvrx_chain.demo.repairs import repairs_of_faults
from nvrx_chain.demo.scenario import Act, Await, KillHostNode, KillRank, Scenario, ScenarioName
from nvrx_chain.errors import DemoError, SandboxError
from nvrx_chain.sandbox import FaultKind, FaultReport
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_clock import FakeClock
from tests.unit.demo.story import Story

SEARCH_SECONDS = 0.4


class FakeGatherer:
    """Reads a story that the test goes on writing."""

    def __init__(self, story: Story, clock: FakeClock) -> None:
        self.story = story
        self._clock = clock

    def add_fault(self, fault: FaultDone) -> None:
        self.story.faults.append(fault)

    def read(self, reference: Any = None, *, ask_now: bool = False) -> Evidence:
        self.story.at = self._clock.monotonic()
        return self.story.evidence()


@dataclass
class FakeSandbox:
    """Remembers what it was asked to hurt. It needs SEARCH_SECONDS before the blow and as long after it."""

    clock: FakeClock
    hurt: list[tuple[str, object]] = field(default_factory=list)

    def kill_rank(self, array_job_id: int, rank: int) -> FaultReport:
        return self._report(FaultKind.KILL_RANK, (array_job_id, rank))

    def kill_node(self, node: str) -> FaultReport:
        return self._report(FaultKind.KILL_NODE, node)

    def _report(self, kind: FaultKind, victim: object) -> FaultReport:
        self.hurt.append((kind.value, victim))
        self.clock.advance(SEARCH_SECONDS)
        hit_at: datetime = self.clock.now()
        self.clock.advance(SEARCH_SECONDS)
        return FaultReport(kind=kind, target=str(victim), pids=(1,), hit_at=hit_at, verified="it is dead")


@dataclass
class Lines:
    """A view that remembers."""

    said: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.said.append(line)

    def show(self, evidence: Evidence, waiting_for: str) -> None:
        self.shown.append(waiting_for)


class Theatre:
    """A stage without a cluster, and a story to be played on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.story = Story()
        self.story.queued(1, 2)
        self.sandbox = FakeSandbox(self.clock)
        self.view = Lines()
        self._place = tmp_path

    def play(self, *acts: Act, judge: Callable[[Evidence], tuple[Expectation, ...]] | None = None) -> Any:
        scenario = Scenario(
            name=ScenarioName.HAND_OFF,
            title="",
            nodes=1,
            submit_flags=lambda place: {},
            workload=(),
            acts=acts,
            judge=judge or (lambda evidence: ()),
            find_repairs=repairs_of_faults,
        )
        stage = Stage(
            sandbox=self.sandbox,  # type: ignore[arg-type]
            gatherer=FakeGatherer(self.story, self.clock),  # type: ignore[arg-type]
            clock=self.clock,
            view=self.view,
            place=self._place,
            environ={},
            python="python",
        )
        return Play(scenario, stage).run()


@pytest.fixture
def theatre(tmp_path: Path) -> Theatre:
    return Theatre(tmp_path)


def is_trained(evidence: Evidence) -> bool:
    return evidence.iteration() > 0


def judge_training(evidence: Evidence) -> tuple[Expectation, ...]:
    """One row that training decides, and one that nothing ever does."""
    trained = check("trains", evidence.iteration() < 100, "seen") if is_trained(evidence) else undecided("trains", "-")
    return (trained, undecided("later", "-"))


def test_a_wait_ends_when_what_it_waits_for_has_happened(theatre: Theatre) -> None:
    theatre.clock.after(7.0, lambda: theatre.story.trains(1, 0, 3, at=4.0))
    curtain = theatre.play(Await(title="training starts", until=is_trained, seconds=60))
    assert 7.0 <= theatre.clock.monotonic() <= 7.0 + POLL_SECONDS
    assert curtain.rows == ()
    assert theatre.view.said == ["generation 1: 2 ranks, rank 0 on n1: trains from the beginning"]


def test_a_missed_deadline_without_rows_breaks_a_promise_of_its_own(theatre: Theatre) -> None:
    curtain = theatre.play(
        Await(title="training starts", until=is_trained, seconds=60),
        KillRank(rank=1),
    )
    assert 60 < theatre.clock.monotonic() <= 60 + 2 * POLL_SECONDS
    assert failures(curtain.rows) == ("training starts",)
    assert curtain.rows[-1].detail == "not within 60 s"
    assert theatre.sandbox.hurt == []


def test_a_missed_deadline_breaks_the_rows_that_were_waited_for_and_no_others(theatre: Theatre) -> None:
    curtain = theatre.play(Await(title="training starts", seconds=60, rows=("trains",)), judge=judge_training)
    assert [(row.name, row.state) for row in curtain.rows] == [("trains", RowState.FAILED), ("later", RowState.OPEN)]


def test_a_broken_promise_ends_the_play_long_before_the_deadline(theatre: Theatre) -> None:
    theatre.clock.after(5.0, lambda: theatre.story.trains(1, 0, 100, at=4.0))
    curtain = theatre.play(
        Await(title="something else", until=lambda evidence: False, seconds=600),
        KillRank(rank=1),
        judge=judge_training,
    )
    assert theatre.clock.monotonic() < 6.0
    assert failures(curtain.rows) == ("trains",)
    assert theatre.sandbox.hurt == []
    assert theatre.view.said[-1] == "FAILED: trains"


def test_a_rank_is_killed_in_the_generation_that_trains_and_the_moment_of_the_blow_is_noted(theatre: Theatre) -> None:
    theatre.story.trains(1, 0, 3, at=10.0, hosts=("n1", "n5"))
    theatre.clock.advance(14.0)
    curtain = theatre.play(KillRank(rank=1))
    assert theatre.sandbox.hurt == [("kill-rank", (1, 1))]
    fault = curtain.evidence.fault(FaultKind.KILL_RANK)
    assert (fault.node, fault.array_job_id) == ("n5", 1)
    assert fault.at == pytest.approx(14.0 + SEARCH_SECONDS)
    assert theatre.view.said[-1].startswith("FAULT a rank killed: ")


def test_the_node_of_task_0_is_the_one_that_slurm_gave_to_the_generation_that_trains(theatre: Theatre) -> None:
    theatre.story.runs(1, "n1", "n2")
    theatre.story.ends(1, JobState.CANCELLED)
    theatre.story.runs(2, "n4", "n3")
    theatre.story.trains(1, 0, 3, at=10.0)
    theatre.story.trains(2, 0, 3, at=30.0)
    theatre.play(KillHostNode())
    assert theatre.sandbox.hurt == [("kill-node", "n4")]


def test_nothing_is_hurt_when_nobody_can_say_where_it_is(theatre: Theatre) -> None:
    with pytest.raises(DemoError, match="no rank has said anything"):
        theatre.play(KillRank(rank=0))
    theatre.story.trains(1, 0, 3, at=10.0)
    with pytest.raises(DemoError, match="rank 7"):
        theatre.play(KillRank(rank=7))
    with pytest.raises(DemoError, match="does not say where it runs"):
        theatre.play(KillHostNode())
    assert theatre.sandbox.hurt == []


def test_a_fault_that_could_not_be_done_is_an_error_and_not_a_broken_promise(theatre: Theatre) -> None:
    def refuse(array_job_id: int, rank: int) -> FaultReport:
        raise SandboxError("killing a rank: want one such process, found 0")

    theatre.story.trains(1, 0, 3, at=10.0)
    theatre.sandbox.kill_rank = refuse  # type: ignore[method-assign]
    with pytest.raises(SandboxError):
        theatre.play(KillRank(rank=1))


def test_what_is_waited_for_is_shown_with_each_reading(theatre: Theatre) -> None:
    theatre.play(Await(title="training starts", until=is_trained, seconds=3))
    assert set(theatre.view.shown) == {"training starts"}
    assert len(theatre.view.shown) >= 3 / POLL_SECONDS
