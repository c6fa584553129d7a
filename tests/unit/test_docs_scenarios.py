"""Every scenario that the docs name has a test, and every one that ran is in docs/verification.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows(name: str) -> list[list[str]]:
    lines = (ROOT / "docs" / name).read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if row and not set(row[0]) <= {"-", " "} and row[0] != "Scenario"]


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


SCENARIOS = [(row[0], f"tests/integration/{row[1].strip('`')}") for row in rows("scenarios.md")]


@pytest.mark.parametrize(("scenario", "test"), SCENARIOS)
def test_a_scenario_in_the_docs_has_a_test(scenario: str, test: str) -> None:
    file, _, function = test.partition("::")
    path = ROOT / file
    assert path.exists(), f"{scenario}: {file} does not exist"
    assert function.partition("[")[0] in functions_of(path), f"{scenario}: there is no {function}"


@pytest.mark.parametrize(("scenario", "test"), SCENARIOS)
def test_a_scenario_in_the_docs_has_a_row_in_the_verification(scenario: str, test: str) -> None:
    verified = [row[0] for row in rows("verification.md")]
    assert any(name == test or name.startswith(f"{test}[") for name in verified), f"{scenario}: {test} has no row"
