"""Faults as text, when they are due, and that one fires once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.faults import Fault, FaultKind, FaultPlan, parse_fault

LIFE: dict[str, str | int | None] = {"host": "node-1", "pid": 1}


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(FaultKind))
    by_iteration = draw(st.booleans())
    return Fault(
        rank=draw(st.integers(0, 10**6)),
        kind=kind,
        iteration=draw(st.integers(1, 10**9)) if by_iteration else None,
        delay_seconds=None if by_iteration else draw(st.floats(0, 1e9)),
        exit_code=draw(st.integers(0, 255)) if kind is FaultKind.EXIT else None,
        repeats=draw(st.booleans()),
    )


def render(fault: Fault) -> str:
    when = f"iteration={fault.iteration}" if fault.iteration is not None else f"delay={fault.delay_seconds!r}"
    kind = f"exit:{fault.exit_code}" if fault.kind is FaultKind.EXIT else fault.kind.value
    return f"rank={fault.rank},{when},kind={kind},repeat={'always' if fault.repeats else 'once'}"


@given(faults())
def test_every_fault_is_read_back_from_its_text(fault: Fault) -> None:
    assert parse_fault(render(fault)) == fault


@given(faults())
def test_a_fault_id_is_a_plain_file_name(fault: Fault) -> None:
    assert "/" not in fault.fault_id
    assert not set(fault.fault_id) - set("abcdefghijklmnopqrstuvwxyz0123456789.+-_")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is none of"),
        ("rank=1,iteration=20", "kind is missing"),
        ("iteration=20,kind=hang", "rank is missing"),
        ("rank=1,kind=hang", "exactly one of iteration and delay"),
        ("rank=1,iteration=2,delay=3,kind=hang", "exactly one of iteration and delay"),
        ("rank=1,rank=2,iteration=2,kind=hang", "rank is there twice"),
        ("rank=-1,iteration=2,kind=hang", "rank=-1 is not a whole number of 0 or more"),
        ("rank=1,iteration=0,kind=hang", "iteration=0 is not a whole number of 1 or more"),
        ("rank=1,iteration=٣,kind=hang", "is not a whole number"),
        ("rank=1,delay=nan,kind=hang", "delay=nan is not a number of seconds"),
        ("rank=1,delay=-1,kind=hang", "delay=-1 is not a number of seconds"),
        ("rank=1,delay=inf,kind=hang", "delay=inf is not a number of seconds"),
        ("rank=1,iteration=2,kind=explode", "kind=explode is none of exception, sigkill, hang, exit"),
        ("rank=1,iteration=2,kind=exit", "no exit code from 0 to 255"),
        ("rank=1,iteration=2,kind=exit:256", "no exit code from 0 to 255"),
        ("rank=1,iteration=2,kind=hang:3", "kind=hang takes no code"),
        ("rank=1,iteration=2,kind=hang,repeat=twice", "neither once nor always"),
        ("rank=1,iteration=2,kind=hang,when=now", "'when=now' is none of"),
    ],
)
def test_a_bad_fault_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fault(text)
    assert complaint in caught.value.message
    assert caught.value.hint is not None
    assert "kind=exception|sigkill|hang|exit:CODE" in caught.value.hint


def plan(directory: Path, *texts: str, rank: int = 1) -> FaultPlan:
    return FaultPlan([parse_fault(text) for text in texts], rank, directory / "faults")


def test_a_fault_is_due_at_its_iteration_on_its_rank_and_given_once(tmp_path: Path) -> None:
    text = "rank=1,iteration=20,kind=hang"
    assert plan(tmp_path, text, rank=0).take_due(20, 0) is None
    mine = plan(tmp_path, text)
    assert mine.take_due(19, 1e9) is None
    assert mine.take_due(20, 0) == parse_fault(text)
    assert mine.take_due(20, 0) is None


def test_a_delayed_fault_is_due_from_its_second_on(tmp_path: Path) -> None:
    mine = plan(tmp_path, "rank=1,delay=2.5,kind=hang", "rank=1,delay=9,kind=sigkill", "rank=1,iteration=7,kind=hang")
    assert mine.seconds_to_next_delay(1.0) == 1.5
    assert mine.take_due(1, 2.4) is None
    due = mine.take_due(1, 2.5)
    assert due is not None
    assert due.delay_seconds == 2.5
    assert mine.seconds_to_next_delay(10.0) == 0
    assert mine.take_due(1, 10.0) is not None
    assert mine.seconds_to_next_delay(10.0) is None


def test_only_the_first_life_may_fire_a_fault(tmp_path: Path) -> None:
    text = "rank=1,iteration=20,kind=exit:93"
    fault = parse_fault(text)
    assert plan(tmp_path, text).claim(fault, LIFE)
    assert not plan(tmp_path, text).claim(fault, LIFE)
    (marker,) = (tmp_path / "faults").iterdir()
    assert marker.name == "rank1-iteration20-exit93.fired"
    assert '"host": "node-1"' in marker.read_text()


def test_every_life_may_fire_a_repeating_fault(tmp_path: Path) -> None:
    text = "rank=1,iteration=20,kind=hang,repeat=always"
    assert plan(tmp_path, text).claim(parse_fault(text), LIFE)
    assert plan(tmp_path, text).claim(parse_fault(text), LIFE)
