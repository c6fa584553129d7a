"""A chain that was told to end and goes on: three witnesses, each with its own weight."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nvrx_chain.records.manifest import Launcher, LauncherKind
from nvrx_watch.detectors.not_cancelled import find_not_cancelled
from nvrx_watch.model import ActionKind, Generation, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    account,
    ago,
    ago_text,
    blind,
    closed,
    ended_generation,
    foreign_subject,
    generation,
    generations,
    manifest,
    no_restart,
    queue,
    queued_rows,
    record,
    row,
    running_generation,
    running_rows,
    snapshot,
    subject,
    verdict,
)

LIMITS = WatchThresholds(orphan_grace=60)
LATER = queue(row(11, 0, "FAILED"), *queued_rows(12), *queued_rows(13))


def doomed(first: Generation, **overrides: object) -> Snapshot:
    """Generation 11 is this one, and 12 and 13 are still queued."""
    values: dict[str, object] = {"generations": generations(g11=first), "queue": LATER}
    return snapshot(**{**values, **overrides})


def silent(**overrides: object) -> Generation:
    """A generation that left no word of its own."""
    return generation(11, has_directory=True, **overrides)


def test_a_healthy_chain_was_not_told_to_end() -> None:
    assert list(find_not_cancelled(snapshot(), LIMITS)) == []


def test_a_no_restart_file_whose_cancel_failed_is_critical() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11))
    (finding,) = find_not_cancelled(doomed(told), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "chain_not_cancelled:chain"
    assert finding.array_job_ids == (12, 13)
    assert "no_restart.json of 11: loss is NaN" in finding.details[0]
    assert finding.action is not None
    assert finding.action.kind is ActionKind.CANCEL_CHAIN
    assert finding.action.command == "nvrx-chain cancel --run-dir '/scratch/a b & #1/run'"


def test_a_later_generation_that_runs_already_counts_as_well() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11))
    running = queue(*running_rows(12), *queued_rows(13))
    (finding,) = find_not_cancelled(doomed(told, queue=running), LIMITS)
    assert finding.array_job_ids == (12, 13)


def test_a_node_whose_clock_is_ahead_does_not_keep_the_finding_back() -> None:
    ahead = ended_generation(11, "no_restart", no_restart=no_restart(11, written_at=ago_text(-1200)))
    ahead = replace(ahead, closed=closed(11, "no_restart", closed_at=ago_text(-1200)))
    ended = {11: (account(11, 0, "FAILED"),)}
    assert list(find_not_cancelled(doomed(ahead, accounting=ended), LIMITS))
    # Without Slurm's own end nothing else is known, and a time in the future is just now.
    alone = doomed(ahead, queue=queue(*queued_rows(12)), accounting={})
    assert list(find_not_cancelled(alone, LIMITS)) == []


def test_the_verdict_file_is_the_first_witness() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11))
    (finding,) = find_not_cancelled(doomed(told, verdict=verdict("no_restart")), LIMITS)
    assert "verdict file" in finding.details[0]


@pytest.mark.parametrize(("seconds", "fires"), [(60, False), (61, True)])
def test_the_chain_gets_its_grace_to_cancel_by_itself(seconds: float, fires: bool) -> None:
    told = ended_generation(
        11,
        "no_restart",
        closed=closed(11, "no_restart", closed_at=ago_text(seconds)),
        no_restart=no_restart(11, written_at=ago_text(500)),
    )
    assert bool(list(find_not_cancelled(doomed(told), LIMITS))) is fires


@pytest.mark.parametrize(("seconds", "fires"), [(180, False), (181, True)])
def test_a_generation_that_still_ends_gets_the_time_of_its_teardown(seconds: float, fires: bool) -> None:
    told = running_generation(no_restart=no_restart(11, written_at=ago_text(seconds)))
    assert bool(list(find_not_cancelled(doomed(told, queue=queue()), LIMITS))) is fires


def test_a_verdict_without_a_time_waits() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11, written_at="soon"))
    assert list(find_not_cancelled(doomed(told), LIMITS)) == []


def test_nothing_left_to_cancel_is_quiet() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11))
    gone = queue(row(11, 0, "FAILED"), row(12, 0, "CANCELLED"), row(13, 0, "COMPLETING"))
    assert list(find_not_cancelled(doomed(told, queue=gone), LIMITS)) == []


def test_the_own_spares_of_the_generation_are_another_detectors() -> None:
    told = ended_generation(11, "no_restart", no_restart=no_restart(11))
    assert list(find_not_cancelled(doomed(told, queue=queue(row(11, 4, "PENDING"))), LIMITS)) == []


def test_an_allocation_code_is_the_weakest_witness_and_says_so() -> None:
    (finding,) = find_not_cancelled(doomed(silent(), accounting={11: (account(11, 0, exit_code=93),)}), LIMITS)
    assert "weakest witness" in finding.details[0]
    assert finding.action is not None


def test_a_step_code_of_any_task_is_a_witness() -> None:
    peer = account(11, 1, "FAILED", exit_code=15, step_exit_codes=(93,))
    (finding,) = find_not_cancelled(doomed(silent(), accounting={11: (peer,)}), LIMITS)
    assert "11_1 in accounting (a step)" in finding.details[0]


@pytest.mark.parametrize(
    "row_of_task_0",
    [
        account(11, 0, "RUNNING", exit_code=93),
        account(11, 0, "CANCELLED by 1001", exit_code=93),
        account(11, 0, "FAILED", exit_code=93, exit_signal=9),
        account(11, 0, "FAILED", exit_code=1),
        account(11, 1, "FAILED", exit_code=93),
        account(11, None, "FAILED", exit_code=93, step_exit_codes=(93,)),
    ],
)
def test_a_code_that_is_not_the_last_word_of_task_0_is_no_witness(row_of_task_0: object) -> None:
    assert list(find_not_cancelled(doomed(silent(), accounting={11: (row_of_task_0,)}), LIMITS)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"closed": closed(11, "failed")},
        {"record": record(11, "walltime")},
        {"closed": blind()},
        {"record": blind()},
    ],
)
def test_a_code_is_not_believed_against_the_generations_own_words(overrides: dict[str, object]) -> None:
    codes = {11: (account(11, 0, exit_code=93, step_exit_codes=(93,)),)}
    assert list(find_not_cancelled(doomed(silent(**overrides), accounting=codes), LIMITS)) == []


def test_a_code_that_the_generation_confirms_is_believed() -> None:
    told = silent(closed=closed(11, "no_restart"))
    assert list(find_not_cancelled(doomed(told, accounting={11: (account(11, 0, exit_code=93),)}), LIMITS))


def test_the_code_is_the_chains_own_setting() -> None:
    launcher = Launcher(kind=LauncherKind.COMMAND, python="python", max_restarts=1, no_restart_exit_code=40)
    other = subject(manifest=manifest(launcher=launcher))
    codes = {11: (account(11, 0, exit_code=93),)}
    assert list(find_not_cancelled(doomed(silent(), accounting=codes, subject=other), LIMITS)) == []
    codes = {11: (account(11, 0, exit_code=40),)}
    assert list(find_not_cancelled(doomed(silent(), accounting=codes, subject=other), LIMITS))


@pytest.mark.parametrize("blindness", [{"queue": blind()}, {"accounting": blind()}])
def test_an_unobserved_witness_is_no_witness(blindness: dict[str, object]) -> None:
    assert list(find_not_cancelled(doomed(silent(), **blindness), LIMITS)) == []


def test_a_finished_chain_that_still_has_queued_generations_is_a_warning_without_an_action() -> None:
    done = ended_generation(11, "completed")
    (finding,) = find_not_cancelled(doomed(done, verdict=verdict("completed")), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.action is None


def test_a_cancelled_chain_of_which_something_still_runs_is_a_warning() -> None:
    cancelled = verdict("cancelled", array_job_id=None, decided_at=ago_text(600))
    (finding,) = find_not_cancelled(snapshot(verdict=cancelled), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.array_job_ids == (11, 12, 13)


def test_an_exhausted_chain_that_was_extended_is_not_one_to_cancel() -> None:
    assert list(find_not_cancelled(snapshot(verdict=verdict("exhausted")), LIMITS)) == []


def test_a_foreign_chain_is_cancelled_by_its_job_ids() -> None:
    seen = doomed(silent(), accounting={11: (account(11, 0, exit_code=93),)}, subject=foreign_subject())
    (finding,) = find_not_cancelled(seen, LIMITS)
    assert finding.action is not None
    assert finding.action.command == "scancel 12 13"


def test_a_new_attempt_of_a_foreign_chain_is_not_doomed_by_an_old_one() -> None:
    later = queue(*queued_rows(12, submitted_at=ago(100)), *queued_rows(13, submitted_at=None))
    seen = doomed(silent(), accounting={11: (account(11, 0, exit_code=93),)}, subject=foreign_subject(), queue=later)
    assert list(find_not_cancelled(seen, LIMITS)) == []
