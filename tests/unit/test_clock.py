"""Durations and instants as people and records read them."""

from __future__ import annotations

import pytest

from nvrx_chain.clock import render_age


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h00m"),
        (3660, "1h01m"),
        (7500, "2h05m"),
        (90000, "1d01h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert render_age(seconds) == text


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf")])
def test_a_duration_that_is_no_number_is_a_question_mark(seconds: float) -> None:
    assert render_age(seconds) == "?"
