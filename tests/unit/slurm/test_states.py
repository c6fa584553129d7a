from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.states import JobState, NodeState, parse_job_state, parse_node_state

TERMINAL = {
    JobState.BOOT_FAIL,
    JobState.CANCELLED,
    JobState.COMPLETED,
    JobState.DEADLINE,
    JobState.FAILED,
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.PREEMPTED,
    JobState.TIMEOUT,
}
WAITING = {
    JobState.PENDING,
    JobState.REQUEUED,
    JobState.REQUEUE_FED,
    JobState.REQUEUE_HOLD,
    JobState.RESV_DEL_HOLD,
    JobState.SPECIAL_EXIT,
}


@pytest.mark.parametrize("state", JobState)
def test_the_terminal_and_the_waiting_states_are_closed_lists(state: JobState) -> None:
    assert state.is_terminal == (state in TERMINAL)
    assert state.is_pending == (state in WAITING)


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING])
def test_a_task_that_is_going_or_stopped_is_alive(state: JobState) -> None:
    assert not state.is_terminal


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.UNKNOWN])
def test_every_listed_word_is_read_in_any_case(state: JobState) -> None:
    assert parse_job_state(state.value).state is state
    assert parse_job_state(f" {state.value.lower()} ").state is state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("NF", JobState.NODE_FAIL),
        ("CG", JobState.COMPLETING),
        ("R", JobState.RUNNING),
        ("PD", JobState.PENDING),
        ("CA", JobState.CANCELLED),
        ("OOM", JobState.OUT_OF_MEMORY),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("OUT_OF_ME", JobState.OUT_OF_MEMORY),
        ("CANCELLED+", JobState.CANCELLED),
        ("CANCELLED by 1000", JobState.CANCELLED),
    ],
)
def test_codes_cut_words_and_tails_are_read(text: str, state: JobState) -> None:
    assert parse_job_state(text).state is state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "XYZ",
        "COMPLET+",
        "COMP",
        "RE",
        "D",
        "COMPLETED,COMPLETING",
        "COMPLETED_AND_MORE",
        "FAILED2",
        "+",
        "by 3",
    ],
)
def test_a_word_that_is_not_understood_is_alive(text: str) -> None:
    parsed = parse_job_state(text)
    assert parsed.state is JobState.UNKNOWN
    assert not parsed.state.is_terminal
    assert parsed.raw == text.strip()


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        ("CANCELLED by 1001", 1001),
        ("CANCELLED by 0", 0),
        ("CANCELLED", None),
        ("CANCELLED+", None),
        ("FAILED by 3", None),
    ],
)
def test_who_cancelled_is_kept(text: str, uid: int | None) -> None:
    assert parse_job_state(text).cancelled_by == uid


@given(st.text())
def test_no_text_breaks_the_parsers_of_states(text: str) -> None:
    parsed = parse_job_state(text)
    assert parsed.raw == text.strip()
    state, responding = parse_node_state(text)
    assert isinstance(state, NodeState)
    assert responding or "*" in text or "NOT_RESPONDING" in text.upper()


@pytest.mark.parametrize(
    ("text", "state", "responding"),
    [
        ("allocated", NodeState.ALLOCATED, True),
        ("allocated*", NodeState.ALLOCATED, False),
        ("alloc*", NodeState.ALLOCATED, False),
        ("mixed*", NodeState.MIXED, False),
        ("down*", NodeState.DOWN, False),
        ("down", NodeState.DOWN, True),
        ("completing*", NodeState.COMPLETING, False),
        ("idle~", NodeState.IDLE, True),
        ("idle#", NodeState.IDLE, True),
        ("idle!", NodeState.IDLE, True),
        ("idle%", NodeState.IDLE, True),
        ("drained$", NodeState.DRAINED, True),
        ("mixed@", NodeState.MIXED, True),
        ("down^", NodeState.DOWN, True),
        ("mixed-", NodeState.MIXED, True),
        ("drng", NodeState.DRAINING, True),
        ("DOWN*+DRAIN", NodeState.DOWN, False),
        ("DOWN+NOT_RESPONDING", NodeState.DOWN, False),
        ("IDLE+DRAIN", NodeState.IDLE, True),
        ("unk*", NodeState.UNKNOWN, False),
        ("teleporting", NodeState.UNKNOWN, True),
        ("", NodeState.UNKNOWN, True),
    ],
)
def test_a_node_state_is_read_with_its_suffix(text: str, state: NodeState, responding: bool) -> None:
    assert parse_node_state(text) == (state, responding)


@pytest.mark.parametrize("state", NodeState)
def test_only_down_is_down(state: NodeState) -> None:
    assert state.is_down == (state is NodeState.DOWN)


@pytest.mark.parametrize(
    ("text", "asked_for"),
    [
        (word, True)
        for word in ("drained", "draining", "drain", "drng", "drained*", "draining@", "drained$", "fail", "failg")
    ]
    + [
        (word, False)
        for word in ("down", "down*", "allocated*", "idle", "mixed", "maint", "reboot", "inval", "", "new")
    ],
)
def test_a_node_that_somebody_wants_back_is_drained_and_one_that_is_only_broken_is_not(
    text: str, asked_for: bool
) -> None:
    state, _responding = parse_node_state(text)
    assert state.is_drained is asked_for


@pytest.mark.parametrize("state", list(NodeState))
def test_what_is_down_drained_or_broken_is_out_of_service_and_what_slurm_powers_up_is_not(state: NodeState) -> None:
    broken = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVAL"}
    assert state.is_out_of_service is (state.value in broken)
