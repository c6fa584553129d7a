"""Which chains are listed, from where, and what their lines say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvrx_chain.cli import cli
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.ops.listing import ChainList, list_chains, render_list
from nvrx_chain.ops.status import ChainState
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.unit.ops.conftest import USER, ChainOnDisk, World


def look(world: World, *, here: Path, run_root: Path | None = None, include_ended: bool = False) -> ChainList:
    return list_chains(world.slurm, world.clock, user=USER, here=here, run_root=run_root, include_ended=include_ended)


def elsewhere(world: World) -> Path:
    directory = world.root / "elsewhere"
    directory.mkdir(exist_ok=True)
    return directory


def test_chains_below_the_current_directory_and_in_the_queue_cost_one_squeue(world: World, tmp_path: Path) -> None:
    here = tmp_path / "here"
    near = world.make_chain(here / "nvrx-chains" / "near", chain_id="near")
    far = world.make_chain(tmp_path / "far & away", chain_id="far", job_name="train")
    near.submit(1)
    far.submit_three()
    before = len(world.slurm.calls)
    found = look(world, here=here)
    assert [call.operation for call in world.slurm.calls[before:]] == ["queue"]
    assert [chain.chain_id for chain in found.chains] == ["far", "near"]
    assert found.chains[0].run_directory == str(far.run.path)
    assert {chain.state for chain in found.chains} == {ChainState.RUNNING, ChainState.QUEUED}


def test_a_line_has_generation_iteration_and_age(world: World, chain: ChainOnDisk) -> None:
    first, _, _ = chain.submit_three()
    chain.record(first, start=0, end=None, outcome=None)
    chain.iteration("120")
    world.clock.advance(3 * 3600)
    text = render_list(look(world, here=world.root, run_root=world.root))
    head, line = text.splitlines()
    assert head.split() == ["NAME", "STATE", "GEN", "ITERATION", "AGE", "DIRECTORY"]
    assert line.split()[:5] == ["train", "running", "1/3", "120/500", "3h00m"]
    assert line.endswith(str(chain.run.path))


def test_before_the_first_generation_has_begun_it_is_generation_0(world: World, chain: ChainOnDisk) -> None:
    for name in ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"):
        world.slurm.set_down(name)
    chain.submit(1)
    (line,) = look(world, here=world.root, run_root=world.root).chains
    assert (line.generation, line.submitted, line.state) == (0, 1, ChainState.QUEUED)


def test_ended_chains_are_shown_with_all_only(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.decide(Verdict.COMPLETED)
    few = look(world, here=chain.run.path)
    assert (few.chains, few.hidden) == ((), 1)
    assert "1 ended, shown with --all" in render_list(few)
    (line,) = look(world, here=chain.run.path, include_ended=True).chains
    assert line.verdict is not None
    assert line.verdict.verdict is Verdict.COMPLETED


def test_a_chain_that_ran_dry_is_shown(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    world.clock.advance(3600)
    (line,) = look(world, here=chain.run.path).chains
    assert line.state is ChainState.RAN_DRY


def test_a_slurm_that_does_not_answer_is_said_and_the_state_is_unknown(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    found = look(world, here=chain.run.path)
    assert [line.state for line in found.chains] == [ChainState.UNKNOWN]
    assert "squeue did not answer" in render_list(found)


def test_jobs_of_others_and_copied_comments_lead_nowhere(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    bob = world.make_chain(world.root / "bob", chain_id="b0b", user="bob")
    world.slurm.submit_as("bob", bob.argv(1))
    # A job of ours with the comment of another chain, in the directory of this one.
    copied = [word.replace("nvrx-chain:c0ffee", "nvrx-chain:other") for word in chain.argv(7)]
    world.slurm.submit(copied)
    # And one whose directory is bob's.
    stolen = [word.replace("nvrx-chain:c0ffee", "nvrx-chain:b0b") for word in chain.argv(8)]
    world.slurm.submit([word if not word.startswith("--chdir") else f"--chdir={bob.run.path}" for word in stolen])
    found = look(world, here=elsewhere(world))
    assert [line.chain_id for line in found.chains] == ["c0ffee"]
    assert any("now holds chain c0ffee" in problem for problem in found.problems)
    assert any("belongs to bob" in problem for problem in found.problems)


def test_a_run_directory_that_is_gone_is_a_problem_and_no_error(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.run.manifest.unlink()
    found = look(world, here=elsewhere(world))
    assert found.chains == ()
    assert "job 11 of chain c0ffee" in found.problems[0]


def test_a_run_root_shows_the_chains_of_others_with_one_reading_of_everybodys_jobs(world: World) -> None:
    root = world.root / "root"
    world.make_chain(root / "a", chain_id="aa").submit(1)
    bob = world.make_chain(root / "b", chain_id="bb", user="bob")
    bob.intend(1)
    bob.record_id(1, world.slurm.submit_as("bob", bob.argv(1)))
    before = len(world.slurm.asked("queue"))
    found = look(world, here=world.root, run_root=root)
    assert {(line.user, line.state) for line in found.chains} == {
        (USER, ChainState.RUNNING),
        ("bob", ChainState.RUNNING),
    }
    assert [call.arguments for call in world.slurm.asked("queue")[before:]] == [(None,)]


def test_a_run_root_that_is_not_there_is_an_error(world: World) -> None:
    with pytest.raises(RecordError, match="it is not there"):
        look(world, here=world.root, run_root=world.root / "nowhere")


def test_an_empty_root_asks_slurm_nothing(world: World) -> None:
    found = look(world, here=world.root, run_root=elsewhere(world))
    assert (found.chains, found.no_answer, world.slurm.calls) == ((), None, [])
    assert render_list(found) == "no chains"


def test_a_hostile_name_cannot_steer_the_terminal(world: World) -> None:
    world.make_chain(world.root / "x\x1b[2Jy", job_name="a\x1b]0;b\x07").submit(1)
    text = render_list(look(world, here=elsewhere(world)))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_a_problem_or_slurm_says_cannot_steer_the_terminal() -> None:
    hostile = "x\x1b[2J\n4711 is fine"
    found = ChainList(read_at="2026-01-01T00:00:00Z", chains=(), hidden=0, no_answer=hostile, problems=(hostile,))
    text = render_list(found)
    assert "\x1b" not in text
    assert "problem: x\\x1b[2J\\x0a4711 is fine" in text.split("\n")


def test_an_unreadable_checkpoint_iteration_is_a_question_mark(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.iteration("release")
    assert "?/500" in render_list(look(world, here=chain.run.path))


def test_the_command_prints_text_and_json(world: World, chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = chain.submit(1)
    chain.close(job, Outcome.FAILED)
    monkeypatch.chdir(chain.run.path)
    text = CliRunner().invoke(cli, ["list"], obj=world.desk(), catch_exceptions=False)
    assert text.exit_code == 0
    assert "train" in text.stdout
    done = CliRunner().invoke(cli, ["list", "--json"], obj=world.desk(), catch_exceptions=False)
    (line,) = json.loads(done.stdout)["chains"]
    assert (line["chain_id"], line["user"], os.path.isdir(line["run_directory"])) == ("c0ffee", USER, True)
