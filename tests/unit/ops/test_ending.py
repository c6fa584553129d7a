"""`cancel --after-current`: what waits goes, what runs goes on, and the chain ends with it."""

from __future__ import annotations

import json

import msgspec
import pytest
from click.testing import CliRunner

from nvrx_chain.cli import cli
from nvrx_chain.clock import format_time
from nvrx_chain.errors import IdentityError, RecordError, SlurmError, Unobserved
from nvrx_chain.ops.cancel import CancelReport
from nvrx_chain.ops.ending import EndingReport, end_after_current, render_ending
from nvrx_chain.ops.hold import hold_chain, release_chain
from nvrx_chain.ops.status import ChainState
from nvrx_chain.ops.survey import survey_chain
from nvrx_chain.records.control import Ending
from nvrx_chain.records.files import encode_record, read_record, write_atomic
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.submit.extend import extend_chain
from nvrx_chain.submit.extension import ExtendRequest
from tests.fakes.fake_slurm import Act
from tests.unit.ops.conftest import ChainOnDisk, World


def end(world: World, chain: ChainOnDisk, **options: object) -> EndingReport:
    report = end_after_current(chain.open(), world.desk(), **options)  # type: ignore[arg-type]
    assert isinstance(report, EndingReport)
    return report


def order(chain: ChainOnDisk) -> Ending:
    record = read_record(chain.run.ending, Ending)
    assert isinstance(record, Ending)
    return record


def live(world: World, job: int) -> list[str]:
    return [world.slurm.task(f"{job}_{index}").raw_state for index in range(5)]


