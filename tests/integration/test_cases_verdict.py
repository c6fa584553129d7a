"""How a generation's end is told: no exit code by itself is believed, neither a lost 93 nor an empty zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.control import LauncherExit, NoRestart
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import EventKind
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    beat,
    exit_codes,
    run_bare,
    wait_for_end,
    wait_for_row,
    wait_for_text,
)
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import Chain, Shape, command_launcher

TWO_NODES = Shape(train=1, hot=0, cold=0, nodes_per_task=2)

# Entry 1 as it is reported: one task of the step says 93 at once (when the other runs), the other a little later.
LOST_93 = """\
up=up.$SLURM_JOB_ID.$SLURM_STEP_ID
if [ "$SLURM_PROCID" = 1 ]; then until [ -e "$up" ]; do sleep 0.1; done; exit 93; fi
touch "$up"; sleep 4; exit 93
"""


def exits_of(chain: Chain, job: int, task: int) -> dict[str, int]:
    """Exit code by node, as the wrappers wrote them."""
    found = {}
    for path in chain.generation(job).control.glob(f"launcher_exit.{task}.*.json"):
        record = read_record(path, LauncherExit)
        assert isinstance(record, LauncherExit)
        found[record.node] = record.exit_code
    return found


def assert_stopped_for_good(chain: Chain) -> None:
    """No restart: the verdict is there, no other generation started, nothing is queued."""
    first, *others = chain.jobs
    assert chain.wait_for_outcome(first, seconds=SECONDS) is Outcome.NO_RESTART
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.NO_RESTART
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    assert isinstance(read_record(chain.generation(first).no_restart, NoRestart), NoRestart)


@pytest.mark.parametrize(
    "whose",
    [
        "own-srun",
        pytest.param("site", marks=[pytest.mark.slow, pytest.mark.cluster(kill_on_bad_exit=1)]),
    ],
)
def test_case_01_a_93_that_kill_on_bad_exit_turns_into_143_still_ends_the_chain(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path, whose: str
) -> None:
    options = "--kill-on-bad-exit=1" if whose == "own-srun" else ""
    job = run_bare(cluster, tmp_path / "bare", f"srun {options} bash -c '{LOST_93}'\necho $?\n", "--nodes=2")
    wait_for_end(cluster, job)
    assert (tmp_path / "bare" / "bare.log").read_text().split()[-1] == "143", "the trap does not exist here"

    if whose == "own-srun":
        # The launcher of the first node runs a step of its own over both; the other one has nothing to do.
        step = tmp_path / "launcher.sh"
        step.write_text(
            '[ "$1" = 0 ] || exec sleep 600\n'
            f"srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 {options} bash -c '{LOST_93}'\n"
        )
        launcher = command_launcher(f"bash {step} {{node_rank}}", name="own-srun")
    else:
        launcher = beat("--ends=1:0:93", "--ends=0:4:93")
    chain = submit(launcher, shape=TWO_NODES)
    assert_stopped_for_good(chain)
    assert 93 in exits_of(chain, chain.jobs[0], 0).values()
    assert exit_codes(cluster, chain.jobs[0]) == {0: "93:0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [("1:1:93", "0:2:kill"), ("0:1:kill", "1:4:93")],
    ids=["verdict-first", "crash-first"],
)
def test_case_06_a_crash_with_a_higher_code_does_not_hide_the_verdict(
    submit: SubmitChain, first: str, second: str
) -> None:
    # They ignore the TERM that the first end brings, or the second one would be cut off.
    chain = submit(beat(f"--ends={first}", f"--ends={second}", "--on-term=ignore"), shape=TWO_NODES)
    assert_stopped_for_good(chain)
    job = chain.jobs[0]
    assert sorted(exits_of(chain, job, 0).values()) == [93, 137], "not the two codes that are meant"
    record = chain.record(job)
    assert record is not None
    # The number alone says "failed": only the file tells.
    assert record.exit_code == 137


@pytest.mark.slow
@pytest.mark.parametrize("whole_array", [False, True], ids=["task-0", "array"])
def test_case_03_an_exit_code_zero_after_a_scancel_is_not_the_end_of_training(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path, whole_array: bool
) -> None:
    assert any(_bare_exit_trap(cluster, tmp_path / str(attempt)) == "rc=0" for attempt in range(4)), "no trap here"

    # Ranks that save and exit 0 after a TERM, under the criterion that believes a zero most easily.
    chain = submit(beat("--on-term=leave"), shape=PAIR, options=["--complete-on-exit-zero"])
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    cluster.cancel(first if whole_array else f"{first}_0")
    chain.wait_for_step(second)
    assert {event.signal for event in chain.events(first) if event.event is EventKind.SIGNAL} == {"SIGTERM"}
    assert set(exits_of(chain, first, 0).values()) == {0}, "the launcher did not end with the zero that lies"
    record = chain.record(first)
    assert record is not None
    assert (record.outcome, record.signalled) == (Outcome.TERMINATED, True)
    assert chain.verdict() is None
    assert {row.state for row in chain.live_rows(third)} == {"PENDING"}
    chain.assert_no_overlap()


def _bare_exit_trap(cluster: Cluster, directory: Path) -> str | None:
    """What `$?` is in the EXIT trap of a cancelled script that waits for a step in the foreground.

    None where Slurm killed the shell before it came to its trap, as happens now and then on a busy machine.
    """
    script = "trap 'echo rc=$? >trap.log' EXIT\nsrun bash -c 'echo up >up.log; exec sleep 300'\n"
    job = run_bare(cluster, directory, script)
    # An srun that is still starting its step ends before the shell does, with a code of its own.
    wait_for_text(directory / "up.log")
    cluster.cancel(job)
    wait_for_end(cluster, job)
    trap = directory / "trap.log"
    return trap.read_text().strip() if trap.exists() else None


@pytest.mark.slow
def test_case_03_an_exit_code_zero_at_the_time_limit_is_not_the_end_of_training(submit: SubmitChain) -> None:
    chain = submit(beat("--on-term=leave"), shape=PAIR, time_limit="1", options=["--complete-on-exit-zero"])
    first, second, _ = chain.jobs
    chain.wait_for_step(first)
    # Slurm looks at time limits every half minute, and up to that much early.
    assert chain.wait_for_outcome(first, seconds=150) is Outcome.WALLTIME
    assert {event.signal for event in chain.events(first) if event.event is EventKind.SIGNAL} == {"SIGUSR1"}
    assert set(exits_of(chain, first, 0).values()) == {0}, "the launcher did not end with the zero that lies"
    chain.wait_for_step(second)
    assert chain.verdict() is None
    chain.assert_no_overlap()


@pytest.mark.slow
def test_case_03_an_exit_code_zero_after_slurm_gave_the_node_up_is_not_the_end_of_training(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(beat("--on-term=leave"), shape=PAIR, options=["--complete-on-exit-zero"])
    first, second, third = chain.jobs
    chain.wait_for_training(first)
    node = chain.host_of(first, 0)
    cluster.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=case 3"])
    assert wait_for_row(chain, first, 0, "NODE_FAIL").nodes == node
    chain.wait_for_step(second)
    assert chain.wait_for_outcome(first, seconds=SECONDS) in (Outcome.TERMINATED, Outcome.LEASE_LOST)
    assert chain.verdict() is None
    assert {row.state for row in chain.live_rows(third)} == {"PENDING"}
    chain.assert_no_overlap()


def test_case_14_a_finished_training_takes_the_rest_of_the_chain_along(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat("--until=5"), shape=PAIR, options=["--complete-on-exit-zero"])
    first, *others = chain.jobs
    assert len(others) == 2
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.COMPLETED
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    assert exit_codes(cluster, first)[0] == "0:0"


@pytest.mark.slow
def test_case_14_a_later_generation_that_starts_all_the_same_leaves_at_once_with_zero(
    cluster: Cluster, submit: SubmitChain
) -> None:
    chain = submit(
        beat("--until=5"),
        shape=PAIR,
        options=["--complete-on-exit-zero"],
        # Nobody cancels the rest, as if every scancel had failed.
        environ={"NVRX_CHAIN_TEST_HOOKS": "no-release"},
    )
    first, *others = chain.jobs
    assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=SECONDS)
    assert chain.started_jobs() == chain.jobs, "the later generations did not start"
    for job in others:
        assert chain.wait_for_outcome(job, seconds=1) is Outcome.REFUSED
        assert not chain.events(job), "it had ranks"
        assert exit_codes(cluster, job) == {0: "0:0", 1: "0:0"}
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.COMPLETED
