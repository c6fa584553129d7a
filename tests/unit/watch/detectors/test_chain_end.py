"""Over, about to be over, held: told apart, and never guessed from what could not be seen."""

from __future__ import annotations

import msgspec
import pytest

from nvrx_watch.detectors.chain_end import (
    find_chain_completed,
    find_chain_exhausted,
    find_chain_held,
    find_last_generation,
)
from nvrx_watch.memory import QUEUE_EMPTY_NAME, lease_name, task_zero_name, waiting_name
from nvrx_watch.model import ActionKind, Queue, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    NAME,
    account,
    ago,
    ago_text,
    blind,
    ended_generation,
    ending,
    foreign_subject,
    generation,
    hold,
    manifest,
    queue,
    queued_rows,
    remember,
    row,
    running_rows,
    snapshot,
    subject,
    verdict,
)

LIMITS = WatchThresholds(dry_passes=2, hold_reminder=3600, last_generation_wall=7200, lease_stale=90)
EMPTY = Queue(arrays={})
DRY = remember({QUEUE_EMPTY_NAME: ("yes", 60)}, changes=1)
SPENT = (ended_generation(11, "walltime"), ended_generation(12, "walltime"), ended_generation(13, "failed"))


def dry(**overrides: object) -> Snapshot:
    values: dict[str, object] = {"queue": EMPTY, "memory": DRY, "generations": SPENT}
    return snapshot(**{**values, **overrides})


def test_a_healthy_chain_is_neither_over_nor_held() -> None:
    for check in (find_chain_exhausted, find_chain_completed, find_last_generation, find_chain_held):
        assert list(check(snapshot(), LIMITS)) == []


def test_a_chain_that_ran_dry_is_critical_and_names_how_its_last_generation_ended() -> None:
    (finding,) = find_chain_exhausted(dry(), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.scope == "chain"
    assert "the last generation 13 ended as failed" in finding.title
    assert "nvrx-chain extend --by 1 --run-dir '/scratch/a b & #1/run'" in finding.advice


def test_a_chain_that_was_too_short_ran_out_of_depth() -> None:
    (finding,) = find_chain_exhausted(dry(generations=SPENT[:2]), LIMITS)
    assert "ran out of depth" in finding.title


def test_a_cancel_by_a_person_is_told_apart() -> None:
    cancelled = {13: (account(13, 0, "CANCELLED by 1001"),)}
    (finding,) = find_chain_exhausted(dry(generations=(*SPENT[:2], generation(13)), accounting=cancelled), LIMITS)
    assert "cancelled by uid 1001" in finding.title


def test_a_cancel_by_slurm_itself_is_no_person() -> None:
    cancelled = {13: (account(13, 0, "CANCELLED by 0"),)}
    (finding,) = find_chain_exhausted(dry(generations=(*SPENT[:2], generation(13)), accounting=cancelled), LIMITS)
    assert "uid" not in finding.title


@pytest.mark.parametrize("looks", [0, 1])
def test_one_empty_reading_is_not_enough(looks: int) -> None:
    memory = remember({QUEUE_EMPTY_NAME: ("yes", 9999)}, changes=1, looks=looks)
    assert list(find_chain_exhausted(dry(memory=memory), LIMITS)) == []


def test_the_passes_that_must_see_it_are_a_setting() -> None:
    assert list(find_chain_exhausted(dry(), WatchThresholds(dry_passes=3))) == []


@pytest.mark.parametrize(
    "live",
    [
        Queue(arrays={13: (row(13, 1),)}),
        Queue(arrays={13: (row(13, 1, "COMPLETING"),)}),
        Queue(arrays={}, doubtful={13: "another comment"}),
        Queue(arrays={}, foreign=(row(99, 0),)),
    ],
)
def test_a_job_that_may_be_the_chains_keeps_it_alive(live: Queue) -> None:
    assert list(find_chain_exhausted(dry(queue=live), LIMITS)) == []


def test_a_queue_that_cannot_show_the_user_is_not_an_empty_one() -> None:
    hidden = Queue(arrays={}, sees_user=False)
    never = remember({QUEUE_EMPTY_NAME: ("yes", 60), task_zero_name(13): ("absent", 60)})
    assert list(find_chain_exhausted(dry(queue=hidden, memory=never), LIMITS)) == []
    accounted = {13: (account(13, 0),)}
    assert list(find_chain_exhausted(dry(queue=hidden, memory=never, accounting=accounted), LIMITS))
    before = remember({QUEUE_EMPTY_NAME: ("yes", 60), task_zero_name(13): ("absent", 60)}, changes=1)
    assert list(find_chain_exhausted(dry(queue=hidden, memory=before), LIMITS))


def test_a_lease_that_moves_contradicts_an_empty_queue() -> None:
    memory = remember({QUEUE_EMPTY_NAME: ("yes", 60), lease_name(13, 0): (9, 10)}, changes=1)
    assert list(find_chain_exhausted(dry(memory=memory), LIMITS)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        {"queue": blind()},
        {"verdict": blind()},
        {"hold": blind()},
        {"hold": hold()},
        {"verdict": verdict("completed")},
        {"verdict": verdict("cancelled")},
        {"generations": ()},
    ],
)
def test_a_chain_that_is_held_over_or_unseen_is_not_exhausted(overrides: dict[str, object]) -> None:
    assert list(find_chain_exhausted(dry(**overrides), LIMITS)) == []


