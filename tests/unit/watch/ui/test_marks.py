from __future__ import annotations

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_watch.model import Snapshot
from nvrx_watch.ui.marks import ChainWord, MarkKind, chain_word, fold_tasks, mark_generation
from tests.unit.watch import build

BLIND = Unobserved("squeue did not answer")


@pytest.mark.parametrize(
    ("snapshot", "word"),
    [
        (build.snapshot(), ChainWord.RUNNING),
        (build.snapshot(verdict=build.verdict()), ChainWord.RUNNING),
        (build.snapshot(queue=build.queue(arrays={}), verdict=build.verdict()), ChainWord.ENDED),
        (build.snapshot(queue=build.queue(*build.queued_rows(12))), ChainWord.QUEUED),
        (build.snapshot(queue=build.queue(*build.queued_rows(12)), hold=build.hold()), ChainWord.HELD),
        (build.snapshot(queue=BLIND, hold=build.hold()), ChainWord.HELD),
        (build.snapshot(queue=BLIND), ChainWord.UNKNOWN),
        (build.snapshot(queue=build.queue(arrays={})), ChainWord.RAN_DRY),
        (build.snapshot(queue=build.queue(arrays={}, sees_user=False)), ChainWord.NOTHING_LISTED),
        (build.snapshot(queue=build.queue(arrays={}, doubtful={11: "another user's"})), ChainWord.UNKNOWN),
        (build.snapshot(queue=build.queue(arrays={}), generations=()), ChainWord.NOT_SUBMITTED),
    ],
)
def test_the_chain_is_said_in_a_word(snapshot: Snapshot, word: ChainWord) -> None:
    assert chain_word(snapshot) is word


def test_a_released_hold_holds_nothing() -> None:
    hold = build.hold(released_at=build.ago_text(5))
    assert chain_word(build.snapshot(queue=build.queue(*build.queued_rows(12)), hold=hold)) is ChainWord.QUEUED


@pytest.mark.parametrize(
    ("snapshot", "kind", "word"),
    [
        (build.snapshot(), MarkKind.RUNNING, "running"),
        (build.snapshot(queue=BLIND), MarkKind.UNKNOWN, "?"),
        (build.snapshot(queue=build.queue(arrays={}, doubtful={11: "stale"})), MarkKind.UNKNOWN, "?"),
        (build.snapshot(queue=BLIND, accounting={11: (build.account(11, 0, "TIMEOUT"),)}), MarkKind.ENDED, "TIMEOUT"),
        (build.snapshot(queue=build.queue(arrays={})), MarkKind.ENDED, "no word"),
        (build.snapshot(queue=build.queue(arrays={}, sees_user=False)), MarkKind.UNKNOWN, "?"),
        (
            build.snapshot(queue=build.queue(build.row(11, 0, "FAILED"), build.row(11, 3, "PENDING"))),
            MarkKind.LEFT_OVER,
            "over, 1 left",
        ),
        (build.snapshot(queue=build.queue(build.row(11, 0, "COMPLETING"))), MarkKind.RUNNING, "completing"),
        (build.snapshot(queue=build.queue(build.row(11, 0, "NEW_STATE"))), MarkKind.RUNNING, "running"),
    ],
)
def test_a_generation_that_has_begun_is_said_in_a_word(snapshot: Snapshot, kind: MarkKind, word: str) -> None:
    mark = mark_generation(snapshot, snapshot.generations[0])
    assert (mark.kind, mark.word) == (kind, word)


def test_a_closed_generation_with_tasks_in_the_queue_is_not_over() -> None:
    one = build.ended_generation(11, "failed")
    mark = mark_generation(build.snapshot(generations=(one,)), one)
    assert (mark.kind, mark.word) == (MarkKind.LEFT_OVER, "failed, 5 left")


def test_a_closed_generation_has_its_outcome_though_the_queue_was_not_seen() -> None:
    one = build.ended_generation(11, "walltime")
    mark = mark_generation(build.snapshot(generations=(one,), queue=BLIND), one)
    assert (mark.kind, mark.word) == (MarkKind.ENDED, "walltime")


def test_a_generation_that_never_began_and_is_not_listed_is_not_called_over() -> None:
    one = build.generation(12)
    assert mark_generation(build.snapshot(queue=build.queue(arrays={})), one).kind is MarkKind.UNKNOWN


def test_cycles_that_could_not_be_read_do_not_make_a_generation_begun() -> None:
    one = build.generation(12, cycles=Unobserved("hung"))
    assert mark_generation(build.snapshot(), one).kind is MarkKind.QUEUED


def test_tasks_fold_by_state_with_what_runs_first() -> None:
    rows = (build.row(11, 9, "FAILED"), *build.running_rows(11), build.row(11, None, "PENDING"))
    running, pending, failed = fold_tasks(rows)
    assert (running.state, running.indices, running.at_least) == ("RUNNING", "0-2", False)
    assert (pending.count, pending.indices, pending.at_least) == (3, "3-4", True)
    assert pending.reasons == ("JobArrayTaskLimit", "Priority")
    assert (failed.state, failed.indices) == ("FAILED", "9")


def test_a_state_that_is_not_listed_is_shown_as_slurm_wrote_it() -> None:
    assert fold_tasks((build.row(11, 0, "WARPING\x1b[2J"),))[0].state.startswith("WARPING")
    assert "\x1b" not in fold_tasks((build.row(11, 0, "WARPING\x1b[2J"),))[0].state