def test_what_is_queued_goes_and_the_running_generation_keeps_its_spares(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    report = end(world, chain, why="the budget is spent")
    assert report.is_complete
    assert (report.decided_now, report.gone, report.verdict) == (True, (second, third), None)
    assert live(world, first) == ["RUNNING"] * 3 + ["PENDING"] * 2
    assert report.goes_on == {first: "3 running, 2 pending"}
    assert (order(chain).array_job_id, order(chain).why) == (first, "the budget is spent")
    assert not chain.run.outcome.exists()


def test_the_order_is_on_disk_before_the_first_cancel(world: World, chain: ChainOnDisk) -> None:
    _, second, third = chain.submit_three()
    world.slurm.always("cancel", SlurmError("cancel jobs", part="no"))
    report = end(world, chain, seconds=5)
    assert chain.run.ending.exists()
    assert not report.is_complete
    assert set(report.still_there) == {second, third}
    assert "Slurm said   cancel jobs: no" in render_ending(report)
    assert world.said == ["cancel jobs: no; it is tried again"]


def test_a_second_call_is_harmless_and_says_since_when(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    end(world, chain, why="enough")
    before = order(chain)
    world.clock.advance(60)
    again = end(world, chain, why="another reason")
    assert (again.decided_now, again.asked, order(chain)) == (False, (), before)
    assert f"ends after generation {first}, since" in render_ending(again)


def test_a_call_that_was_cut_off_is_completed_by_the_next(world: World, chain: ChainOnDisk) -> None:
    _, second, third = chain.submit_three()
    world.slurm.always("cancel", Act.IGNORED)
    end(world, chain, seconds=3)
    world.slurm.always("cancel", Act.NORMAL)
    assert end(world, chain).gone == (second, third)


def test_with_nothing_running_it_is_a_cancel(world: World, chain: ChainOnDisk) -> None:
    for name in ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"):
        world.slurm.set_down(name)
    job = chain.submit(1)
    report = end_after_current(chain.open(), world.desk())
    assert isinstance(report, CancelReport)
    assert report.gone == (job,)
    assert report.verdict.verdict is Verdict.CANCELLED
    assert not chain.run.ending.exists()
    assert world.said == ["nothing of the chain runs: it ends now"]


def test_a_generation_that_is_completing_does_not_count_as_running(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    for index in range(3):
        world.slurm.ignore_term(f"{first}_{index}")
    world.slurm.cancel([str(first)])
    assert "COMPLETING" in live(world, first)
    assert live(world, second)[0] == "RUNNING"
    end(world, chain)
    assert order(chain).array_job_id == second


def test_a_queued_generation_that_starts_meanwhile_is_left_to_leave_by_itself(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    cancel = world.slurm.cancel

    def too_late(specs: object, *, pending_only: bool = False) -> None:
        world.slurm.cancel = cancel  # type: ignore[method-assign]
        for index in range(3):
            world.slurm.finish(f"{first}_{index}")
        cancel([f"{first}_{index}" for index in (3, 4)])
        assert live(world, second)[0] == "RUNNING"
        cancel([str(third)], pending_only=True)

    world.slurm.cancel = too_late  # type: ignore[method-assign]
    report = end(world, chain)
    assert order(chain).array_job_id == first
    assert live(world, second)[0] == "RUNNING", "no running task is ever touched"
    assert second in report.goes_on
    assert not chain.run.outcome.exists()


def test_a_generation_that_closed_before_the_order_gets_its_verdict_here(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    report = end(world, chain)
    assert report.verdict is None
    chain.close(first, Outcome.FAILED)
    world.slurm.cancel([str(first)])
    world.clock.advance(60)
    again = end(world, chain)
    assert again.verdict is not None
    assert (again.verdict.verdict, again.verdict.by) == (Verdict.CANCELLED, order(chain).by)
    assert "has ended: cancelled" in render_ending(again)


def test_a_chain_with_a_verdict_keeps_it_and_only_what_waits_is_cancelled(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    chain.decide(Verdict.COMPLETED)
    report = end(world, chain)
    assert (report.ending, report.gone) == (None, (second, third))
    assert live(world, first)[0] == "RUNNING"
    assert "has ended: completed" in render_ending(report)


def test_without_an_answer_of_slurm_nothing_is_changed(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    with pytest.raises(SlurmError, match=r"could not be read: squeue did not answer.*nothing was changed"):
        end_after_current(chain.open(), world.desk(), seconds=5)
    assert not chain.run.ending.exists()


def test_a_controller_that_comes_back_in_time_is_waited_for(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.script("queue", *[Unobserved("away")] * 3)
    assert end(world, chain).is_complete


def test_an_order_of_an_older_chain_in_its_place_is_said(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    old = Ending(chain_id="older", array_job_id=first, by="x", why="y", decided_at=format_time(world.clock.now()))
    write_atomic(chain.run.ending, encode_record(old))
    with pytest.raises(RecordError, match=r"that of another chain is in its place \(move it to history/"):
        end_after_current(chain.open(), world.desk())
    assert not world.slurm.asked("cancel")


def test_chains_of_others_are_refused(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    with pytest.raises(IdentityError):
        end_after_current(chain.open(), world.desk(uid=4711))
    assert not chain.run.ending.exists()


def test_a_job_that_only_looks_like_the_chains_is_left_alone(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    stranger = world.slurm.submit([word.replace("job-name=train", "job-name=other") for word in chain.argv(2)])
    chain.record_id(2, stranger.array_job_id)
    report = end(world, chain)
    assert stranger.array_job_id in report.left_alone
    assert not world.slurm.asked("cancel")


def test_hold_release_and_extend_are_refused_afterwards(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    end(world, chain, why="the budget is spent")
    opened = chain.open()
    for command in (hold_chain, release_chain):
        with pytest.raises(RecordError, match=f"ends with generation {first}: nothing is queued behind it"):
            command(opened, world.desk())
    request = ExtendRequest(
        files=opened.files, manifest=opened.manifest, resume_command=opened.resume_command, number=1
    )
    with pytest.raises(RecordError, match=f"the budget is spent; generation {first} is the last"):
        extend_chain(request, world.slurm, world.clock)
    assert len(world.slurm.asked("submit")) == 3


def test_status_shows_ending_while_it_runs_and_ended_when_it_is_gone(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    end(world, chain, why="enough")
    seen = survey_chain(chain.open(), world.slurm, world.clock)
    assert seen.state is ChainState.ENDING
    assert seen.ending is not None
    text = CliRunner().invoke(cli, ["status", str(chain.run.path)], obj=world.desk(), catch_exceptions=False).stdout
    assert "ending after this generation" in text
    assert f"generation {first} is the last" in text
    world.slurm.cancel([str(first)])
    world.clock.advance(3600)
    gone = survey_chain(chain.open(), world.slurm, world.clock)
    assert (gone.state, gone.verdict) == (ChainState.ENDED, None)


def test_a_full_cancel_after_it_ends_the_chain_at_once(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    end(world, chain)
    done = CliRunner().invoke(cli, ["cancel", "--json", str(chain.run.path)], obj=world.desk(), catch_exceptions=False)
    assert json.loads(done.stdout)["verdict"]["verdict"] == "cancelled"
    assert live(world, 11)[0] in ("CANCELLED", "COMPLETING")


def test_the_command_asks_a_person_and_prints_json(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    words = ["cancel", "--after-current", str(chain.run.path)]
    desk = world.desk(is_interactive=True)
    refused = CliRunner().invoke(cli, words, obj=desk, input="n\n", catch_exceptions=False)
    assert refused.exit_code == 1
    assert "be the last one?" in refused.stderr
    assert not chain.run.ending.exists()
    done = CliRunner().invoke(cli, [*words, "--yes", "--json"], obj=desk, catch_exceptions=False)
    seen = json.loads(done.stdout)
    assert (done.exit_code, seen["ending"]["array_job_id"], seen["decided_now"]) == (0, 11, True)
    assert set(seen) == {field.name for field in msgspec.structs.fields(EndingReport)}
