from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.parse.values import (
    parse_duration,
    parse_exit,
    parse_number,
    parse_seconds,
    parse_slurm_time,
    parse_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:25:00", 1500),
        ("365-00:00:00", 31_536_000),
        ("1-02:03:04", 93_784),
        ("05:06", 306),
        ("UNLIMITED", None),
        ("infinite", None),
        ("Partition_Limit", None),
        ("NONE", None),
        ("25", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["Unknown", "None", "N/A", "", "2026-13-01T00:00:00", "2026-11-30", "1764464217", "now"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert parse_slurm_time(text) is None


def test_a_time_is_utc() -> None:
    assert parse_slurm_time("2026-11-30T00:56:54") == datetime(2026, 11, 30, 0, 56, 54, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("93:0", (93, 0)),
        ("0:9", (0, 9)),
        ("0:125", (0, 125)),
        ("", (None, None)),
        ("0", (None, None)),
        (":", (None, None)),
    ],
)
def test_an_empty_exit_code_is_none_and_not_zero(text: str, codes: tuple[int | None, int | None]) -> None:
    assert parse_exit(text) == codes


@pytest.mark.parametrize(
    ("text", "seconds"), [("5 sec", 5), ("300 sec", 300), ("30", 30), ("UNLIMITED", None), ("5 min", None)]
)
def test_seconds_of_the_configuration(text: str, seconds: int | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["(null)", "None assigned", "N/A", " ", ""])
def test_words_for_nothing_are_empty(text: str) -> None:
    assert parse_text(text) == ""


@given(st.text(max_size=40) | st.from_regex(r"[0-9٣:T -]{1,40}"))
def test_no_text_breaks_a_parser(text: str) -> None:
    parse_duration(text)
    parse_slurm_time(text)
    parse_exit(text)
    parse_seconds(text)
    number = parse_number(text)
    assert number is None or number >= 0
