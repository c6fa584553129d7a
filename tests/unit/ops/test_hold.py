"""A hold keeps queued generations from starting and no running one from going on; a release undoes just that."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from nvrx_chain.errors import IdentityError, RecordError, SlurmError, Unobserved
from nvrx_chain.ops.hold import HoldReport, hold_chain, is_held, release_chain, render_hold
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_slurm import Act, FakeSlurm
from tests.unit.ops.conftest import USER, ChainOnDisk, World


def hold(world: World, chain: ChainOnDisk, *, seconds: float = 60.0, why: str | None = None) -> HoldReport:
    return hold_chain(chain.open(), world.desk(), why=why, seconds=seconds)


def release(world: World, chain: ChainOnDisk, *, seconds: float = 60.0) -> HoldReport:
    return release_chain(chain.open(), world.desk(), seconds=seconds)


def finish(world: World, job: int) -> None:
    """Let a whole generation end."""
    for index in range(5):
        world.slurm.finish(f"{job}_{index}", 1)


def reasons(world: World, job: int) -> set[str]:
    rows = [world.slurm.task(f"{job}_{index}") for index in range(5)]
    return {row.reason for row in rows if row.state.is_pending}


def test_queued_generations_are_held_and_the_running_one_goes_on(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    report = hold(world, chain, why="look at the loss")
    assert report.is_complete
    assert report.done == (second, third)
    assert reasons(world, second) == reasons(world, third) == {"JobHeldUser"}
    assert reasons(world, first) == {"JobArrayTaskLimit"}, "a cold spare of the running one must be able to start"
    record = json.loads(chain.run.hold.read_text())
    assert (record["by"], record["why"], record["released_at"]) == ("alice on login", "look at the loss", None)
    assert record["array_job_ids"] == [second, third]


def test_the_running_generation_ends_and_the_next_one_stays(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    hold(world, chain)
    finish(world, first)
    assert world.slurm.task(f"{second}_0").state is JobState.PENDING


def test_hold_json_stands_when_slurm_cannot_be_read(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.always("queue", Unobserved("squeue did not answer"))
    report = hold(world, chain)
    assert report.no_answer == "squeue did not answer"
    assert not report.is_complete
    assert chain.open().hold() is not None
    assert not world.slurm.asked("hold")
    assert "repeat this command" in render_hold(report)


def test_a_hold_that_does_nothing_is_repeated_and_then_reported(world: World, chain: ChainOnDisk) -> None:
    _, second, third = chain.submit_three()
    world.slurm.always("hold", Act.IGNORED)
    report = hold(world, chain, seconds=10)
    assert report.not_done == {second: "it is not held", third: "it is not held"}
    assert not report.is_complete
    assert len(world.slurm.asked("hold")) > 10
    assert f"not held     {second}: it is not held" in render_hold(report)


def test_a_refused_hold_says_what_slurm_said_and_stops_no_other(world: World, chain: ChainOnDisk) -> None:
    _, second, third = chain.submit_three()
    world.slurm.script("hold", SlurmError("hold jobs", part="Job is no longer pending execution"))
    world.slurm.always("hold", Act.NORMAL)
    report = hold(world, chain, seconds=0)
    assert report.done == (third,)
    assert "no longer pending" in report.not_done[second]


def test_a_held_chain_keeps_its_first_hold(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    chain.brake()
    report = hold(world, chain, why="mine")
    assert not report.changed
    assert report.hold is not None
    assert report.hold.by == "brake in 11_0 on n1"
    assert reasons(world, second) == {"JobHeldUser"}
    assert "is held already, since 2026-01-01T00:00:00Z by brake in 11_0 on n1" in render_hold(report)


def test_a_chain_that_was_released_is_held_anew(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    hold(world, chain, why="first")
    release(world, chain)
    report = hold(world, chain, why="second")
    assert report.changed
    assert chain.open().hold() == report.hold
    assert report.hold is not None
    assert (report.hold.why, report.hold.released_at) == ("second", None)


class StartsInBetween(FakeSlurm):
    """The running generation ends just before the next one is held."""

    running: int | None = None

    def hold(self, specs: Sequence[str]) -> None:
        if self.running is not None:
            ending, self.running = self.running, None
            for index in range(5):
                self.finish(f"{ending}_{index}", 1)
        super().hold(specs)


def test_a_generation_that_started_while_it_was_held_gets_its_tasks_back(world: World, chain: ChainOnDisk) -> None:
    slurm = StartsInBetween(world.clock, user=USER)
    world.slurm = slurm
    first, second, third = chain.submit_three()
    slurm.running = first
    report = hold(world, chain)
    assert world.slurm.task(f"{second}_0").state is JobState.RUNNING
    assert reasons(world, second) == {"JobArrayTaskLimit"}
    assert reasons(world, third) == {"JobHeldUser"}
    assert report.is_complete
    assert report.done == (third,)
    assert any(f"job {second} started" in line for line in world.said)


def test_nothing_queued_is_said(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    report = hold(world, chain)
    assert report.is_complete
    assert "no generation is queued" in render_hold(report)


def test_a_release_stamps_the_hold_and_lets_the_jobs_go(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    hold(world, chain)
    world.clock.advance(100)
    finish(world, first)
    report = release(world, chain)
    assert report.is_complete
    assert report.done == (second, third)
    assert world.slurm.task(f"{second}_0").state is JobState.RUNNING
    assert reasons(world, third) == {"Dependency"}
    record = json.loads(chain.run.hold.read_text())
    assert record["released_by"] == "alice on login"
    assert record["released_at"] > record["held_at"]


class WatchedRelease(FakeSlurm):
    """Notes whether the hold was stamped when the first job was let go."""

    chain: ChainOnDisk
    stamped_first: bool | None = None

    def release(self, specs: Sequence[str]) -> None:
        if self.stamped_first is None:
            self.stamped_first = json.loads(self.chain.run.hold.read_text())["released_at"] is not None
        super().release(specs)


def test_the_stamp_comes_before_the_queue(world: World, chain: ChainOnDisk) -> None:
    slurm = WatchedRelease(world.clock, user=USER)
    slurm.chain = chain
    world.slurm = slurm
    chain.submit_three()
    hold(world, chain)
    release(world, chain)
    assert slurm.stamped_first is True


def test_a_second_release_keeps_the_stamp_and_lets_go_what_is_held(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    hold(world, chain)
    world.slurm.always("release", Act.IGNORED)
    vain = release(world, chain, seconds=5)
    assert vain.not_done[second] == "it is still held"
    assert not vain.is_complete
    stamp = chain.run.hold.read_bytes()
    world.slurm.always("release", Act.NORMAL)
    world.clock.advance(60)
    again = release(world, chain)
    assert again.is_complete
    assert chain.run.hold.read_bytes() == stamp


def test_a_chain_that_was_never_held_is_told_so(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    report = release(world, chain)
    assert not report.changed
    assert report.is_complete
    assert not chain.run.hold.exists()
    assert "was not held" in render_hold(report)
    assert "nothing was held" in render_hold(report)


def test_jobs_held_by_hand_are_let_go_without_a_hold_on_record(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    world.slurm.hold([str(second)])
    assert release(world, chain).done == (second,)
    assert reasons(world, second) == {"Dependency"}


def test_a_held_task_of_a_closed_generation_stays_held(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    world.slurm.hold([f"{first}_4"])
    chain.close(first, Outcome.FAILED)
    report = release(world, chain)
    assert world.slurm.task(f"{first}_4").reason == "JobHeldUser", "it would run beside the next generation"
    assert first not in report.done


class HeldByRoot(FakeSlurm):
    """Whatever is held was held by an administrator."""

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        reading = super().queue(user)
        if isinstance(reading, Unobserved):
            return reading
        rows = [replace(row, reason=row.reason.replace("JobHeldUser", "JobHeldAdmin")) for row in reading.tasks]
        return QueueReading(tasks=tuple(rows), read_at=reading.read_at)

    def release(self, specs: Sequence[str]) -> None:
        raise SlurmError("release jobs", part="Access/permission denied for job")


def test_what_an_administrator_holds_is_said_and_not_tried_for_ever(world: World, chain: ChainOnDisk) -> None:
    world.slurm = HeldByRoot(world.clock, user=USER)
    _, second, third = chain.submit_three()
    world.slurm.hold([str(second), str(third)])
    report = release(world, chain)
    assert set(report.not_done) == {second, third}
    assert f"scontrol release {second}" in report.not_done[second]
    assert not report.is_complete
    assert world.clock.monotonic() < 10


@pytest.mark.parametrize("command", [hold, release])
def test_an_ended_chain_is_refused_with_the_way_on(world: World, chain: ChainOnDisk, command: object) -> None:
    chain.submit_three()
    chain.decide(Verdict.NO_RESTART, "a launcher said so")
    with pytest.raises(RecordError, match=r"has ended: no_restart.*submit --resume --run-dir '"):
        command(world, chain)  # type: ignore[operator]
    assert not chain.run.hold.exists()
    assert not world.slurm.asked("hold")
    assert not world.slurm.asked("release")


@pytest.mark.parametrize("command", [hold_chain, release_chain])
def test_another_users_chain_is_refused(world: World, chain: ChainOnDisk, command: object) -> None:
    with pytest.raises(IdentityError, match="refused"):
        command(chain.open(), world.desk(uid=os.getuid() + 1))  # type: ignore[operator]
    assert not chain.run.hold.exists()


def test_jobs_of_others_with_the_same_name_are_not_held(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    of_bob = [world.slurm.submit_as("bob", chain.argv(sequence)) for sequence in (1, 2)]
    other = world.make_chain(world.root / "other", chain_id="other")
    of_other_chain = other.submit(1)
    chain.record_id(3, of_bob[1])
    hold(world, chain)
    held = {spec for call in world.slurm.asked("hold") for spec in call.arguments[0]}  # type: ignore[attr-defined]
    assert not held & {str(job) for job in (*of_bob, of_other_chain)}


def test_a_hold_that_cannot_be_read_is_an_error(world: World, chain: ChainOnDisk) -> None:
    chain.run.hold.write_text("{")
    with pytest.raises(RecordError, match="reading the hold"):
        hold(world, chain)


def test_a_running_task_is_never_held(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    assert not is_held(replace(world.slurm.task(f"{job}_0"), reason="JobHeldUser"))


def test_the_json_form_has_these_fields(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    assert list(json.loads(msgspec.json.encode(hold(world, chain)))) == [
        "schema",
        "action",
        "chain_id",
        "name",
        "run_directory",
        "hold",
        "changed",
        "done",
        "not_done",
        "left_alone",
        "no_answer",
    ]
