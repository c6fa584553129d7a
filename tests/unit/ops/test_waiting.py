"""What ends a wait and with which code, how often Slurm is asked, and what an outage changes."""

from __future__ import annotations

import json
import os
import threading

import msgspec
import pytest
from click.testing import CliRunner

from nvrx_chain.cli import cli
from nvrx_chain.clock import format_time
from nvrx_chain.errors import ExitCode, Unobserved
from nvrx_chain.ops.waiting import CALLS_PER_MINUTE, LEAVING_SECONDS, QueueTurns, WaitEnd, Waiter, WaitReport
from nvrx_chain.records.control import Ending
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.unit.ops.conftest import ChainOnDisk, World

DAY = 24 * 3600.0


def wait_for(
    world: World, chain: ChainOnDisk, *, timeout: float | None = DAY, until_held: bool = False, jitter: float = 0.5
) -> WaitReport:
    shown: list[str] = []
    waiter = Waiter(
        chain=chain.open(),
        client=world.slurm,
        clock=world.clock,
        show=shown.append,
        wake=threading.Event(),
        until_held=until_held,
        timeout_seconds=timeout,
        turns=QueueTurns(clock=world.clock, jitter=lambda: jitter),
    )
    report = waiter.run()
    world.said += shown
    return report


def end_all(world: World, *jobs: int) -> None:
    for job in reversed(jobs):
        world.slurm.cancel([str(job)])


@pytest.mark.parametrize(
    ("verdict", "end", "code"),
    [
        (Verdict.COMPLETED, WaitEnd.COMPLETED, ExitCode.DONE),
        (Verdict.EXHAUSTED, WaitEnd.EXHAUSTED, ExitCode.FAILED),
        (Verdict.NO_RESTART, WaitEnd.NO_RESTART, ExitCode.NO_RESTART),
        (Verdict.CANCELLED, WaitEnd.CANCELLED, ExitCode.CANCELLED),
    ],
)
def test_the_verdict_ends_it_with_its_code(
    world: World, chain: ChainOnDisk, verdict: Verdict, end: WaitEnd, code: ExitCode
) -> None:
    jobs = chain.submit_three()
    world.clock.after(600, lambda: (chain.decide(verdict, "so it is"), end_all(world, *jobs)))
    report = wait_for(world, chain)
    assert (report.end, report.exit_code) == (end, int(code))
    assert "so it is" in report.why
    assert 600 <= report.waited_seconds <= 700


def test_every_verdict_has_an_end() -> None:
    assert {verdict.value for verdict in Verdict} <= {end.value for end in WaitEnd}


def test_the_codes_of_different_ends_differ_from_those_of_a_killed_wait(world: World, chain: ChainOnDisk) -> None:
    assert int(ExitCode.CANCELLED) not in (128 + 15, 128 + 2, 1, 0)


def test_a_chain_that_had_ended_before_is_reported_at_once(world: World, chain: ChainOnDisk) -> None:
    chain.decide(Verdict.COMPLETED)
    report = wait_for(world, chain)
    assert report.waited_seconds < 1
    assert len(world.slurm.asked("queue")) == 1