def test_the_chains_own_verdict_of_exhausted_needs_no_second_pass() -> None:
    (finding,) = find_chain_exhausted(dry(memory=remember({}), verdict=verdict("exhausted")), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert "submit --resume" in finding.advice


def test_a_released_hold_does_not_hide_an_exhausted_chain() -> None:
    assert list(find_chain_exhausted(dry(hold=hold(released_at=ago_text(5), released_by="ann")), LIMITS))


def test_a_foreign_chain_runs_dry_as_well() -> None:
    accounting = {13: (account(13, 0, "TIMEOUT"),)}
    seen = dry(subject=foreign_subject(), generations=(generation(13),), accounting=accounting)
    (finding,) = find_chain_exhausted(seen, LIMITS)
    assert "ran out of depth" in finding.title


def test_a_verdict_of_exhausted_needs_no_queue() -> None:
    (finding,) = find_chain_exhausted(dry(queue=blind(), verdict=verdict("exhausted")), LIMITS)
    assert finding.severity is Severity.CRITICAL
    live = queue(*queued_rows(13))
    assert list(find_chain_exhausted(dry(queue=live, verdict=verdict("exhausted")), LIMITS)) == []


def test_a_generation_that_was_cancelled_before_it_started_is_said_to_be() -> None:
    gone = queue(*(row(13, task, "CANCELLED", nodelist="") for task in range(5)))
    seen = dry(queue=gone, generations=(ended_generation(11, "walltime"), generation(13)))
    (finding,) = find_chain_exhausted(seen, LIMITS)
    assert "generation 13 was cancelled before it started" in finding.title


@pytest.mark.parametrize(("uid", "told"), [(0, True), (1000, False)])
def test_a_cancel_as_uid_0_is_a_persons_where_the_chain_is_roots(uid: int, told: bool) -> None:
    accounting = {13: (account(13, 0, "CANCELLED", cancelled_by=0),)}
    seen = dry(subject=subject(uid=uid), generations=(generation(13, has_directory=True),), accounting=accounting)
    (finding,) = find_chain_exhausted(seen, LIMITS)
    assert ("was cancelled by uid 0" in finding.title) is told


def test_an_exhausted_chain_says_why_its_last_generation_ended_and_where_to_read_on() -> None:
    (finding,) = find_chain_exhausted(dry(), LIMITS)
    assert any("13 was closed as failed: the launcher exited with 1" in line for line in finding.details)
    assert any("nvrx-chain logs 13_0" in line for line in finding.details)


def test_a_foreign_chain_that_completed_may_be_finished() -> None:
    accounting = {13: (account(13, 0, "COMPLETED"),)}
    seen = dry(subject=foreign_subject(), generations=(generation(13),), accounting=accounting)
    (finding,) = find_chain_exhausted(seen, LIMITS)
    assert finding.severity is Severity.WARNING
    assert "not finished" not in finding.title


def test_completed_is_good_news() -> None:
    (finding,) = find_chain_completed(snapshot(verdict=verdict("completed")), LIMITS)
    assert finding.severity is Severity.INFO
    assert finding.key == "chain_completed:chain"
    assert "finished" in finding.title


@pytest.mark.parametrize("word", ["cancelled", "no_restart"])
def test_the_other_verdicts_stand_under_their_own_word(word: str) -> None:
    (finding,) = find_chain_completed(snapshot(verdict=verdict(word)), LIMITS)
    assert finding.severity is Severity.INFO
    assert finding.key == f"chain_completed:{word}"
    assert f"ended as {word}" in finding.title


@pytest.mark.parametrize("given", [None, blind(), verdict("exhausted")])
def test_no_verdict_no_news(given: object) -> None:
    assert list(find_chain_completed(snapshot(verdict=given), LIMITS)) == []


def test_what_a_verdict_says_cannot_steer_a_terminal() -> None:
    hostile = verdict("completed", why="done\x1b[2J\n" + "x" * 10_000)
    (finding,) = find_chain_completed(snapshot(verdict=hostile), LIMITS)
    assert finding.title.isprintable()
    assert len(finding.title) < 600


def last(ran: float, **overrides: object) -> Snapshot:
    values: dict[str, object] = {"queue": queue(*running_rows(11, started_at=ago(ran)))}
    return snapshot(**{**values, **overrides})


def test_a_chain_that_is_to_end_is_no_reason_to_extend_or_to_page() -> None:
    (finding,) = find_last_generation(last(3600, ending=ending()), LIMITS)
    assert (finding.severity, finding.action, finding.scope) == (Severity.INFO, None, "ending")
    assert "the chain ends with generation 11: the budget is spent (by ann on login1)" in finding.title
    assert list(find_chain_exhausted(dry(), LIMITS))
    assert list(find_chain_exhausted(dry(ending=ending()), LIMITS)) == []


def test_the_last_generation_is_information_while_there_is_time() -> None:
    (finding,) = find_last_generation(last(3600), LIMITS)
    assert finding.severity is Severity.INFO
    assert "nvrx-chain extend" in finding.advice
    assert finding.action is not None
    assert finding.action.kind is ActionKind.EXTEND


@pytest.mark.parametrize(("left", "severity"), [(7200, Severity.INFO), (7199, Severity.WARNING)])
def test_near_its_time_limit_the_last_generation_is_a_warning(left: float, severity: Severity) -> None:
    (finding,) = find_last_generation(last(86_400 - left), LIMITS)
    assert finding.severity is severity


def test_without_a_time_limit_it_stays_information() -> None:
    endless = subject(manifest=manifest(time_limit_seconds=None))
    (finding,) = find_last_generation(last(10**7, subject=endless), LIMITS)
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(("wanted", "fires"), [(1, False), (2, True), (3, True)])
def test_fewer_queued_generations_than_are_to_be_kept_ask_for_more(wanted: int, fires: bool) -> None:
    limits = msgspec.structs.replace(LIMITS, keep_queued=wanted)
    found = list(find_last_generation(last(60, queue=queue(*running_rows(11), *queued_rows(12))), limits))
    assert bool(found) is fires
    for finding in found:
        assert (finding.severity, finding.key) == (Severity.INFO, "last_generation_running:chain")
        assert finding.action is not None
        assert finding.action.kind is ActionKind.EXTEND
        assert f"{wanted} are wanted" in finding.title


def test_a_foreign_chain_is_not_extended_from_here() -> None:
    (finding,) = find_last_generation(last(60, subject=foreign_subject()), LIMITS)
    assert finding.action is None


@pytest.mark.parametrize(
    "overrides",
    [
        {"queue": queue(*running_rows(11), *queued_rows(12))},
        {"queue": queue(row(11, 0, "COMPLETING"))},
        {"queue": queue(*queued_rows(11))},
        {"queue": blind()},
        {"verdict": verdict("completed")},
        {"verdict": blind()},
    ],
)
def test_a_generation_with_a_successor_or_a_verdict_is_not_the_last(overrides: dict[str, object]) -> None:
    assert list(find_last_generation(last(60, **overrides), LIMITS)) == []


@pytest.mark.parametrize(("seconds", "severity"), [(3600, Severity.INFO), (3601, Severity.WARNING)])
def test_a_hold_says_who_and_why_and_reminds(seconds: float, severity: Severity) -> None:
    (finding,) = find_chain_held(snapshot(hold=hold(held_at=ago_text(seconds), by="ann on login1")), LIMITS)
    assert finding.severity is severity
    assert "ann on login1" in finding.title
    assert "2 generations in a row" in finding.title
    assert "nvrx-chain release --run-dir" in finding.advice


def test_a_hold_with_a_time_that_is_none_is_still_told() -> None:
    (finding,) = find_chain_held(snapshot(hold=hold(held_at="yesterday")), LIMITS)
    assert finding.severity is Severity.INFO


def test_a_queued_generation_that_slurm_does_not_hold_is_named() -> None:
    held = queued_rows(13, reason="JobHeldUser")
    seen = snapshot(hold=hold(), queue=queue(*running_rows(11), *queued_rows(12), *held))
    (finding,) = find_chain_held(seen, LIMITS)
    assert "12" in finding.details[0]
    assert "13" not in finding.details[0]


def test_a_hold_needs_no_queue() -> None:
    assert len(list(find_chain_held(snapshot(hold=hold(), queue=blind()), LIMITS))) == 1


@pytest.mark.parametrize(
    "overrides",
    [
        {"hold": hold(released_at=ago_text(1), released_by="ann")},
        {"hold": blind()},
        {"hold": hold(), "verdict": verdict("cancelled")},
        {"queue": blind()},
    ],
)
def test_a_hold_that_ended_is_quiet(overrides: dict[str, object]) -> None:
    assert list(find_chain_held(snapshot(**overrides), LIMITS)) == []


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "launch failed requeued held"])
def test_a_hold_that_only_slurm_knows_is_found(reason: str) -> None:
    seen = snapshot(queue=queue(*running_rows(11), *queued_rows(12, reason=reason)))
    (finding,) = find_chain_held(seen, LIMITS)
    assert finding.key == "chain_held:slurm"
    assert "scontrol release 12" in finding.advice
    assert ("administrator" in finding.advice) is (reason == "JobHeldAdmin")


@pytest.mark.parametrize(("seconds", "severity"), [(3600, Severity.INFO), (3601, Severity.WARNING)])
def test_a_hold_of_slurms_ages_by_this_watchers_memory(seconds: float, severity: Severity) -> None:
    seen = snapshot(
        queue=queue(*running_rows(11), *queued_rows(12, reason="JobHeldUser")),
        memory=remember({waiting_name(12): ("JobHeldUser", seconds)}),
    )
    (finding,) = find_chain_held(seen, LIMITS)
    assert finding.severity is severity


def test_the_name_of_the_chain_is_not_needed_to_find_its_end() -> None:
    assert list(find_chain_exhausted(dry(subject=subject(name=NAME + "-renamed")), LIMITS))
