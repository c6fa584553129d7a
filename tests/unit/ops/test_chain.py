"""What of a queue is this chain's, and who may act on it."""

from __future__ import annotations

import os
import shutil

import pytest

from nvrx_chain.clock import format_time
from nvrx_chain.errors import IdentityError, Unobserved
from nvrx_chain.ops.chain import (
    find_other_cluster,
    read_chain_queue,
    require_cluster,
    require_own,
)
from nvrx_chain.slurm.chain_queue import ChainQueue
from tests.unit.ops.conftest import ChainOnDisk, World


def read(world: World, chain: ChainOnDisk) -> ChainQueue:
    queue = read_chain_queue(chain.open(), world.slurm)
    assert isinstance(queue, ChainQueue)
    return queue


def test_the_queue_of_a_chain_has_its_jobs_and_no_others(world: World, chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    world.slurm.submit_as("bob", chain.argv(1))
    world.slurm.submit(["--job-name=train", "--comment=mine", "x.sh"])
    queue = read(world, chain)
    assert tuple(queue.arrays) == queue.live_jobs == jobs
    assert not queue.doubtful
    assert not queue.strays


def test_an_id_on_record_of_another_users_job_is_never_the_chains(world: World, chain: ChainOnDisk) -> None:
    foreign = world.slurm.submit_as("bob", chain.argv(1))
    chain.record_id(1, foreign)
    assert foreign not in read(world, chain).arrays


@pytest.mark.parametrize("changed", ["--job-name=other", "--comment=nvrx-chain:another/1", "--comment="])
def test_a_job_on_record_with_another_name_or_comment_is_doubtful(
    world: World, chain: ChainOnDisk, changed: str
) -> None:
    option = changed.partition("=")[0]
    argv = [changed if word.startswith(option) else word for word in chain.argv(1)]
    job = world.slurm.submit(argv).array_job_id
    chain.record_id(1, job)
    queue = read(world, chain)
    assert job not in queue.arrays
    assert str(job) in queue.doubtful[job]


def test_an_id_that_was_given_out_again_is_doubtful(world: World, chain: ChainOnDisk) -> None:
    recorded = format_time(world.clock.now())
    world.clock.advance(60)
    job = world.slurm.submit(chain.argv(1)).array_job_id
    chain.record_id(1, job, submitted_at=recorded)
    assert "given out again" in read(world, chain).doubtful[job]


def test_a_doubtful_job_that_has_ended_is_of_no_interest(world: World, chain: ChainOnDisk) -> None:
    job = world.slurm.submit(["--job-name=other", "x.sh"]).array_job_id
    world.slurm.finish(str(job))
    chain.record_id(1, job)
    assert not read(world, chain).doubtful


def test_a_job_whose_submission_got_no_answer_is_found_by_its_stamp(world: World, chain: ChainOnDisk) -> None:
    lost = chain.submit(1, on_record=False)
    assert read(world, chain).live_jobs == (lost,)


def test_a_job_with_the_chains_comment_that_nobody_recorded_is_a_stray(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    again = world.slurm.submit(chain.argv(1)).array_job_id
    queue = read(world, chain)
    assert queue.strays == (again,)
    assert again not in queue.arrays


def test_records_that_cannot_be_listed_are_no_empty_chain(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    chain.run.submissions.rename(chain.run.path / "aside")
    chain.run.submissions.write_text("not a directory")
    assert isinstance(read_chain_queue(chain.open(), world.slurm), Unobserved)


def test_only_the_user_of_a_chain_may_act_on_it(world: World, chain: ChainOnDisk) -> None:
    require_own(chain.open(), world.desk().operator)
    with pytest.raises(IdentityError, match="refused"):
        require_own(chain.open(), world.desk(uid=os.getuid() + 1).operator)


def test_a_copy_of_a_run_directory_may_not_act_on_the_jobs_of_the_original(world: World, chain: ChainOnDisk) -> None:
    copied = world.root / "copy"
    shutil.copytree(chain.run.path, copied)
    copy = ChainOnDisk(world, type(chain.run)(copied), chain.chain_id)
    with pytest.raises(IdentityError, match="is a copy"):
        require_own(copy.open(), world.desk().operator)


def test_a_directory_that_was_moved_is_still_the_chains(world: World, chain: ChainOnDisk) -> None:
    moved = world.root / "moved"
    chain.run.path.rename(moved)
    require_own(ChainOnDisk(world, type(chain.run)(moved), chain.chain_id).open(), world.desk().operator)


def test_a_chain_of_another_cluster_is_told_from_one_that_is_gone(world: World) -> None:
    chain = world.make_chain(cluster="prod").open()
    assert find_other_cluster(chain, world.slurm) == "it was submitted on cluster prod, and this is fake"
    with pytest.raises(IdentityError, match="run this there"):
        require_cluster(chain, world.slurm)


@pytest.mark.parametrize("cluster", ["fake", None])
def test_the_same_or_an_unknown_cluster_is_no_objection(world: World, cluster: str | None) -> None:
    require_cluster(world.make_chain(cluster=cluster).open(), world.slurm)
