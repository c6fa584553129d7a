"""Singleton does not keep generations apart, and a person with scancel or scontrol moves them about: what must hold."""

from __future__ import annotations

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.control import Rendezvous
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome
from tests.integration import timeline
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    beat,
    exit_codes,
    field_of,
    starts,
    wait_for_ranks,
    wait_for_row,
    why_left,
)
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import DEFAULT_SHAPE, Chain, Shape


def hold(cluster: Cluster, spec: str) -> None:
    """Hold a pending element and see that it is."""
    cluster.run(["scontrol", "hold", spec])
    job, task = spec.split("_")
    wait_for(
        lambda: any(
            row.job == int(job) and row.task == int(task) and row.reason == "JobHeldAdmin" for row in cluster.queue()
        ),
        SECONDS,
        f"{spec} to be held",
    )


def trained_together(chain: Chain, first: int, second: int, seconds: float = SECONDS) -> None:
    """Wait for the second generation's training; the first one's ranks never lived beside it."""
    chain.wait_for_step(second, seconds=seconds)
    chain.assert_no_overlap()
    assert chain.events(first), "the first generation had not trained"
    assert starts(chain, second)[0].iteration > 0, "it did not resume"


@pytest.mark.slow
def test_case_08_a_generation_waits_for_the_ranks_of_one_that_is_still_completing(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--on-term=ignore"))
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(first)

    def overlap() -> bool:
        states = {row.state for row in chain.rows(first)}
        return "COMPLETING" in states and 0 in chain.running(second)

    # The fault: Slurm runs the successor's task 0 beside tasks that it has not ended.
    wait_for(overlap, 20, f"the successor to start beside COMPLETING tasks; the queue has {chain.rows()}")
    trained_together(chain, first, second)
    record = chain.record(second)
    started = parse_time(record.started_at) if record else None
    assert started is not None
    lived_on = timeline.lives(chain.events(first))[0].last - started.timestamp()
    assert lived_on > 3, f"its ranks were not alive beside the successor: {lived_on:.1f} s"
    assert "waiting for the predecessor" in chain.task_log(second, 0)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.TERMINATED
    ports = [read_record(chain.generation(job).rendezvous, Rendezvous) for job in (first, second)]
    assert all(isinstance(port, Rendezvous) for port in ports)
    assert len({port.rendezvous_port for port in ports if isinstance(port, Rendezvous)}) == 2


@pytest.mark.slow
def test_case_09_a_held_spare_goes_with_its_generation(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat())
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    hold(cluster, f"{first}_3")
    cluster.cancel(*(f"{first}_{task}" for task in (0, 1, 2, 4)))
    trained_together(chain, first, second)
    wait_for(lambda: not chain.live_rows(first), SECONDS, f"no task of it in the queue: {chain.rows(first)}")
    assert cluster.run(["scontrol", "release", f"{first}_3"], check=False).returncode != 0, "there is one to release"


@pytest.mark.slow
def test_case_09_a_spare_that_comes_back_beside_the_next_generation_leaves_at_the_gate(
    cluster: Cluster, submit: SubmitChain
) -> None:
    # Nobody cancels it, as if every scancel had failed.
    chain = submit(beat(), environ={"NVRX_CHAIN_TEST_HOOKS": "no-release"})
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    hold(cluster, f"{first}_3")
    cluster.cancel(*(f"{first}_{task}" for task in (0, 1, 2, 4)))
    trained_together(chain, first, second)
    cluster.run(["scontrol", "release", f"{first}_3"])
    # The fault: it runs although the next generation does.
    wait_for(lambda: why_left(chain, first, 3), SECONDS, "the spare to run and leave")
    assert chain.host_of(second, 0)
    assert wait_for_row(chain, first, 3, "COMPLETED").nodes not in chain.running(second).values()
    assert exit_codes(cluster, first)[3] == "0:0"
    assert "left at the gate" in (why_left(chain, first, 3) or "")
    assert 3 not in {event.array_task_id for event in chain.events(first)}
    assert_undisturbed(chain, second)


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, 3], ids=["task-0", "spare"])
def test_case_09_a_task_of_an_older_generation_that_is_released_late_trains_nothing(
    cluster: Cluster, submit: SubmitChain, task: int
) -> None:
    with cluster.occupied(cluster.sandbox.node_names):
        chain = submit(beat())
        first, second, _ = chain.jobs
        # Slurm drops the dependency when it finds it met; an element that is split off before would wait for ever.
        wait_for(
            lambda: field_of(cluster, first, "Dependency") == "(null)", SECONDS, "the first one to depend on nothing"
        )
        hold(cluster, f"{first}_{task}")
        cluster.cancel(*(f"{first}_{other}" for other in range(5) if other != task))
    chain.wait_for_step(second)
    cluster.run(["scontrol", "release", f"{first}_{task}"])
    row = wait_for_row(chain, first, task, "COMPLETED", "FAILED")
    assert row.nodes, "it did not run"
    assert chain.host_of(second, 0)
    assert exit_codes(cluster, first)[task] == ("76:0" if task == 0 else "0:0")
    assert f"generation {second} has published" in chain.task_log(first, task)
    assert not chain.events(first)
    assert_undisturbed(chain, second)


