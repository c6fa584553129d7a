"""A chain is found by path, by a job id in any form, or by looking around; in doubt it is an error that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, RecordError, Unobserved, UsageError
from nvrx_chain.ops.resolve import resolve_chain
from nvrx_chain.records.outcome import Verdict
from tests.unit.ops.conftest import ChainOnDisk, World, give_away


def test_a_path_names_the_chain_in_it_relative_to_the_current_directory(world: World, chain: ChainOnDisk) -> None:
    by_path = resolve_chain(chain.run.path.name, None, world.slurm, world.root)
    by_option = resolve_chain(None, Path(chain.run.path.name), world.slurm, world.root)
    assert by_path.chain.manifest.chain_id == by_option.chain.manifest.chain_id == "c0ffee"
    assert not world.slurm.calls


def test_a_directory_whose_name_is_a_number_is_named_by_the_option(world: World) -> None:
    world.make_chain(world.root / "123", chain_id="numbered")
    assert resolve_chain(None, Path("123"), world.slurm, world.root).chain.manifest.chain_id == "numbered"
    assert resolve_chain("./123", None, world.slurm, world.root).chain.manifest.chain_id == "numbered"


def test_naming_a_chain_twice_is_refused(world: World, chain: ChainOnDisk) -> None:
    with pytest.raises(UsageError, match="named twice"):
        resolve_chain("123", chain.run.path, world.slurm, world.root)


def test_a_directory_without_a_chain_says_so(world: World) -> None:
    with pytest.raises(RecordError, match="no chain was submitted"):
        resolve_chain(str(world.root), None, world.slurm, world.root)


@pytest.mark.parametrize(("form", "task"), [("{}", None), ("{}_0", 0), ("{}_[2-4%2]", None)])
def test_a_job_id_leads_to_its_run_directory(world: World, chain: ChainOnDisk, form: str, task: int | None) -> None:
    _, queued, _ = chain.submit_three()
    found = resolve_chain(form.format(queued), None, world.slurm, Path("/"))
    assert found.chain.directory.path == chain.run.path
    assert (found.array_job_id, found.array_task_id) == (queued, task)


def test_the_own_id_of_a_task_leads_to_its_generation(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    own_id = world.slurm.task(f"{job}_0").job_id
    assert own_id != job
    found = resolve_chain(str(own_id), None, world.slurm, Path("/"))
    assert (found.array_job_id, found.array_task_id) == (job, 0)


def test_a_job_that_is_no_chain_is_refused(world: World) -> None:
    job = world.slurm.submit(["--job-name=other", f"--chdir={world.root}", "x.sh"]).array_job_id
    with pytest.raises(IdentityError, match=r"no job of nvrx-chain"):
        resolve_chain(str(job), None, world.slurm, world.root)


def test_a_directory_that_now_holds_another_chain_is_refused(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.make_chain(chain.run.path, chain_id="newer")
    with pytest.raises(IdentityError, match=r"now holds chain newer"):
        resolve_chain(str(job), None, world.slurm, world.root)


def test_a_job_of_somebody_else_with_a_copied_comment_is_refused(world: World, chain: ChainOnDisk) -> None:
    job = world.slurm.submit_as("mallory", chain.argv(1))
    with pytest.raises(IdentityError, match="belongs to mallory, and the chain to alice"):
        resolve_chain(str(job), None, world.slurm, world.root)


def test_a_working_directory_that_is_no_path_is_not_followed(world: World) -> None:
    argv = ["--comment=nvrx-chain:c0ffee/1", "--chdir=(null)", "x.sh"]
    job = world.slurm.submit(argv).array_job_id
    with pytest.raises(RecordError, match="working directory"):
        resolve_chain(str(job), None, world.slurm, world.root)


def test_a_job_that_slurm_forgot_is_found_on_record(world: World) -> None:
    chain = world.make_chain(world.root / "nvrx-chains" / "one")
    world.make_chain(world.root / "nvrx-chains" / "two", chain_id="second")
    chain.record_id(1, 777)
    found = resolve_chain("777_3", None, world.slurm, world.root)
    assert found.chain.manifest.chain_id == "c0ffee"
    assert (found.array_job_id, found.array_task_id) == (777, 3)


def test_a_silent_slurm_is_named_when_nothing_is_on_record(world: World) -> None:
    world.slurm.always("show_job", Unobserved("scontrol did not answer in 25 s"))
    with pytest.raises(RecordError, match=r"did not answer.*name its run directory"):
        resolve_chain("777", None, world.slurm, world.root)


def test_an_id_on_record_of_two_chains_is_ambiguous(world: World) -> None:
    for name in ("one", "two"):
        world.make_chain(world.root / "nvrx-chains" / name, chain_id=name).record_id(1, 777)
    with pytest.raises(UsageError, match="2 chains have it on record"):
        resolve_chain("777", None, world.slurm, world.root)


def test_nothing_named_is_the_chain_of_the_current_directory(world: World, chain: ChainOnDisk) -> None:
    assert resolve_chain(None, None, world.slurm, chain.run.path).chain.manifest.chain_id == "c0ffee"


def test_a_damaged_chain_in_the_current_directory_is_an_error_and_not_skipped(world: World) -> None:
    world.make_chain(world.root / "nvrx-chains" / "one")
    (world.root / "chain.json").write_text("{")
    with pytest.raises(RecordError, match="is no ChainManifest"):
        resolve_chain(None, None, world.slurm, world.root)


def test_nothing_named_is_the_only_chain_without_a_verdict(world: World) -> None:
    world.make_chain(world.root / "nvrx-chains" / "one", chain_id="one").decide(Verdict.COMPLETED)
    world.make_chain(world.root / "nvrx-chains" / "two", chain_id="two")
    assert resolve_chain(None, None, world.slurm, world.root).chain.manifest.chain_id == "two"
    assert not world.slurm.calls


def test_among_several_without_a_verdict_the_queue_decides(world: World) -> None:
    world.make_chain(world.root / "nvrx-chains" / "one", chain_id="one").record_id(1, 777)
    world.make_chain(world.root / "nvrx-chains" / "two", chain_id="two").submit(1)
    assert resolve_chain(None, None, world.slurm, world.root).chain.manifest.chain_id == "two"


@pytest.mark.parametrize("answers", [True, False])
def test_several_live_chains_are_listed(world: World, answers: bool) -> None:
    for name in ("one", "two"):
        world.make_chain(world.root / "nvrx-chains" / name, chain_id=name).submit(1)
    if not answers:
        world.slurm.always("queue", Unobserved("down"))
    with pytest.raises(UsageError, match=r"2 live chains: .*/one, .*/two"):
        resolve_chain(None, None, world.slurm, world.root)


def test_an_ended_chain_is_meant_when_it_is_the_only_one(world: World) -> None:
    world.make_chain(world.root / "nvrx-chains" / "one").decide(Verdict.COMPLETED)
    assert resolve_chain(None, None, world.slurm, world.root).chain.manifest.chain_id == "c0ffee"


def test_no_chain_anywhere_is_a_usage_error(world: World) -> None:
    with pytest.raises(UsageError, match="there is none"):
        resolve_chain(None, None, world.slurm, world.root)


def test_a_manifest_that_is_a_link_is_not_followed(world: World, chain: ChainOnDisk) -> None:
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "chain.json").symlink_to(chain.run.manifest)
    with pytest.raises(RecordError, match="symbolic link"):
        resolve_chain(str(elsewhere), None, world.slurm, world.root)


def test_a_manifest_speaks_only_for_the_user_who_owns_the_file(world: World) -> None:
    chain = world.make_chain()
    claimed = give_away(chain.run.manifest)
    owner = chain.run.manifest.stat().st_uid
    text = chain.run.manifest.read_text()
    chain.run.manifest.write_text(text.replace(f'"uid": {os.getuid()}', f'"uid": {claimed}'))
    with pytest.raises(RecordError, match=f"belongs to uid {owner}, not to uid {claimed}"):
        resolve_chain(str(chain.run.path), None, world.slurm, world.root)
