from __future__ import annotations

from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.resolve.all_mine import Mine, find_mine
from nvrx_watch.resolve.by_directory import resolve_run_directory
from tests.unit.ops.conftest import World


def reading(world: World) -> QueueReading:
    found = world.slurm.queue()
    assert isinstance(found, QueueReading)
    return found


def mine(chain_id: str, job: int, *, is_live: bool = True) -> Mine:
    return Mine(chain_id=chain_id, array_job_id=job, is_live=is_live)


def test_each_live_chain_is_found_once_by_its_newest_generation(world: World) -> None:
    one, two = world.make_chain(world.root / "1", chain_id="one"), world.make_chain(world.root / "2", chain_id="two")
    one.submit(1)
    alone, newest = two.submit(1), one.submit(2)
    assert find_mine(reading(world), "alice", {}) == [mine("one", newest), mine("two", alone)]


def test_a_chain_that_is_watched_already_is_left_out_whatever_its_key(world: World) -> None:
    one, two = world.make_chain(world.root / "1", chain_id="one"), world.make_chain(world.root / "2", chain_id="two")
    one.submit(1)
    job = two.submit(1)
    known = {"any key": resolve_run_directory(one.run.path)}
    assert find_mine(reading(world), "alice", known) == [mine("two", job)]


def test_a_chain_whose_last_job_just_ended_is_found_as_long_as_the_queue_shows_it(world: World) -> None:
    chain = world.make_chain(world.root / "1", chain_id="e")
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    assert find_mine(reading(world), "alice", {}) == [mine("e", job, is_live=False)]


def test_a_live_job_names_its_chain_before_a_newer_one_that_has_ended(world: World) -> None:
    chain = world.make_chain(world.root / "1", chain_id="e")
    live, newest = chain.submit(1), chain.submit(2)
    world.slurm.cancel([str(newest)])
    assert find_mine(reading(world), "alice", {}) == [mine("e", live)]


def test_jobs_of_others_and_jobs_of_no_chain_are_left_out(world: World) -> None:
    other = world.make_chain(world.root / "2", chain_id="o")
    world.slurm.submit_as("mallory", other.argv(1))
    world.slurm.submit(["--array=0-1", "--job-name=x", "--comment=nvrx-chain:bad id", "s"])
    world.slurm.submit(["--array=0-1", "--job-name=x", "--comment=", "s"])
    assert find_mine(reading(world), "alice", {}) == []