def test_tasks_that_are_leaving_are_waited_for(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.clock.after(600, lambda: chain.decide(Verdict.CANCELLED))
    world.clock.after(609, lambda: end_all(world, *jobs))
    report = wait_for(world, chain)
    assert report.live_jobs == ()
    assert report.waited_seconds >= 609


def test_tasks_that_do_not_leave_are_named_after_a_while(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.clock.after(10, lambda: chain.decide(Verdict.CANCELLED))
    report = wait_for(world, chain)
    assert report.live_jobs == (job,)
    assert LEAVING_SECONDS <= report.waited_seconds <= LEAVING_SECONDS + 30


def test_a_chain_that_ran_dry_is_exhausted_after_two_readings(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.clock.after(300, lambda: end_all(world, *jobs))
    report = wait_for(world, chain)
    assert (report.end, report.verdict) == (WaitEnd.EXHAUSTED, None)
    assert 330 <= report.waited_seconds <= 300 + 75 + 75


def test_one_empty_reading_is_not_enough(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    queue = world.slurm.queue
    seen = [0]

    def blink(user: str | None = None) -> object:
        seen[0] += 1
        reading = queue(user)
        if seen[0] == 3 and not isinstance(reading, Unobserved):
            return type(reading)(tasks=(), read_at=reading.read_at)
        return reading

    world.slurm.queue = blink  # type: ignore[method-assign, assignment]
    assert wait_for(world, chain, timeout=1800).end is WaitEnd.TIMED_OUT
    assert seen[0] > 4


def test_a_generation_that_is_queued_between_the_two_readings_goes_on(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.clock.after(5, lambda: end_all(world, job))
    world.clock.after(75, lambda: chain.submit(2))
    assert wait_for(world, chain, timeout=900).end is WaitEnd.TIMED_OUT


def test_a_submission_without_an_answer_may_be_alive(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.intend(2)
    end_all(world, job)
    assert wait_for(world, chain, timeout=900).end is WaitEnd.TIMED_OUT


def test_a_job_that_cannot_be_told_to_be_the_chains_is_not_dry(world: World, chain: ChainOnDisk) -> None:
    other = world.slurm.submit([word.replace("job-name=train", "job-name=other") for word in chain.argv(1)])
    chain.record_id(1, other.array_job_id)
    assert wait_for(world, chain, timeout=900).end is WaitEnd.TIMED_OUT


def test_the_verdict_that_comes_with_the_second_reading_wins(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    end_all(world, job)
    queue = world.slurm.queue
    seen = [0]

    def decide_late(user: str | None = None) -> object:
        seen[0] += 1
        reading = queue(user)
        if seen[0] == 2:
            chain.decide(Verdict.COMPLETED)
        return reading

    world.slurm.queue = decide_late  # type: ignore[method-assign, assignment]
    assert wait_for(world, chain).end is WaitEnd.COMPLETED


def test_an_outage_of_the_controller_is_survived(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    world.clock.after(7200, lambda: world.slurm.always("queue", Unobserved("still away")))
    world.clock.after(9000, lambda: chain.decide(Verdict.COMPLETED))
    report = wait_for(world, chain)
    assert (report.end, report.live_jobs) == (WaitEnd.COMPLETED, None)
    assert any("Slurm could not be read: squeue did not answer" in line for line in world.said)
    assert jobs


def test_an_outage_is_never_taken_for_a_dry_queue(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.always("queue", Unobserved("away"))
    assert wait_for(world, chain).end is WaitEnd.TIMED_OUT


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_slurm_is_asked_at_most_twice_in_any_minute(world: World, chain: ChainOnDisk, jitter: float) -> None:
    jobs = chain.submit_three()
    times: list[float] = []
    for operation in ("queue", "config"):
        real = getattr(world.slurm, operation)

        def timed(*words: object, real: object = real) -> object:
            times.append(world.clock.monotonic())
            return real(*words)  # type: ignore[operator]

        setattr(world.slurm, operation, timed)
    world.clock.after(3600, lambda: chain.decide(Verdict.CANCELLED))
    world.clock.after(3690, lambda: end_all(world, *jobs))
    wait_for(world, chain, jitter=jitter)
    assert 40 <= len(times) <= 100
    dry = world.make_chain(world.root / "dry", chain_id="dry")
    dry.record_id(1, 4711)
    # Each waiter has a budget of its own.
    world.clock.advance(120)
    assert wait_for(world, dry, jitter=jitter).end is WaitEnd.EXHAUSTED
    for at in times:
        assert sum(at <= other < at + 60 for other in times) <= CALLS_PER_MINUTE


def test_a_hold_is_waited_out_unless_it_is_asked_for(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.clock.after(60, chain.brake)
    held = wait_for(world, chain, until_held=True)
    assert (held.end, held.exit_code) == (WaitEnd.HELD, 77)
    assert "2 generations in a row failed" in held.why
    assert wait_for(world, chain, timeout=600).end is WaitEnd.TIMED_OUT


def test_a_chain_that_was_to_end_and_is_gone_counts_as_cancelled(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    order = Ending(
        chain_id=chain.chain_id, array_job_id=job, by="ann", why="enough", decided_at=format_time(world.clock.now())
    )
    assert chain.open().files.end_after(order)
    end_all(world, job)
    report = wait_for(world, chain)
    assert (report.end, report.exit_code) == (WaitEnd.CANCELLED, 79)


def test_a_resume_meanwhile_ends_it_by_the_verdict_in_the_history(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)

    def resume() -> None:
        chain.decide(Verdict.EXHAUSTED)
        moved = chain.run.history / "c0ffee"
        moved.mkdir(parents=True)
        os.rename(chain.run.outcome, moved / "chain_outcome.json")
        world.make_chain(chain.run.path, chain_id="newer")

    world.clock.after(30, resume)
    report = wait_for(world, chain)
    assert (report.end, report.exit_code) == (WaitEnd.EXHAUSTED, 1)


def test_a_directory_with_another_chain_and_no_word_of_this_one_is_said(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    world.clock.after(30, lambda: world.make_chain(chain.run.path, chain_id="newer"))
    report = wait_for(world, chain)
    assert (report.end, report.why) == (WaitEnd.REPLACED, "the directory now holds chain newer")


def test_on_another_cluster_only_the_files_tell(world: World) -> None:
    chain = world.make_chain(cluster="elsewhere")
    chain.record_id(1, 4711)
    world.clock.after(600, lambda: chain.decide(Verdict.COMPLETED))
    assert wait_for(world, chain).end is WaitEnd.COMPLETED
    assert len(world.slurm.asked("queue")) <= 2
    assert "so only its files tell" in world.said[-1]


def test_a_short_chain_is_not_waited_for_a_minute_longer(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.clock.after(12, lambda: chain.decide(Verdict.COMPLETED))
    world.clock.after(15, lambda: end_all(world, job))
    report = wait_for(world, chain)
    assert (report.live_jobs, report.waited_seconds <= 30) == ((), True), report


def test_progress_names_generation_and_iteration(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    chain.lease(first, "training")
    chain.iteration("70")
    wait_for(world, chain, timeout=30)
    assert f"train: generation 1 of 3 ({first}) training, iteration 70" in world.said[-1]


def test_the_command_prints_and_exits(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.close(job, Outcome.FAILED)
    timed_out = CliRunner().invoke(cli, ["wait", str(chain.run.path), "--timeout", "20"], obj=world.desk())
    assert timed_out.exit_code == 124
    assert "timed out, not ended within 20 s" in timed_out.stdout
    chain.decide(Verdict.NO_RESTART)
    end_all(world, job)
    world.clock.advance(60)
    done = CliRunner().invoke(cli, ["wait", str(chain.run.path), "--json"], obj=world.desk())
    seen = json.loads(done.stdout)
    assert (done.exit_code, seen["end"], seen["exit_code"]) == (93, "no_restart", 93)
    assert set(seen) == {field.name for field in msgspec.structs.fields(WaitReport)}


def test_an_interrupt_ends_it_as_a_shell_counts(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.clock.after(3, interrupt)
    done = CliRunner().invoke(cli, ["wait", str(chain.run.path)], obj=world.desk())
    assert done.exit_code == 130
