"""A pass acts before it talks, remembers what it saw, and pings the heartbeat only when it saw everything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.action_model import Rights
from nvrx_watch.detectors.registry import ALL
from nvrx_watch.gather import Gatherer
from nvrx_watch.history_model import IncidentState, Notice, NoticeKind, SinkPolicy
from nvrx_watch.layout import OwnLayout
from nvrx_watch.model import Generation, Severity
from nvrx_watch.reading_model import RunReading
from nvrx_watch.run_pass import (
    CLEAN,
    CRITICAL,
    DEGRADED,
    Outlets,
    PassParts,
    PassResult,
    Watch,
    exit_code_of,
    run_pass,
)
from nvrx_watch.sinks.chain_metrics import ChainMetrics
from nvrx_watch.sinks.sink import SinkError
from nvrx_watch.slurm_facts import SlurmFacts
from nvrx_watch.state_store import StateStore
from nvrx_watch.thresholds import WatchThresholds
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.watch import build


@dataclass
class Pager:
    """A sink that notes what it was told, and refuses while `refuses` is set."""

    told: list[Notice] = field(default_factory=list)
    refuses: bool = False
    takes_seconds: float = 0.0
    clock: FakeClock | None = None

    @property
    def policy(self) -> SinkPolicy:
        return SinkPolicy(name="pager", minimum_severity=Severity.WARNING, sends_resolve=True, cooldown_seconds=3600)

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        if self.refuses:
            raise SinkError("telling the pager", part="it is down")
        if self.clock is not None:
            self.clock.advance(self.takes_seconds)
        self.told.append(notice)


class World:
    """A chain of three generations on a FakeSlurm, and everything of a watcher but real files and sinks."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock, user=build.USER, first_job_id=11)
        self.pager = Pager()
        self.pings = 0
        self.published: list[Sequence[ChainMetrics]] = []
        self.changes: dict[str, Any] = {}
        self.store = StateStore(root / "state dir")
        self.jobs = [self._submit(sequence) for sequence in (1, 2, 3)]
        layout = OwnLayout(run_directory=build.RUN_DIRECTORY, chain_id=build.CHAIN_ID, owner_uid=build.UID)
        self.watch = Watch(subject=build.subject(), layout=layout)
        self.thresholds = WatchThresholds(orphan_grace=5)
        self.disabled: frozenset[str] = frozenset()
        self.act = False
        self.publish: Callable[[Sequence[ChainMetrics]], None] = self.published.append
        facts = SlurmFacts(self.slurm)
        self.gatherer = Gatherer(reader=self, facts=facts, clock=self.clock, watcher_uid=build.UID)

    def _submit(self, sequence: int) -> int:
        argv = ["--parsable", f"--job-name={build.NAME}", "--array=0-4%3", "--dependency=singleton"]
        return self.slurm.submit([*argv, f"--comment={build.COMMENT}/{sequence}", "/w/x.sbatch"]).array_job_id

    def read(
        self, layout: object, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        """The files, as far as the test did not change them."""
        if "reading" in self.changes:
            broken: Unobserved = self.changes["reading"]
            return broken
        at = FakeClock().now()
        generations = tuple(
            Generation(array_job_id=job, sequence=sequence, submitted_at=at)
            for sequence, job in enumerate(self.jobs, start=1)
        )
        values = {"manifest": build.manifest(), "generations": generations, "iteration": 100}
        return RunReading(**{**values, **self.changes})

    def look(self, queue: QueueReading | None = None) -> PassResult:
        (result,) = run_pass(self._parts(), [self.watch], queue)
        return result

    def _parts(self) -> PassParts:
        def never(argv: Sequence[str], seconds: float) -> CommandAnswer:
            raise AssertionError(f"a command was run: {argv}")

        return PassParts(
            gatherer=self.gatherer,
            make_desk=lambda: ActionDesk(
                client=self.slurm,
                clock=self.clock,
                rights=Rights(user=build.USER, uid=build.UID, act=self.act),
                run_command=never,
                host="login",
            ),
            outlets=Outlets(sinks=(self.pager,), ping=self._ping, metrics=(self.publish,)),
            store=self.store,
            clock=self.clock,
            thresholds=self.thresholds,
            disabled=self.disabled,
        )

    def _ping(self) -> None:
        self.pings += 1

    def orphan(self) -> None:
        """Task 0 of the running generation ends and its grace passes."""
        self.slurm.finish(f"{self.jobs[0]}_0", 1)
        self.clock.advance(30)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def triggers(world: World) -> list[str]:
    return [notice.incident.detector for notice in world.pager.told if notice.kind is NoticeKind.TRIGGER]


def test_a_pass_that_sees_everything_is_clean_and_pings(world: World) -> None:
    result = world.look()
    assert result.exit_code == CLEAN, result.run.findings
    assert world.pings == 1
    assert result.history.last_good_pass_at is not None
    assert len(world.published) == 1


@pytest.mark.parametrize(
    ("operation", "why"),
    [("queue", "squeue did not answer"), ("nodes", "sinfo failed")],
)
def test_a_pass_that_could_not_see_is_degraded_and_silent(world: World, operation: str, why: str) -> None:
    world.slurm.always(operation, Unobserved(why))
    result = world.look()
    assert result.exit_code == DEGRADED
    assert world.pings == 0
    assert result.history.last_good_pass_at is None


def test_files_that_cannot_be_read_are_a_degraded_pass_too(world: World) -> None:
    world.changes["reading"] = Unobserved("the run directory hangs")
    assert world.look().exit_code == DEGRADED
    assert world.pings == 0


def test_a_critical_finding_wins_over_a_blind_source_and_still_pings_when_all_was_seen(world: World) -> None:
    world.orphan()
    result = world.look()
    assert result.exit_code == CRITICAL
    assert world.pings == 1
    assert "orphaned_generation" in triggers(world)
    assert exit_code_of([result, replace(result, run=replace(result.run, findings=()))]) == CRITICAL


def test_a_critical_finding_that_reached_nobody_keeps_the_heartbeat_away(world: World) -> None:
    world.orphan()
    world.pager.refuses = True
    assert world.look().exit_code == CRITICAL
    assert world.pings == 0
    world.pager.refuses = False
    world.clock.advance(7200)
    world.look()
    assert world.pings == 1


def test_nothing_is_acted_on_in_a_pass_that_could_not_see_everything(world: World) -> None:
    world.act = True
    world.orphan()
    world.changes["iteration"] = Unobserved("the checkpoint iteration is not a number")
    result = world.look()
    assert [report.state.value for report in result.reports] == ["failed"]
    assert world.slurm.asked("cancel") == []
    del world.changes["iteration"]
    assert [report.state.value for report in world.look().reports] == ["done"]


def test_an_incident_is_not_over_because_a_source_went_away(world: World) -> None:
    world.orphan()
    world.look()
    world.slurm.always("nodes", Unobserved("sinfo failed"))
    world.disabled = frozenset({"orphaned_running_spares"})
    for _ in range(5):
        world.clock.advance(60)
        world.look()
    assert not [n for n in world.pager.told if n.kind is NoticeKind.RESOLVE and "orphaned_generation" in n.dedup_key]


def test_an_incident_that_is_over_is_said_to_be_over(world: World) -> None:
    world.act = True
    world.orphan()
    world.look()
    for _ in range(3):
        world.clock.advance(60)
        world.look()
    resolved = [n.incident.detector for n in world.pager.told if n.kind is NoticeKind.RESOLVE]
    assert "orphaned_generation" in resolved


def test_incidents_of_a_detector_that_was_switched_off_end(world: World) -> None:
    world.orphan()
    world.look()
    world.disabled = frozenset({"orphaned_generation"})
    for _ in range(3):
        world.clock.advance(60)
        result = world.look()
    incident = result.history.incidents[f"orphaned_generation:{world.jobs[0]}"]
    assert incident.state is IncidentState.RESOLVED


def test_what_a_sink_did_not_take_is_said_and_sent_again_after_a_restart(world: World) -> None:
    world.pager.refuses = True
    world.orphan()
    result = world.look()
    assert any("pager did not take a message" in note for note in result.notes)
    world.pager.refuses = False
    memory, history, notes = world.store.load(world.watch.subject.key)
    assert notes == ()
    world.watch = replace(world.watch, memory=memory, history=history)
    world.clock.advance(600)
    world.look()
    assert "orphaned_generation" in triggers(world)


def test_the_same_incident_is_told_once(world: World) -> None:
    world.orphan()
    for _ in range(5):
        world.look()
        world.clock.advance(30)
    assert triggers(world).count("orphaned_generation") == 1


def test_metrics_that_cannot_be_published_cost_the_metrics_only(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(states: Sequence[ChainMetrics]) -> None:
        raise SinkError("writing metrics", part="disk full")

    world.publish = refuse
    with caplog.at_level(logging.WARNING):
        assert world.look().exit_code == CLEAN
    assert "disk full" in caplog.text
    assert world.pings == 1


def test_a_chain_that_was_not_found_is_a_degraded_pass_of_the_others_too(world: World) -> None:
    (result,) = run_pass(world._parts(), [world.watch], sees_all=False)
    assert world.pings == 0
    assert exit_code_of([result], sees_all=False) == DEGRADED
    assert exit_code_of([], sees_all=False) == DEGRADED
    assert exit_code_of([result]) == CLEAN


def test_what_was_found_of_a_chain_ends_when_another_one_has_its_directory(world: World) -> None:
    world.orphan()
    world.look()
    assert "orphaned_generation" in triggers(world)
    world.changes["manifest"] = build.manifest(chain_id="newer")
    world.clock.advance(60)
    result = world.look()
    assert result.run.findings == ()
    assert result.exit_code == DEGRADED
    resolved = [one.incident.detector for one in world.pager.told if one.kind is NoticeKind.RESOLVE]
    assert "orphaned_generation" in resolved
    assert not [one for one in world.pager.told if one.incident.detector == "observer"]
    world.watch.is_followed = True
    assert world.look().exit_code == CLEAN


def several(world: World, count: int) -> list[Watch]:
    """The same chain under several keys: each has its own history."""
    subjects = [build.subject(key=f"chain {number}") for number in range(count)]
    return [replace(world.watch, subject=subject) for subject in subjects]


def test_the_notices_of_all_chains_share_one_deadline_and_none_is_lost(world: World) -> None:
    world.disabled = frozenset(one.name for one in ALL) - {"orphaned_generation"}
    world.orphan()
    world.pager.clock, world.pager.takes_seconds = world.clock, 20.0
    watches = several(world, 5)
    results = run_pass(world._parts(), watches)
    assert [bool(result.notes) for result in results] == [False, False, True, True, True]
    assert "wait for the next pass" in results[2].notes[0]
    for _ in range(2):
        run_pass(world._parts(), watches)
    assert sorted(one.subject.key for one in world.pager.told) == [f"chain {number}" for number in range(5)]


def test_a_chain_whose_actions_took_long_lets_the_others_go_first(world: World) -> None:
    world.act = True
    world.orphan()

    def cancel_in_vain(specs: Sequence[str], *, pending_only: bool = False) -> None:
        world.clock.advance(30)

    world.slurm.cancel = cancel_in_vain  # type: ignore[method-assign]
    first, second = several(world, 2)
    parts = replace(world._parts(), action_seconds=10.0)
    results = run_pass(parts, [first, second])
    assert ["used up" in result.reports[0].why for result in results] == [False, True]
    results = run_pass(parts, [first, second])
    assert ["used up" in result.reports[0].why for result in results] == [True, False]


def test_a_job_on_record_that_is_not_provably_the_chains_is_a_warning(world: World) -> None:
    world.slurm.cancel([str(world.jobs[2])])
    argv = ["--parsable", f"--job-name={build.NAME}", "--array=0-4%3", "--comment=nvrx-chain:another/3", "/w/x.sbatch"]
    world.jobs[2] = world.slurm.submit(argv).array_job_id
    result = world.look()
    assert world.jobs[2] in result.snapshot.queue.doubtful  # type: ignore[union-attr]
    (finding,) = [one for one in result.run.findings if one.detector == "foreign_job_in_chain"]
    assert (finding.severity, finding.scope) == (Severity.WARNING, str(world.jobs[2]))
    assert "foreign_job_in_chain" in triggers(world)


def test_no_chain_is_no_ping(world: World) -> None:
    assert run_pass(world._parts(), []) == ()
    assert world.pings == 0
