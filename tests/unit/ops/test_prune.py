"""What goes, what never goes, and that no link or other owner is followed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvrx_chain.cli import cli
from nvrx_chain.errors import IdentityError, SlurmError, Unobserved, UsageError
from nvrx_chain.ops.prune import PruneReport, PruneRequest, plan_prune, prune, render_prune
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.unit.ops.conftest import ChainOnDisk, World, give_away


def fill(world: World, chain: ChainOnDisk, job: int) -> None:
    """What an ended generation leaves."""
    chain.close(job, Outcome.WALLTIME)
    chain.record(job, start=0, end=10, outcome=Outcome.WALLTIME)
    chain.lease(job, "closing")
    chain.log(job, "task_0.log", b"x" * 100)
    chain.log(job, "app_0_cycle1.log", b"y" * 1000)
    cycles = chain.run.generation(job).cycle_infos
    cycles.mkdir()
    (cycles / f"cycle_info.{job}.0.0").write_text("{}")
    for name in (f"cycle_facts.{job}.0.0.json", f"outcome.{job}.0.json", f".cycle_info.{job}.0.1.77.abcdef12.tmp"):
        (cycles / name).write_text("{}")
    chain.run.generation(job).timeline.mkdir()
    (chain.run.generation(job).timeline / "marks.0-abc.jsonl").write_text("{}")
    (cycles / f"cycle_info.{job}.current").symlink_to(f"cycle_info.{job}.0.0")
    (chain.run.generation(job).control / f"segment_health_check.{job}.1").write_text("drained")
    (chain.run.slurm_logs / f"slurm-{job}_0.log").write_text("z")


@pytest.fixture
def jobs(world: World, chain: ChainOnDisk) -> tuple[int, ...]:
    """Four ended generations and one that runs; checkpoints and an older chain's history beside them."""
    ended = []
    for sequence in range(1, 5):
        job = chain.submit(sequence)
        world.slurm.cancel([str(job)])
        fill(world, chain, job)
        ended.append(job)
        world.clock.advance(24 * 3600)
    running = chain.submit(5)
    chain.lease(running, "training")
    chain.log(running, "task_0.log", b"runs")
    chain.iteration("70")
    (chain.run.default_iteration_file.parent / "model.pt").write_bytes(b"precious")
    past = chain.run.history / "older"
    (past / "submissions").mkdir(parents=True)
    for name in ("chain.json", "chain_outcome.json", "submissions/0001.json", "submissions/0001.id.json"):
        (past / name).write_text("{}")
    return (*ended, running)


def run_prune(world: World, chain: ChainOnDisk, **options: object) -> PruneReport:
    opened = chain.open()
    plan = plan_prune(opened, world.desk(), PruneRequest(**options))  # type: ignore[arg-type]
    return prune(opened, plan, lambda _: None)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_what_old_generations_left_goes_and_nothing_else(
    world: World, chain: ChainOnDisk, jobs: tuple[int, ...]
) -> None:
    before = tree(chain.run.path)
    report = run_prune(world, chain)
    gone = before - tree(chain.run.path)
    old = {str(job) for job in jobs[:3]}
    for path in gone:
        parts = path.split("/")
        assert parts[0] == "history" or parts[1] in old or parts[1].split("-")[1].split("_")[0] in old, path
    stays = ("chain.json", "checkpoints/model.pt", f"generations/{jobs[0]}/record.json", "submissions/0001.id.json")
    for kept in stays:
        assert kept in tree(chain.run.path)
    for job in jobs[3:]:
        assert {path for path in before if f"/{job}/" in path} <= tree(chain.run.path)
    assert set(report.bytes_by_generation) == set(jobs[:3])
    assert report.files == len(gone)
    assert not (chain.run.generation(jobs[0]).path / "logs").exists(), "an empty directory stayed"
    assert chain.run.slurm_logs.is_dir(), "Slurm makes no directories"


