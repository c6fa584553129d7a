from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import render_age
from nvrx_watch.ui.words import encodable, escape, render_rate, seconds_since
from tests.unit.watch.build import NOW


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3900, "1h05m"), (187_200, "2d04h"), (math.nan, "?")],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert render_age(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(2.134, "2.13/s"), (0.04, "25 s each"), (0.0, "0/s"), (math.inf, "?"), (-1.0, "?")]
)
def test_a_slow_rate_is_told_in_seconds_per_iteration(rate: float, text: str) -> None:
    assert render_rate(rate) == text


@pytest.mark.parametrize("bad", ["\x1b[31m", "a\nb", "\u202egnp", "\u200b", "\x9b2J", "\ud800", "\u2028", "x\ufe0f"])
def test_nothing_that_steers_a_terminal_survives(bad: str) -> None:
    assert not set(escape(bad)) & set("\x1b\n\u202e\u200b\x9b\ud800\u2028\ufe0f")


@given(st.text())
def test_escaped_text_is_one_printable_line_of_bounded_length(text: str) -> None:
    shown = escape(text, 50)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    assert len(shown) <= 50 * 6


@given(st.text(st.characters(codec=None)))
def test_encodable_text_can_be_encoded(text: str) -> None:
    assert encodable(text).encode("utf-8").decode("utf-8") == encodable(text)


def test_a_time_in_the_future_is_just_now() -> None:
    assert seconds_since(NOW + timedelta(seconds=50), NOW) == 0
