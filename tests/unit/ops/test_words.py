"""Durations for people, and text that cannot steer a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.ops.words import render_safely, render_time


def test_a_time_is_shown_to_the_second_and_other_text_as_it_is() -> None:
    assert render_time("2026-01-01T01:02:03.456789+01:00") == "2026-01-01T00:02:03Z"
    assert render_time("2026-01-01T00:02:03Z") == "2026-01-01T00:02:03Z"
    assert render_time("yesterday") == "yesterday"


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    safe = render_safely(text)
    assert not any(character in safe for character in "\x1b\x07\x9b\r\n\x00\u202e")


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "Zs")) | st.just("\t")))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert render_safely(text) == text


def test_colours_may_stay_and_nothing_else_of_escapes() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 \x1b[2J"
    assert render_safely(text, keep_colours=True) == "\x1b[1;31mred\x1b[0m \\x1b]0;title\\x07 \\x1b[2J"
    assert render_safely(text) == "\\x1b[1;31mred\\x1b[0m \\x1b]0;title\\x07 \\x1b[2J"
