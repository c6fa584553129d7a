"""Which jobs get the list of excluded nodes, what is refused, and what later generations inherit."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner, Result

from nvrx_chain.cli import cli
from nvrx_chain.errors import IdentityError, PreflightError, RecordError, SlurmError, Unobserved, UsageError
from nvrx_chain.ops.exclude import ExcludeReport, ExcludeRequest, exclude_nodes, parse_nodes
from nvrx_chain.records.control import Excluded, Lease
from nvrx_chain.records.files import encode_record, read_record, write_atomic
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.fakes.fake_slurm import Act
from tests.unit.ops.conftest import STAMP, ChainOnDisk, World


def exclude(world: World, chain: ChainOnDisk, *names: str, remove: bool = False, force: bool = False) -> ExcludeReport:
    request = ExcludeRequest(nodes=dict.fromkeys(names, "it is slow"), remove=remove, force=force)
    return exclude_nodes(chain.open(), world.desk(), request, seconds=10)


def lists(world: World, job: int) -> set[tuple[str, str]]:
    details = world.slurm.show_job(job)
    assert isinstance(details, tuple)
    return {(one.state.value, one.fields["ExcNodeList"]) for one in details}


def test_queued_generations_and_waiting_spares_get_the_list(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    report = exclude(world, chain, "n7", "n8")
    assert (report.is_complete, report.done) == (True, (first, second, third))
    assert lists(world, first) == {("RUNNING", "(null)"), ("PENDING", "n[7-8]")}
    assert lists(world, second) == lists(world, third) == {("PENDING", "n[7-8]")}


def test_taking_back_leaves_what_somebody_excluded_by_hand(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    world.slurm.exclude(str(second), ["n5"])
    exclude(world, chain, "n7")
    assert lists(world, second) == {("PENDING", "n[5,7]")}
    report = exclude(world, chain, "n7", remove=True)
    assert (report.removed, report.nodes) == (("n7",), {})
    assert lists(world, second) == {("PENDING", "n5")}


def test_repeating_it_asks_slurm_for_nothing(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    exclude(world, chain, "n8")
    before = len(world.slurm.asked("exclude"))
    assert exclude(world, chain, "n8").added == ()
    assert len(world.slurm.asked("exclude")) == before


def test_an_accepted_update_that_did_nothing_is_not_believed(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    world.slurm.always("exclude", Act.IGNORED)
    report = exclude(world, chain, "n8")
    assert not report.is_complete
    assert report.not_done[second] == "its list is not as it was asked for"
    assert chain.run.excluded.exists(), "a later generation has it all the same"


def test_a_refusal_is_told_and_repeated_until_it_works(world: World, chain: ChainOnDisk) -> None:
    _, second, _ = chain.submit_three()
    world.slurm.always("exclude", SlurmError("exclude nodes", part="Access/permission denied"))
    assert "permission denied" in exclude(world, chain, "n8").not_done[second]
    world.slurm.always("exclude", Act.NORMAL)
    assert exclude(world, chain, "n8").is_complete


def test_too_few_nodes_left_are_refused_and_nothing_is_changed(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    names = [f"n{number}" for number in range(1, 7)]
    with pytest.raises(PreflightError, match=r"2 of 8 nodes would be left, and a generation takes 3.*nothing was"):
        exclude(world, chain, *names)
    assert not chain.run.excluded.exists()
    assert not world.slurm.asked("exclude")
    assert exclude(world, chain, *names, force=True).is_complete
    assert "2 of 8 nodes would be left" in world.said[0]


def test_exactly_one_generation_left_is_enough(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    assert exclude(world, chain, *[f"n{number}" for number in range(1, 6)]).is_complete


def test_nodes_that_are_out_of_service_are_said(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    world.slurm.set_down("n7")
    world.slurm.set_down("n8")
    exclude(world, chain, "n4", "n5", "n6", "n1")
    assert "2 of the 4 nodes that are left are in service now" in world.said[0]


def test_earlier_exclusions_count_for_the_room(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    exclude(world, chain, "n1", "n2", "n3")
    with pytest.raises(PreflightError, match="2 of 8 nodes would be left"):
        exclude(world, chain, "n4", "n5", "n6")


def test_a_node_that_is_not_there_is_a_slip_of_the_finger(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    with pytest.raises(UsageError, match="Slurm has no node n99"):
        exclude(world, chain, "n8", "n99")
    assert not chain.run.excluded.exists()


@pytest.mark.parametrize("operation", ["nodes", "partitions"])
def test_without_an_answer_nothing_is_changed(world: World, chain: ChainOnDisk, operation: str) -> None:
    chain.submit_three()
    world.slurm.always(operation, Unobserved("away"))
    with pytest.raises(SlurmError, match="away"):
        exclude(world, chain, "n8")
    assert not chain.run.excluded.exists()


def test_ended_chains_and_those_of_others_are_refused(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    with pytest.raises(IdentityError):
        exclude_nodes(chain.open(), world.desk(uid=4711), ExcludeRequest(nodes={"n8": "x"}))
    chain.decide(Verdict.COMPLETED)
    with pytest.raises(RecordError, match="has ended"):
        exclude(world, chain, "n8")


def test_a_job_that_only_looks_like_the_chains_is_not_touched(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    stranger = world.slurm.submit([word.replace("job-name=train", "job-name=other") for word in chain.argv(2)])
    chain.record_id(2, stranger.array_job_id)
    assert stranger.array_job_id in exclude(world, chain, "n8").left_alone
    assert str(stranger.array_job_id) not in {call.arguments[0] for call in world.slurm.asked("exclude")}


def test_the_record_of_an_older_chain_is_none_of_ours(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    old = Excluded(chain_id="older", nodes={"n1": "x"}, by="y", changed_at="z")
    write_atomic(chain.run.excluded, encode_record(old))
    assert exclude(world, chain, "n8").nodes == {"n8": "it is slow"}


def test_a_list_that_cannot_be_read_is_not_taken_for_an_empty_one(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.run.excluded.write_text("{")
    with pytest.raises(RecordError, match=r"excluded\.json.*mend or move the file"):
        exclude(world, chain, "n8")
    assert chain.run.excluded.read_text() == "{"


def test_names_are_unfolded_and_text_that_is_none_is_refused() -> None:
    assert parse_nodes(["n[1-2]", "n2", "x"]) == ("n1", "n2", "x")
    for word in ("n[1-", "", "a b", "n1;reboot"):
        with pytest.raises(UsageError):
            parse_nodes([word])


def run(world: World, *words: str, is_interactive: bool = False, answer: str | None = None) -> Result:
    desk = world.desk(is_interactive=is_interactive)
    return CliRunner().invoke(cli, ["exclude", *words], obj=desk, input=answer, catch_exceptions=False)


def die(chain: ChainOnDisk, job: int, *tasks: int, node: str = "n8") -> None:
    """Tasks that wrote a lease on a node and no word of their end; three others left."""
    directory = chain.run.generation(job)
    chain.close(job, Outcome.FAILED)
    for task in (*tasks, 20, 21, 22):
        stamp = {**STAMP, "array_task_id": task, "host": node if task in tasks else "n1"}
        lease = Lease(array_job_id=job, counter=3, interval_seconds=5.0, phase="x", **stamp)
        write_atomic(directory.lease(task), encode_record(lease))
    for task in (20, 21, 22):
        (directory.control / f"left.{task}.json").write_text(
            json.dumps({"array_job_id": job, **STAMP, "array_task_id": task, "left_at": "x", "evidence": "y"})
        )


def test_bad_nodes_are_shown_asked_about_and_excluded(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    die(chain, first, 0, 3)
    words = ("--bad-nodes", "--run-dir", str(chain.run.path))
    refused = run(world, *words, is_interactive=True, answer="n\n")
    assert refused.exit_code == 1
    assert "n8: 2 deaths" in refused.stderr
    assert not chain.run.excluded.exists()
    with pytest.raises(UsageError, match="nobody is there to be asked"):
        run(world, *words)
    done = run(world, *words, "--yes")
    assert done.exit_code == 0
    assert f"excluded     n8: tasks {first}_0 {first}_3 died there" in done.stdout
    assert lists(world, second) == {("PENDING", "n8")}
    again = run(world, *words, "--yes", "--json")
    assert "no node on which several tasks died" in again.stderr
    assert json.loads(again.stdout)["added"] == []
    assert lists(world, second) == {("PENDING", "n8")}


def test_without_bad_nodes_the_list_of_the_chain_stays_as_it_is(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    seen = run(world, "--bad-nodes", "--run-dir", str(chain.run.path), "--json")
    assert seen.exit_code == 0
    assert json.loads(seen.stdout)["nodes"] == {}
    assert {nodes for _, nodes in lists(world, job)} == {"(null)"}


def test_the_command_takes_nodes_or_bad_nodes(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    for words in ((), ("n1", "--bad-nodes"), ("--bad-nodes", "--remove")):
        with pytest.raises(UsageError, match="name nodes, or give --bad-nodes alone"):
            run(world, *words, "--run-dir", str(chain.run.path))
    seen = json.loads(run(world, "n[7-8]", "--chain", str(job), "--reason", "slow", "--json").stdout)
    assert seen["nodes"] == {"n7": "slow", "n8": "slow"}
    record = read_record(chain.run.excluded, Excluded)
    assert isinstance(record, Excluded)
    assert record.by == "alice on login"


@pytest.mark.parametrize("word", ["4711", "4711_3", "4711_[2-4%2]"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_job_id_among_the_nodes_is_told_how_a_chain_is_named(
    world: World, chain: ChainOnDisk, word: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.submit(1)
    if not answers:
        world.slurm.always("nodes", Unobserved("away"))
    # Also where no chain is near, and its name would be missed first.
    monkeypatch.chdir(world.root)
    with pytest.raises(UsageError, match="looks like a job id") as caught:
        run(world, word, "n3")
    assert caught.value.hint == f"a chain is named by --chain: nvrx-chain exclude --chain {word} NODES"
    assert not chain.run.excluded.exists()


def test_a_node_whose_name_is_a_number_is_a_node(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    world.slurm.restore_node("4711")
    assert run(world, "4711", "--run-dir", str(chain.run.path)).exit_code == 0
    assert "4711" in chain.run.excluded.read_text()


def test_a_client_that_does_not_show_the_list_is_never_taken_for_done(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    show = world.slurm.show_job

    def without(job_id: int) -> object:
        shown = show(job_id)
        return tuple(dataclasses.replace(one, fields={}) for one in shown) if isinstance(shown, tuple) else shown

    world.slurm.show_job = without  # type: ignore[method-assign, assignment]
    report = exclude(world, chain, "n8")
    assert "--slurm-client command" in report.not_done[11]
