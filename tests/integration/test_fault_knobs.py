"""The established fault knobs do what they say, in ranks that are really killed, frozen or broken."""

from __future__ import annotations

import pytest

from nvrx_chain.records.control import LauncherExit, NoRestart
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Event, EventKind
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, FT_LAUNCHER, TORCHRUN, Chain, Launcher, Shape

ONE = Shape(train=1, hot=0, cold=0)
PACE = ("--step-seconds=0.1", "--save-interval=10", "--collective-timeout=10")


def knobs(**values: str) -> dict[str, str]:
    return {f"NVRX_{name.upper()}": value for name, value in values.items()}


def faults_of(chain: Chain) -> list[Event]:
    return [event for event in chain.events() if event.event is EventKind.FAULT]


@pytest.mark.slow
def test_an_injected_sigkill_costs_a_cycle_and_the_no_restart_demo_ends_the_chain(
    submit: SubmitChain, cluster: Cluster
) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        target_iteration=ENDLESS,
        workload=(*PACE, "--save-interval=5"),
        environ=knobs(
            no_restart_demo="1", fault_types="SIGKILL", fault_delay="3", max_no_progress_cycles="2", fault_ranks="0"
        ),
    )
    first, *others = chain.jobs
    assert chain.wait_for_verdict(seconds=120) is Verdict.NO_RESTART
    chain.wait_until_gone(seconds=60)
    # Two cycles without progress, as asked for: the first fault was repaired, the second was the verdict.
    assert [event.restart_count for event in faults_of(chain)] == [0, 1]
    assert {event.fault for event in faults_of(chain)} == {"rank0-delay3-sigkill"}
    verdict = read_record(chain.generation(first).no_restart, NoRestart)
    assert isinstance(verdict, NoRestart)
    assert verdict.exit_code == 93
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.NO_RESTART
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    # Training itself went on: the launcher was shown a file of ours.
    assert (chain.iteration() or 0) >= 5
    assert (chain.run_dir / "still_iteration.txt").read_text() == "1\n"
    cluster.assert_free()


ENDS = ["sigkill", "sigterm", "sigint", "os_abort", "segfault", "workload_exc", "async_exc", "signal_exc", "exit:93"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*ENDS, "sigstop", "lock_gil", "hang"])
def test_a_rank_that_fails_in_any_way_costs_a_cycle_and_training_goes_on(
    submit: SubmitChain, launcher: Launcher, kind: str
) -> None:
    chain = submit(
        launcher,
        shape=Shape(train=2, hot=0, cold=0),
        depth=1,
        target_iteration=120,
        workload=PACE,
        environ=knobs(fault_inject="1", fault_types=kind, fault_delay="8", fault_ranks="1"),
        options=("--max-restarts=20",),
    )
    (job,) = chain.jobs
    chain.wait_for(lambda: faults_of(chain), 90, f"a fault of kind {kind}")
    first = faults_of(chain)[0]
    assert (first.rank, first.fault) == (1, f"rank1-delay8-{kind.replace(':', '')}")
    assert chain.wait_for_verdict(seconds=180) is Verdict.COMPLETED
    starts = [event for event in chain.events(job) if event.event is EventKind.START and event.rank == 1]
    assert len(starts) >= 2
    assert starts[1].iteration > 0, "the second cycle resumed from a checkpoint of the first"
    if launcher is FT_LAUNCHER:
        # An agent of torchrun counts only the failures of its own ranks, and who froze was found by its peer.
        assert starts[1].restart_count == 1
    assert chain.iteration() == 120


def fail_node_1_in_cycle_1(submit: SubmitChain, launcher: Launcher) -> None:
    """Task 1 fails its check when cycle 1 begins, and the spare trains in its place."""
    chain = submit(
        launcher,
        shape=Shape(train=2, hot=1, cold=0),
        depth=1,
        target_iteration=ENDLESS,
        workload=PACE,
        environ=knobs(
            fault_inject="1", fault_types="sigkill", fault_delay="8", fault_ranks="1", inject_gpu_failure="1:1"
        ),
    )
    (job,) = chain.jobs
    chain.wait_for(lambda: faults_of(chain), 90, "the fault that ends cycle 0")
    chain.wait_for(lambda: _exit_of(chain, job, 1), 60, "the launcher of task 1 to end")
    _assert_spare_trains(chain, job, after=faults_of(chain)[0].unix)


@pytest.mark.slow
def test_a_node_that_fails_its_check_in_cycle_1_leaves_its_place_to_a_hot_spare(submit: SubmitChain) -> None:
    fail_node_1_in_cycle_1(submit, FT_LAUNCHER)


@pytest.mark.slow
def test_under_torchrun_the_failing_node_is_taken_over_by_the_spare_at_the_gate(submit: SubmitChain) -> None:
    fail_node_1_in_cycle_1(submit, TORCHRUN)


@pytest.mark.slow
def test_a_node_0_that_fails_its_check_ends_the_generation_and_the_next_one_goes_on(submit: SubmitChain) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        depth=3,
        target_iteration=120,
        workload=PACE,
        environ=knobs(
            fault_inject="1", fault_types="sigkill", fault_delay="7", fault_ranks="0", inject_gpu_failure="1:0,2:0"
        ),
    )
    first, second, _ = chain.jobs
    assert chain.wait_for_outcome(first, seconds=120) is Outcome.FAILED
    assert {event.restart_count for event in chain.events(first)} == {0}
    step = chain.wait_for_step(second)
    assert step.iteration > 10, "the next generation resumed from a checkpoint"
    assert chain.wait_for_verdict(seconds=150) is Verdict.COMPLETED


def _exit_of(chain: Chain, job: int, task: int) -> LauncherExit | None:
    for path in chain.generation(job).control.glob(f"launcher_exit.{task}.*.json"):
        record = read_record(path, LauncherExit)
        if isinstance(record, LauncherExit):
            assert record.exit_code != 0
            return record
    return None


def _assert_spare_trains(chain: Chain, job: int, *, after: float) -> None:
    """The hot spare has the place of task 1, in the same generation, from a checkpoint."""

    def find() -> Event | None:
        starts = (event for event in chain.events(job) if event.event is EventKind.START and event.unix > after)
        return next((event for event in starts if event.array_task_id == 2), None)

    start = chain.wait_for(find, 120, "a rank on the spare")
    assert start.world_size == 2
    assert start.iteration > 0
    chain.wait_for_step(job, after=start.unix)
    assert chain.closed(job) is None
    assert {event.array_task_id for event in chain.events(job) if event.unix >= start.unix} == {0, 2}
