"""What a user types about hangs."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.hang_limits import HangLimits, hang_limits


def test_nothing_typed_is_no_rule() -> None:
    assert hang_limits() == HangLimits()
    assert hang_limits().is_off
    assert hang_limits(heartbeat="off", sections="", startup="None").is_off


def test_the_spelling_of_ft_launcher_is_understood() -> None:
    limits = hang_limits(sections="setup:600, step:180 ,check pointing:4.5", heartbeat="30", initial_heartbeat=1e3)
    assert limits.section_seconds == {"setup": 600.0, "step": 180.0, "check pointing": 4.5}
    assert (limits.heartbeat_seconds, limits.initial_heartbeat_seconds) == (30.0, 1000.0)
    assert not limits.is_off


def test_a_section_warmup_is_the_warm_up_of_step_as_in_ft_launcher() -> None:
    limits = hang_limits(sections="step:180,warmup:900", warmup="checkpointing:60", warmup_iterations=3)
    assert limits.section_seconds == {"step": 180.0}
    assert limits.warmup_seconds == {"step": 900.0, "checkpointing": 60.0}
    assert [limits.section_limit("step", run) for run in (0, 2, 3)] == [900.0, 900.0, 180.0]
    assert [limits.section_limit("checkpointing", run) for run in (2, 3)] == [60.0, None]


def test_a_section_may_be_switched_off_by_name() -> None:
    assert hang_limits(sections="step:off,save:3").section_seconds == {"save": 3.0}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"sections": "step"}, "'step'"),
        ({"sections": "step:3,,save:4"}, "not ''"),
        ({"sections": ":3"}, "':3'"),
        ({"sections": "step:soon"}, "section step must be a number of seconds or off, not 'soon'"),
        ({"sections": "step:0"}, "section step must be above 0"),
        ({"sections": "step:1,step:2"}, "step is given twice"),
        ({"sections": "a\x1bb:1"}, "no name of a section"),
        ({"sections": "x" * 101 + ":1"}, "no name of a section"),
        ({"sections": "warmup:1", "warmup": "step:2"}, "given twice"),
        ({"warmup": "step=2"}, "warm-up"),
        ({"heartbeat": "-1"}, "heartbeat time-out must be above 0, not -1"),
        ({"heartbeat": "nan"}, "above 0"),
        ({"startup": "inf"}, "above 0"),
        ({"initial_heartbeat": "1m"}, "'1m'"),
        ({"out_of_section": 0.0}, "above 0"),
        ({"warmup_iterations": -1}, "0 or more"),
        ({"safety_factor": 0.5}, "1 or more"),
        ({"safety_factor": float("nan")}, "1 or more"),
    ],
)
def test_a_mistake_is_one_clear_line(typed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hang_limits(**typed)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_every_mistake_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        hang_limits(sections="step,save:x", heartbeat="-1", safety_factor=0)
    assert len(str(caught.value).splitlines()) == 4
