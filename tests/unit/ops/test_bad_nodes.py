"""Which deaths speak against a node."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from nvrx_chain.clock import format_time
from nvrx_chain.errors import ExitCode
from nvrx_chain.ops.bad_nodes import WITHIN_SECONDS, Death, find_bad_nodes, read_deaths
from nvrx_chain.records.control import Joined, LauncherExit
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.outcome import Outcome
from tests.unit.ops.conftest import STAMP, ChainOnDisk, World

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def death(node: str, job: int, task: int, seconds: float = 0.0, of_tasks: int = 5) -> Death:
    return Death(
        node=node,
        array_job_id=job,
        array_task_id=task,
        at=AT + timedelta(seconds=seconds),
        why="it died",
        of_tasks=of_tasks,
    )


def names(*deaths: Death) -> list[str]:
    return [node.name for node in find_bad_nodes(deaths)]


def test_two_different_tasks_within_minutes_are_enough() -> None:
    assert names(death("n3", 11, 0), death("n3", 11, 3, 60)) == ["n3"]
    assert names(death("n3", 11, 0), death("n3", 12, 1, WITHIN_SECONDS)) == ["n3"]


def test_one_step_later_they_are_not() -> None:
    assert names(death("n3", 11, 0), death("n3", 12, 1, WITHIN_SECONDS + 1)) == []


def test_one_death_or_the_same_task_twice_says_nothing() -> None:
    assert names(death("n3", 11, 0)) == []
    assert names(death("n3", 11, 0), death("n3", 12, 0, 60)) == []


def test_the_same_task_in_three_generations_does_at_any_distance() -> None:
    day = 24 * 3600
    assert names(*(death("n3", 11 + number, 0, number * day) for number in range(3))) == ["n3"]


def test_what_most_tasks_of_a_generation_had_in_common_is_no_node() -> None:
    common = [death(f"n{task}", job, task, job) for job in (11, 12) for task in range(5)]
    shuffled = [death(f"n{(task + 1) % 5}", 13, task, 13) for task in range(5)]
    assert names(*common, *shuffled) == []
    assert names(*common, *shuffled, death("n9", 14, 0), death("n9", 14, 1)) == ["n9"]


def test_a_generation_of_one_task_can_still_speak_against_a_node() -> None:
    assert names(*(death("n3", 11 + number, 0, number, of_tasks=1) for number in range(3))) == ["n3"]


def test_the_deaths_come_in_the_order_of_time() -> None:
    (node,) = find_bad_nodes([death("n3", 12, 1, 60), death("n3", 11, 0)])
    assert [one.array_job_id for one in node.deaths] == [11, 12]
    assert node.reason == "tasks 11_0 12_1 died there"


def write_exit(chain: ChainOnDisk, world: World, job: int, task: int, node: str, **changes: object) -> None:
    now = format_time(world.clock.now())
    values: dict[str, object] = {
        **STAMP,
        "array_task_id": task,
        "node": node,
        "exit_code": 1,
        "asked_to_stop": False,
        "rendezvous_lost": False,
        "started_at": now,
        "ended_at": now,
    }
    record = LauncherExit(array_job_id=job, **{**values, **changes})  # type: ignore[arg-type]
    chain.run.generation(job).control.mkdir(parents=True, exist_ok=True)
    write_atomic(chain.run.generation(job).launcher_exit(task, node), encode_record(record))


def test_only_a_launcher_that_failed_by_itself_is_a_death(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    write_exit(chain, world, job, 0, "n1")
    write_exit(chain, world, job, 1, "n2", asked_to_stop=True)
    write_exit(chain, world, job, 2, "n3", rendezvous_lost=True)
    write_exit(chain, world, job, 3, "n4", exit_code=93)
    write_exit(chain, world, job, 4, "n5", exit_code=0)
    write_exit(chain, world, job, 5, "n6", exit_code=int(ExitCode.TERMINATED))
    chain.close(job, Outcome.FAILED)
    assert [(one.node, one.why) for one in read_deaths(chain.open())] == [("n1", "its launcher ended with 1")]


def test_the_host_that_takes_the_rendezvous_along_died_itself_and_its_peers_did_not(
    world: World, chain: ChainOnDisk
) -> None:
    job = chain.submit(1)
    write_joined(chain, world, job, 0, "n1", "n2")
    write_joined(chain, world, job, 1, "n3")
    write_exit(chain, world, job, 0, "n1", exit_code=137, rendezvous_lost=True)
    write_exit(chain, world, job, 0, "n2", rendezvous_lost=True)
    write_exit(chain, world, job, 1, "n3", rendezvous_lost=True)
    chain.close(job, Outcome.FAILED)
    assert [one.node for one in read_deaths(chain.open())] == ["n1"]


def test_a_host_of_which_nothing_says_where_it_was_and_one_that_says_it_lost_the_host_are_no_deaths(
    world: World, chain: ChainOnDisk
) -> None:
    job = chain.submit(1)
    write_exit(chain, world, job, 0, "n1", exit_code=137, rendezvous_lost=True)
    assert read_deaths(chain.open()) == ()
    write_joined(chain, world, job, 0, "n1")
    write_exit(chain, world, job, 0, "n1", exit_code=int(ExitCode.HOST_LOST), rendezvous_lost=True)
    assert read_deaths(chain.open()) == ()


def write_joined(chain: ChainOnDisk, world: World, job: int, task: int, *nodes: str) -> None:
    stamp = {**STAMP, "array_task_id": task}
    record = Joined(array_job_id=job, nodes=nodes, joined_at=format_time(world.clock.now()), **stamp)  # type: ignore[arg-type]
    chain.run.generation(job).control.mkdir(parents=True, exist_ok=True)
    write_atomic(chain.run.generation(job).joined(task), encode_record(record))


def test_a_task_without_a_word_of_its_end_died_unless_its_generation_still_runs(
    world: World, chain: ChainOnDisk
) -> None:
    job = chain.submit(1)
    chain.lease(job, "training")
    assert read_deaths(chain.open()) == ()
    chain.close(job, Outcome.LEASE_LOST, "n1 is down* and the lease of 11_0 stands still")
    (one,) = read_deaths(chain.open())
    assert (one.node, one.array_task_id, one.why) == ("n1", 0, "n1 is down* and the lease of 11_0 stands still")


def test_damaged_and_foreign_files_are_no_statement(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    control = chain.run.generation(job).control
    control.mkdir(parents=True)
    (control / "launcher_exit.0.n1.json").write_text("{")
    (control / "lease.1.json").symlink_to("/dev/zero")
    chain.close(job, Outcome.FAILED)
    assert read_deaths(chain.open()) == ()
