"""megatron-gpt from submit to the end of its chain, with a stand-in that reads arguments as Megatron-LM does."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Ending, EventKind
from tests.integration.conftest import SubmitChain
from tests.integration.harness import FT_LAUNCHER, REPOSITORY, TORCHRUN, Launcher, Shape

STAND_IN = REPOSITORY / "tests" / "megatron_stand_in"
ONE = Shape(train=1, hot=0, cold=0)


def options(*more: str) -> tuple[str, ...]:
    return ("--workload=megatron-gpt", f"--megatron-path={STAND_IN}", *more)


@pytest.mark.slow
def test_megatron_gpt_trains_across_a_hand_off_and_ends_the_chain_by_its_tracker(submit: SubmitChain) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        depth=3,
        options=options("--save-interval=20", "--max-restarts=0"),
        workload=("--train-iters=150", "--seq-length=512"),
        environ={"STAND_IN_OPTIONS": "--step-seconds=0.1"},
    )
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    chain.kill_rank(first, 0)
    assert chain.wait_for_outcome(first, seconds=90) is Outcome.FAILED
    assert chain.wait_for_verdict(seconds=150) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=60)
    assert chain.wait_for_outcome(second, seconds=1) is Outcome.COMPLETED
    assert chain.started_jobs() == (first, second)
    assert {row.state for row in chain.rows(third)} == {"CANCELLED"}
    start = next(event for event in chain.events(second) if event.event is EventKind.START)
    assert start.iteration > 0
    (end,) = (event for event in chain.events(second) if event.event is EventKind.END)
    assert (end.outcome, end.iteration) == (Ending.TARGET, 150)
    assert Path(chain.run_dir, "checkpoints", "latest_checkpointed_iteration.txt").read_text().strip() == "150"
    chain.assert_no_overlap()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [FT_LAUNCHER, TORCHRUN], ids=lambda launcher: launcher.name)
def test_the_fault_knobs_reach_the_injector_of_megatron_and_training_goes_on(
    submit: SubmitChain, launcher: Launcher
) -> None:
    knobs = {"FAULT_INJECT": "1", "FAULT_TYPES": "SIGKILL", "FAULT_RANKS": "0", "FAULT_DELAY": "8"}
    chain = submit(
        launcher,
        shape=ONE,
        depth=1,
        options=options("--save-interval=10"),
        workload=("--train-iters=100000",),
        environ={"STAND_IN_OPTIONS": "--step-seconds=0.1"} | {f"NVRX_{name}": value for name, value in knobs.items()},
    )
    (job,) = chain.jobs
    fault = chain.wait_for(
        lambda: next((event for event in chain.events(job) if event.event is EventKind.FAULT), None), 90, "a fault"
    )
    assert fault.fault == "rank0-delay8-sigkill"
    step = chain.wait_for_step(job, after=fault.unix)
    assert step.restart_count == 1
    assert step.iteration > 10


@pytest.mark.slow
def test_the_warning_of_the_time_limit_is_the_exit_signal_of_megatron(submit: SubmitChain) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        depth=1,
        time_limit="2",
        options=options("--save-interval=1000000", "--walltime-warning=30"),
        workload=("--train-iters=100000",),
        environ={"STAND_IN_OPTIONS": "--step-seconds=0.1"},
    )
    (job,) = chain.jobs
    chain.wait_for_step(job)
    assert chain.iteration() is None
    assert chain.wait_for_outcome(job, seconds=150) is Outcome.WALLTIME
    told = [event for event in chain.events(job) if event.event is EventKind.SIGNAL]
    assert [event.signal for event in told] == ["SIGUSR1"]
    assert chain.iteration() == chain.events(job)[-1].iteration
