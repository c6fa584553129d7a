"""A statement counts while it is renewed under the reader's eyes, and for no longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.generation.votes import VoteWatch, lasting_seconds, renew_seconds
from nvrx_chain.records.control import Silence

LASTING = 30.0


def said(silent: bool = True, at: int = 0) -> Silence:
    return Silence(
        array_job_id=1,
        array_task_id=1,
        restart_count=0,
        host="n1",
        boot_id="b",
        pid=1,
        pid_started_at=1,
        silent=silent,
        seconds=21.0,
        written_at=str(at),
    )


def look(watch: VoteWatch, now: float, **records: Silence | None) -> tuple[int, ...]:
    found = {int(name[1:]): record for name, record in records.items()}
    watch.note(found, now)
    for task, record in found.items():
        watch.observe(task, record, now)
    return watch.silent(now)


def test_what_was_there_at_the_first_look_counts_once_it_changes() -> None:
    watch = VoteWatch(LASTING)
    assert look(watch, 0, t1=said()) == ()
    assert look(watch, 10, t1=said()) == ()
    assert look(watch, 12, t1=said(at=1)) == (1,)


def test_what_comes_under_our_eyes_counts_at_once_and_until_it_is_not_renewed() -> None:
    watch = VoteWatch(LASTING)
    assert look(watch, 0) == ()
    assert look(watch, 1, t1=said()) == (1,)
    assert look(watch, 31, t1=said()) == (1,)
    assert look(watch, 31.1, t1=said()) == ()
    assert look(watch, 33, t1=said(at=1)) == (1,)
    assert look(watch, 35, t1=said(silent=False, at=2)) == ()


def test_a_file_that_cannot_be_read_has_no_vote_and_changes_none() -> None:
    watch = VoteWatch(LASTING)
    look(watch, 0, t1=None)
    # It may have been there for hours.
    assert look(watch, 1, t1=said()) == ()
    assert look(watch, 2, t1=said(at=1)) == (1,)
    assert look(watch, 3, t1=None) == (1,)
    watch.observe(7, said(), 3)
    assert watch.silent(3) == (1,)


@pytest.mark.parametrize("pause", ["forget", "a gap"])
def test_who_did_not_look_for_a_while_begins_anew(pause: str) -> None:
    watch = VoteWatch(LASTING)
    look(watch, 0)
    assert look(watch, 1, t1=said()) == (1,)
    if pause == "forget":
        watch.forget()
    assert look(watch, 32 if pause == "a gap" else 2, t1=said(at=1)) == ()


def test_big_arrays_renew_more_slowly_and_their_votes_last_longer() -> None:
    assert [renew_seconds(total) for total in (2, 200, 500, 2000)] == [10, 10, 25, 100]
    assert [lasting_seconds(total) for total in (2, 200, 500)] == [30, 30, 75]
    assert all(total / renew_seconds(total) <= 20 for total in range(1, 3000))


@given(st.lists(st.tuples(st.floats(0.1, 40), st.booleans(), st.booleans(), st.booleans()), max_size=40))
def test_a_dead_peer_has_no_vote_after_a_while(steps: list[tuple[float, bool, bool, bool]]) -> None:
    watch, now, written_at, version, silent = VoteWatch(LASTING), 0.0, 0.0, 0, False
    for pause, writes, value, readable in steps:
        now += pause
        if writes:
            written_at, version, silent = now, version + 1, value
        records = {"t1": said(silent, version) if readable else None} if version else {}
        if look(watch, now, **records):
            assert version > 0
            assert now - written_at <= 2 * LASTING
