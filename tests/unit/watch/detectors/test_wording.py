"""How detectors put things."""

from __future__ import annotations

import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.detectors import wording
from tests.unit.watch.build import foreign_subject, row, subject


@given(st.text(), st.integers(min_value=3, max_value=300))
def test_a_text_of_others_is_one_printable_line_of_bounded_length(text: str, longest: int) -> None:
    shown = wording.safe(text, longest)
    assert len(shown) <= longest
    assert "\n" not in shown
    assert "\x1b" not in shown
    shown.encode()


def test_a_long_list_says_how_much_is_missing() -> None:
    assert wording.listed(range(3), most=2) == "0, 1 and 1 more"
    assert wording.listed([]) == ""
    assert wording.count(1, "task") == "1 task"
    assert wording.count(2, "task") == "2 tasks"


def test_a_cancel_command_names_the_tasks_and_no_array() -> None:
    assert wording.cancel_command((row(11, 4, "PENDING"), row(11, 3, "PENDING"))) == "scancel 11_3 11_4"
    assert wording.cancel_command((row(11, 3), row(11, 3, "PENDING"))) == "scancel 11_3"
    assert wording.cancel_command((row(11, None, "PENDING"),)) == ""
    many = tuple(row(11, task) for task in (*range(2, 12), 20))
    assert wording.cancel_command(many) == "scancel '11_[2-11,20]'"


def test_a_command_about_the_chain_survives_a_nasty_directory() -> None:
    nasty = subject(run_directory=Path('/s/it\'s a & # 100% "run"'))
    command = wording.chain_command(nasty, "hold")
    assert shlex.split(command) == ["nvrx-chain", "hold", "--run-dir", '/s/it\'s a & # 100% "run"']


def test_a_chain_that_is_not_ours_has_no_command() -> None:
    assert wording.chain_command(foreign_subject(), "hold") == ""
    assert wording.resume_command(foreign_subject()) == "submit the batch script again"
