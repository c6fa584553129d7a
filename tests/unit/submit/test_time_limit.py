"""Time limits are read as sbatch reads them, and the warning fits into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.submit.time_limit import TimeLimit, fit_walltime_warning, parse_time_limit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 60),
        ("90", 5400),
        ("90:30", 5430),
        ("04:00:00", 14400),
        ("2-0", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("7-00:00:00", 604800),
    ],
)
def test_every_form_of_sbatch_is_read(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == TimeLimit(text=text, seconds=seconds)


@pytest.mark.parametrize("text", ["0", "UNLIMITED", "infinite", "-1", "0:00", "0-0"])
def test_no_limit_is_a_limit_of_its_own(text: str) -> None:
    assert parse_time_limit(text).seconds is None


@pytest.mark.parametrize("text", ["", "4h", "1:2:3:4", "1-", "-5", "1 2", "٣", "1-2-3", "1:234", "now"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no time limit"):
        parse_time_limit(text)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_days_and_hours_say_the_same_as_hours_alone(days: int, hours: int, minutes: int, seconds: int) -> None:
    with_days = parse_time_limit(f"{days}-{hours}:{minutes}:{seconds}")
    without = parse_time_limit(f"{days * 24 + hours}:{minutes}:{seconds}")
    assert with_days.seconds == without.seconds


@pytest.mark.parametrize(
    ("limit_seconds", "warning"), [(None, 180), (3600, 180), (360, 180), (359, 89), (60, 15), (2, 1)]
)
def test_a_limit_shorter_than_two_warnings_leaves_a_quarter_for_the_warning(
    limit_seconds: int | None, warning: int
) -> None:
    limit = TimeLimit(text="x", seconds=limit_seconds)
    assert fit_walltime_warning(180.0, limit) == warning


def test_without_a_limit_the_warning_stays_because_a_partition_may_have_one() -> None:
    assert fit_walltime_warning(180.0, None) == 180
