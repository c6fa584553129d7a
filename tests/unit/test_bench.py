"""The page of benchmarks: every row of the table of limits, measured or not, and nothing hidden."""

from __future__ import annotations

import re

from tests.bench import LAUNCHERS, render_table
from tests.benchpage import LIMITS as LIMITS_HEADING
from tests.benchpage import SOAK, WATCHER, with_section
from tests.integration.measure import LIMITS, Figure


def _rows(figures: list[Figure]) -> list[list[str]]:
    page = render_table(figures, date="2031-02-03", commit="abc1234", machine="Machine: two cores.")
    table = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1:]]


def _figure(launcher: str, seconds: float, **more: object) -> Figure:
    test = "tests/integration/test_limits_x.py::test_a[one]"
    return Figure(key=LIMITS[0].key, launcher=launcher, seconds=seconds, test=test, **more)  # type: ignore[arg-type]


def test_a_row_that_was_not_measured_says_so() -> None:
    rows = _rows([])
    assert len(rows) == len(LIMITS)
    assert all(row[2] == "not measured" for row in rows)
    assert all(row[5:] == ["", "", ""] for row in rows)


def test_each_launcher_has_its_own_figures_and_the_command_repeats_the_row_for_all() -> None:
    row = _rows([_figure("ft_launcher", 9.5, detail="7.5 s its own end"), _figure("torchrun", 3.7)])[0]
    assert row[2:] == [
        "9.5 s (7.5 s its own end)",
        "3.7 s",
        LIMITS[0].reference,
        "2031-02-03",
        "abc1234",
        "`.venv/bin/pytest tests/integration/test_limits_x.py::test_a`",
    ]


def test_a_figure_over_its_limit_is_marked() -> None:
    row = _rows([_figure("ft_launcher", 15.1, limit_seconds=15.0), _figure("torchrun", 15.0, limit_seconds=15.0)])[0]
    assert row[2:4] == ["15.1 s **over**", "15.0 s"]


def test_a_row_that_torchrun_cannot_meet_says_why() -> None:
    noted = [(limit, row) for limit, row in zip(LIMITS, _rows([]), strict=True) if limit.torchrun_note]
    assert noted
    assert all(limit.torchrun_note == row[2 + LAUNCHERS.index("torchrun")] for limit, row in noted)


def test_a_section_takes_the_place_of_its_older_self_and_leaves_the_others() -> None:
    page = with_section("", SOAK, "third body\n")
    page = with_section(page, LIMITS_HEADING, "former body\n\n| row |\n")
    page = with_section(page, WATCHER, "second body")
    page = with_section(page, LIMITS_HEADING, "first body")
    assert re.findall(r"\w+ body", page) == ["first body", "second body", "third body"]
    assert with_section(page, LIMITS_HEADING, "first body") == page
