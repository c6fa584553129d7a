"""megatron-gpt from submit to the end of its chain, with a stand-in that reads arguments as Megatron-LM does."""

from __future__ import annotations

from pathlib import Path

from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Ending, EventKind
from tests.integration.conftest import SubmitChain
from tests.integration.harness import FT_LAUNCHER, REPOSITORY, Shape

STAND_IN = REPOSITORY / "tests" / "megatron_stand_in"
ONE = Shape(train=1, hot=0, cold=0)


def options(*more: str) -> tuple[str, ...]:
    return ("--workload=megatron-gpt", f"--megatron-path={STAND_IN}", *more)


def test_megatron_gpt_trains_across_a_hand_off_and_ends_the_chain_by_its_tracker(submit: SubmitChain) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        depth=3,
        options=options(
            "--save-interval=20",
            "--fault-inject",
            "--fault-types=SIGKILL",
            "--fault-ranks=0",
            "--fault-delay=8",
            "--max-restarts=0",
        ),
        workload=("--train-iters=110", "--seq-length=512"),
        environ={"STAND_IN_OPTIONS": "--step-seconds=0.1"},
    )
    first, second, third = chain.jobs
    assert chain.wait_for_outcome(first, seconds=90) is Outcome.FAILED
    assert chain.wait_for_verdict(seconds=90) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=60)
    assert chain.wait_for_outcome(second, seconds=1) is Outcome.COMPLETED
    assert chain.started_jobs() == (first, second)
    assert {row.state for row in chain.rows(third)} == {"CANCELLED"}
    start = next(event for event in chain.events(second) if event.event is EventKind.START)
    assert start.iteration % 20 == 0
    assert start.iteration > 0
    (end,) = (event for event in chain.events(second) if event.event is EventKind.END)
    assert (end.outcome, end.iteration) == (Ending.TARGET, 110)
    assert Path(chain.run_dir, "checkpoints", "latest_checkpointed_iteration.txt").read_text().strip() == "110"
    chain.assert_no_overlap()