def assert_undisturbed(chain: Chain, job: int) -> None:
    """The generation steps on in the same lives."""
    # A rank that is just starting would look like one that was restarted.
    wait_for_ranks(chain, job)
    lives = len(starts(chain, job))
    step = timeline.steps(chain.events(job))[-1]
    chain.wait_for_step(job, after=step.unix, steps=5)
    assert len(starts(chain, job)) == lives
    assert chain.closed(job) is None


@pytest.mark.slow
def test_case_40_spares_that_start_in_the_slot_of_a_dead_task_0_leave_soon_and_block_nothing(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat())
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    # Dead as well as down: a task 0 that lives cancels its pending spares before Slurm has started one.
    node = chain.kill_node_of(first, 0).target
    cluster.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=case 40"])
    assert wait_for_row(chain, first, 0, "NODE_FAIL").nodes == node
    trained_together(chain, first, second, seconds=2 * SECONDS)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.LEASE_LOST
    # The fault: Slurm gave the free slot to a cold spare at once, where no cancel of pending tasks reaches it.
    rows = {row.task: row for row in chain.rows(first)}
    assert rows[3].nodes, f"no spare was started: {rows}"
    assert {row.state for row in rows.values()} <= {"NODE_FAIL", "COMPLETED", "CANCELLED", "FAILED"}, rows
    # It was the one that proved the death and closed the generation, or it found it closed.
    assert exit_codes(cluster, first)[3] in ("75:0", "0:0")
    assert 3 not in {event.array_task_id for event in chain.events(first)}
    assert why_left(chain, first, 3)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [PAIR, DEFAULT_SHAPE], ids=["no-spares", "spares"])
def test_scancel_of_the_whole_running_array_hands_off(cluster: Cluster, submit: SubmitChain, shape: Shape) -> None:
    chain = submit(beat(), shape=shape)
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(first)
    trained_together(chain, first, second)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.TERMINATED
    assert {row.state for row in chain.live_rows(third)} == {"PENDING"}
    assert chain.verdict() is None
    assert chain.hold() is None


def test_scancel_of_task_0_hands_off(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat())
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(f"{first}_0")
    trained_together(chain, first, second)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.TERMINATED
    assert {row.state for row in chain.live_rows(third)} == {"PENDING"}


@pytest.mark.slow
def test_scancel_of_a_training_peer_gives_its_seat_to_a_spare(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat(), shape=Shape(train=3, hot=1, cold=1))
    first = chain.jobs[0]
    chain.wait_for_training(first)
    wait_for_ranks(chain, first)
    # Whoever came first has a seat; the one with the middle rank goes.
    seated = {event.rank: event.array_task_id for event in starts(chain, first)}
    assert sorted(seated) == [0, 1, 2]
    cluster.cancel(f"{first}_{seated[1]}")
    late = wait_for(
        lambda: [event for event in starts(chain, first) if event.array_task_id not in seated.values()],
        SECONDS,
        "its replacement",
    )
    # The others keep theirs, so the newcomer has to have the one that is free.
    assert [event.rank for event in late] == [1]
    assert wait_for_row(chain, first, 4, "RUNNING").nodes
    assert_undisturbed(chain, first)
    assert chain.started_jobs() == (first,)
    assert {row.state for job in chain.jobs[1:] for row in chain.rows(job)} == {"PENDING"}


@pytest.mark.slow
def test_scancel_of_the_pending_spares_leaves_the_training_alone(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat())
    first, second, _ = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel("--state=PENDING", first)
    wait_for(lambda: not any(row.is_pending for row in chain.rows(first)), SECONDS, "no pending spare")
    assert_undisturbed(chain, first)
    chain.kill_task_0(first)
    trained_together(chain, first, second)


@pytest.mark.slow
def test_scancel_of_a_pending_generation_leaves_it_out(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat(), shape=PAIR)
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(second)
    wait_for(lambda: not chain.live_rows(second), SECONDS, "the second generation to be gone")
    assert_undisturbed(chain, first)
    cluster.cancel(f"{first}_0")
    trained_together(chain, first, third)
    assert chain.started_jobs() == (first, third)