def test_a_second_call_finds_nothing(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    run_prune(world, chain)
    again = run_prune(world, chain)
    assert (again.files, again.bytes, again.left_alone) == (0, 0, {})


def test_status_still_tells_how_pruned_generations_went(
    world: World, chain: ChainOnDisk, jobs: tuple[int, ...]
) -> None:
    run_prune(world, chain)
    done = CliRunner().invoke(cli, ["status", "--json", str(chain.run.path)], obj=world.desk(), catch_exceptions=False)
    assert json.loads(done.stdout)["generations"][0]["outcome"] == "walltime"


def test_what_could_not_be_removed_is_said_and_is_not_counted(
    world: World, chain: ChainOnDisk, jobs: tuple[int, ...]
) -> None:
    opened = chain.open()
    plan = plan_prune(opened, world.desk(), PruneRequest())
    stubborn = chain.run.generation(jobs[0]).path / "logs" / "app_0_cycle1.log"
    size = stubborn.stat().st_size
    stubborn.unlink()
    stubborn.mkdir()
    report = prune(opened, plan, lambda _: None)
    assert list(report.not_removed) == [f"generations/{jobs[0]}/logs/app_0_cycle1.log"]
    assert not report.is_complete
    assert plan.report.bytes_by_generation[jobs[0]] - report.bytes_by_generation[jobs[0]] == size
    assert "1 of them are still there" in render_prune(report)


def test_what_is_not_on_record_stays_while_it_may_live(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    # An extend that died between sbatch and its record: the job runs.
    chain.run.submission_id(5).unlink()
    # A generation of an older chain of this directory; nothing says that its task 0 left.
    before = chain.run.generation(9999)
    before.control.mkdir(parents=True)
    before.lease(0).write_text("{}")
    plan = plan_prune(chain.open(), world.desk(), PruneRequest(keep=0))
    assert plan.report.kept[jobs[4]] == "it is in the queue"
    assert 9999 in plan.report.kept
    assert set(plan.report.bytes_by_generation) == set(jobs[:4])


def test_keep_and_age_are_respected(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    plan = plan_prune(chain.open(), world.desk(), PruneRequest(keep=4))
    assert set(plan.report.bytes_by_generation) == {jobs[0]}
    plan = plan_prune(chain.open(), world.desk(), PruneRequest(older_than=timedelta(days=2.5)))
    assert set(plan.report.bytes_by_generation) == set(jobs[:2])
    assert plan.report.kept[jobs[2]] == "it ended too short ago"


def test_a_live_generation_never_goes(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    plan = plan_prune(chain.open(), world.desk(), PruneRequest(keep=0))
    assert plan.report.kept == {jobs[4]: "it is in the queue"}
    assert not [one for one in plan.doomed if str(jobs[4]) in one.directory]


def test_a_generation_without_a_word_of_its_end_stays_while_the_chain_lives(
    world: World, chain: ChainOnDisk, jobs: tuple[int, ...]
) -> None:
    chain.run.generation(jobs[0]).closed.unlink()
    chain.run.generation(jobs[0]).record.unlink()
    plan = plan_prune(chain.open(), world.desk(), PruneRequest())
    assert plan.report.kept[jobs[0]] == "how it ended is not on record"
    chain.decide(Verdict.COMPLETED)
    plan = plan_prune(chain.open(), world.desk(), PruneRequest())
    assert plan.report.kept[jobs[0]] == "a task of it has not said that it left, and may live on"
    long_ago = (world.clock.now() - timedelta(hours=2)).timestamp()
    for path in (chain.run.generation(jobs[0]).control, chain.run.generation(jobs[0]).path):
        os.utime(path, (long_ago, long_ago))
    assert jobs[0] in plan_prune(chain.open(), world.desk(), PruneRequest()).report.bytes_by_generation


def test_what_the_fence_of_the_next_generation_reads_stays(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    world.clock.advance(60)
    fill(world, chain, job)
    chain.decide(Verdict.EXHAUSTED)
    plan = plan_prune(chain.open(), world.desk(), PruneRequest(keep=0))
    assert plan.report.kept == {job: "a task of it has not said that it left, and may live on"}
    (chain.run.generation(job).control / "left.0.json").write_text("{}")
    assert job in plan_prune(chain.open(), world.desk(), PruneRequest(keep=0)).report.bytes_by_generation
    (chain.run.generation(job).control / "left.0.json").unlink()
    world.clock.advance(3600)
    assert job in plan_prune(chain.open(), world.desk(), PruneRequest(keep=0)).report.bytes_by_generation


def test_while_slurm_is_silent_nothing_goes(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    world.slurm.always("queue", Unobserved("away"))
    with pytest.raises(SlurmError, match=r"what of it lives is not known: away \(nothing was removed; repeat"):
        run_prune(world, chain)


def test_the_chains_of_others_are_refused(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    with pytest.raises(IdentityError):
        plan_prune(chain.open(), world.desk(uid=4711), PruneRequest())


def test_what_nobody_knows_stays_and_is_said(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    precious = chain.log(jobs[0], "model_latest.pt", b"precious")
    (chain.run.generation(jobs[0]).logs / "tensorboard").mkdir()
    report = run_prune(world, chain)
    assert precious.read_bytes() == b"precious"
    assert report.left_alone[f"generations/{jobs[0]}/logs/model_latest.pt"] == "nvrx-chain does not know it"
    assert report.left_alone[f"generations/{jobs[0]}/logs/tensorboard"] == "it is no file"


def test_no_link_is_followed(world: World, chain: ChainOnDisk, jobs: tuple[int, ...], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "task_9.log").write_text("mine")
    logs = chain.run.generation(jobs[0]).logs
    (logs / "task_7.log").symlink_to(outside / "task_9.log")
    other = chain.run.generation(jobs[1]).logs
    os.rename(other, other.with_name("moved"))
    other.symlink_to(outside)
    (chain.run.history / "trap").symlink_to(outside)
    run_prune(world, chain)
    assert (outside / "task_9.log").read_text() == "mine"
    assert not (logs / "task_7.log").is_symlink(), "a link in the place of a log goes as itself"
    assert other.is_symlink()


def test_a_generation_that_is_swapped_for_a_link_after_the_question_is_not_followed(
    world: World, chain: ChainOnDisk, jobs: tuple[int, ...], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "logs").mkdir(parents=True)
    (outside / "logs" / "task_0.log").write_text("mine")
    opened = chain.open()
    plan = plan_prune(opened, world.desk(), PruneRequest())
    path = chain.run.generation(jobs[0]).path
    os.rename(path, path.with_name("aside"))
    path.symlink_to(outside)
    prune(opened, plan, lambda _: None)
    assert (outside / "logs" / "task_0.log").read_text() == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_stay(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    path = chain.log(jobs[0], "task_8.log", b"theirs")
    give_away(path)
    report = run_prune(world, chain)
    assert path.exists()
    assert report.left_alone[f"generations/{jobs[0]}/logs/task_8.log"] == "it belongs to uid 54321"


def run(world: World, *words: str, is_interactive: bool = False, answer: str | None = None) -> Result:
    desk = world.desk(is_interactive=is_interactive)
    return CliRunner().invoke(cli, ["prune", *words], obj=desk, input=answer, catch_exceptions=False)


def test_the_command_shows_asks_and_removes(world: World, chain: ChainOnDisk, jobs: tuple[int, ...]) -> None:
    where, before = str(chain.run.path), tree(chain.run.path)
    shown = run(world, where, "--dry-run")
    assert "KiB would go" in shown.stdout
    assert run(world, where, is_interactive=True, answer="n\n").exit_code == 1
    with pytest.raises(UsageError, match="nobody is there to be asked"):
        run(world, where)
    assert tree(chain.run.path) == before
    done = json.loads(run(world, where, "--yes", "--json").stdout)
    assert (done["dry_run"], done["files"]) == (False, len(before - tree(chain.run.path)))
    assert "0 files, 0 B would go" in run(world, where).stdout
