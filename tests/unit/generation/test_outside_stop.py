"""A launcher that ends while somebody else ends this task did not end by itself, whatever its exit code says."""

from __future__ import annotations

import pytest

from nvrx_chain.generation.finish import LauncherFacts, decide_ending
from nvrx_chain.generation.session import Session, SessionEnd, StopCause
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.manifest import Completion, CompletionKind
from nvrx_chain.records.outcome import Outcome
from tests.fakes.generation_lab import FakeLauncher, Lab, terminate

QUIET = GenerationRecord(
    array_job_id=7,
    array_task_id=0,
    restart_count=0,
    host="n1",
    boot_id="b",
    pid=1,
    pid_started_at=0,
    chain_id="c",
    started_at="2026-01-01T00:00:00Z",
    launched_at="2026-01-01T00:00:10Z",
    ended_at="2026-01-01T00:01:00Z",
    outcome=Outcome.UNFINISHED,
    exit_code=0,
    signalled=False,
    near_wall=False,
    iteration_at_start=5,
    iteration_at_end=5,
    cycles=None,
    run_seconds=50.0,
)
"""A generation after which one more quiet exit 0 ends the chain."""


def run_session(lab: Lab, *, asked_to_stop: bool, terminated: bool) -> SessionEnd:
    """Ranks that exit 0 after 30 s, and what was said to their wrapper or to run-task by then."""
    context = lab.arrive(1, 0)
    launcher = lab.launcher(context)

    def end() -> None:
        # srun returns before this process looks again.
        _end(launcher, asked_to_stop=asked_to_stop)
        if terminated:
            terminate(context)

    lab.clock.after(30, end)
    return Session(context, lambda _snapshot: None).run()


def _end(launcher: FakeLauncher, *, asked_to_stop: bool) -> None:
    if asked_to_stop:
        launcher.said.append("stop by Slurm")
    launcher.exit(0)


@pytest.mark.parametrize(
    ("asked_to_stop", "terminated", "cause"),
    [
        (False, False, StopCause.LAUNCHER_ENDED),
        (True, False, StopCause.STOPPED),
        (False, True, StopCause.TERMINATED),
        (True, True, StopCause.TERMINATED),
    ],
)
def test_the_cause_of_an_end_is_the_signal_that_was_seen_by_task_or_wrapper(
    lab: Lab, asked_to_stop: bool, terminated: bool, cause: StopCause
) -> None:
    end = run_session(lab, asked_to_stop=asked_to_stop, terminated=terminated)
    assert (end.cause, end.exit_code, end.ranks_gone) == (cause, 0, True)


def test_a_stopped_wrapper_names_its_node(lab: Lab) -> None:
    assert "n1" in run_session(lab, asked_to_stop=True, terminated=False).reason


def facts_of(cause: StopCause, **changes: bool) -> LauncherFacts:
    """A launcher that ended with 0 and left the iteration as it was."""
    given = {"near_wall": False, "preempted": False, "parent_died": False, **changes}
    return LauncherFacts(
        cause=cause,
        exit_code=0,
        no_restart_said=False,
        no_restart_exit_code=93,
        walltime_warned=False,
        iteration_at_start=5,
        iteration_at_end=5,
        done_file_exists=False,
        **given,
    )


@pytest.mark.parametrize("kind", [CompletionKind.EXIT_ZERO, CompletionKind.TWO_QUIET_EXITS])
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.TERMINATED),
        ({"near_wall": True}, Outcome.WALLTIME),
        ({"preempted": True}, Outcome.PREEMPTED),
        ({"parent_died": True}, Outcome.FAILED),
    ],
)
def test_a_zero_of_a_launcher_that_was_told_to_stop_is_never_the_end_of_training(
    kind: CompletionKind, changes: dict[str, bool], outcome: Outcome
) -> None:
    completion = Completion(kind=kind)
    assert decide_ending(facts_of(StopCause.LAUNCHER_ENDED), completion, QUIET).outcome is Outcome.COMPLETED
    assert decide_ending(facts_of(StopCause.STOPPED, **changes), completion, QUIET).outcome is outcome
