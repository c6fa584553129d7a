"""docs/verified.md names tests that exist, and as rendered only exactly what `submit` says so of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvrx_chain.submit.rendered_only import RENDERED_ONLY

ROOT = Path(__file__).parents[2]
WAYS = frozenset({"run", "replayed", "rendered only"})
OPTIONS_OF_THE_SITE = "`--mail-type`, `--reservation`"
"""Handed to sbatch as they are: nothing of ours can go wrong behind them, so a submit is not lengthened by a line."""


def read_rows() -> list[tuple[str, str, str]]:
    lines = (ROOT / "docs" / "verified.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [(path, how, by) for path, how, by in cells if path != "Path" and not set(path) <= {"-"}]


ROWS = read_rows()


@pytest.mark.parametrize(("path", "how", "by"), ROWS)
def test_a_path_was_verified_in_one_of_three_ways_by_a_test_that_exists(path: str, how: str, by: str) -> None:
    assert how in WAYS
    named = re.findall(r"`((?:unit|integration)/[^`]+\.py)`", by)
    assert all((ROOT / "tests" / name).exists() for name in named), f"{path}: {named}"
    assert named or "make compat" in by or by == "every integration test"
    if how == "run":
        assert not any(name.startswith("unit/") for name in named), f"{path}: a unit test runs nothing real"


def test_what_is_rendered_only_is_what_submit_says_so_of() -> None:
    rendered = {path for path, how, _ in ROWS if how == "rendered only"} - {OPTIONS_OF_THE_SITE}
    assert rendered == {path.name for path in RENDERED_ONLY}
