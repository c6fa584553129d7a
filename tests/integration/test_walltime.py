"""The time limit of a generation: the workload is told in time, saves, and the next generation takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Ending, EventKind
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import DEFAULT_PACE, ENDLESS, Launcher, Shape
from tests.integration.stand_ins import shell_launcher

ALONE = Shape(train=1, hot=0, cold=1)
LIMIT_SECONDS = 260.0
"""A limit of one minute, which Slurm looks at twice a minute and lets run over a little."""

# A rank that counts one iteration when it is told to save. Bash runs the trap between two sleeps.
SAVES_ONCE = """
tracker="$1/checkpoints/latest_checkpointed_iteration.txt"
mkdir -p "$1/checkpoints"
save() {
  echo "$(($(cat "$tracker" 2>/dev/null || echo 0) + 1))" >"$tracker.new"
  mv "$tracker.new" "$tracker"
  exit 0
}
trap save USR1
while :; do sleep 0.2; done
"""


def test_a_generation_that_meets_its_time_limit_saves_and_hands_on(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    launcher = shell_launcher(tmp_path / "launcher.sh", SAVES_ONCE, "{run_dir}")
    chain = submit(launcher, shape=ALONE, depth=2, time_limit="1", options=["--target-iteration=5"])
    first, second = chain.jobs
    assert chain.wait_for_outcome(first, seconds=LIMIT_SECONDS) is Outcome.WALLTIME
    wait_for(lambda: (record := chain.record(second)) and record.launched_at, 60, "the second generation to launch")
    record = chain.record(first)
    assert record is not None
    assert (record.iteration_at_start, record.iteration_at_end) == (None, 1)
    # The cold spare was released: it never started, on a node that nobody needed.
    assert {row.state for row in chain.rows(first) if row.task != 0} == {"CANCELLED"}
    assert chain.hold() is None


@pytest.mark.slow
def test_two_generations_that_end_by_their_time_limit_lose_no_step(submit: SubmitChain, launcher: Launcher) -> None:
    # No save but the one that is asked for: what the second generation resumes from was saved at the limit.
    workload = (*(word for word in DEFAULT_PACE if "save" not in word), "--save-interval=0")
    # Two minutes: the start of a launcher takes most of one on a busy machine.
    chain = submit(launcher, depth=2, time_limit="2", target_iteration=ENDLESS, workload=workload)
    first, second = chain.jobs
    for job in chain.jobs:
        assert chain.wait_for_outcome(job, seconds=LIMIT_SECONDS) is Outcome.WALLTIME
    assert chain.wait_for_verdict(seconds=30) is Verdict.EXHAUSTED
    chain.wait_until_gone(seconds=60)
    ends = [event for event in chain.events(first) if event.event is EventKind.END]
    starts = [event for event in chain.events(second) if event.event is EventKind.START]
    assert {event.outcome for event in ends} == {Ending.SIGNAL}
    assert {event.iteration for event in ends} == {event.iteration for event in starts}
    assert {event.iteration for event in starts} != {0}
    chain.assert_no_overlap()
