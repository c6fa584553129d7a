"""Whoever reads an error of an operator's command at night is told how to go on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nvrx_chain import errors

PACKAGE = Path(errors.__file__).parent
SOURCES = [path for room in ("ops", "commands") for path in sorted((PACKAGE / room).glob("*.py"))]
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.NvrxError)}


def raised(path: Path) -> list[ast.Call]:
    """Every NvrxError that a module makes."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in KINDS]


def test_there_are_errors_to_look_at() -> None:
    assert sum(len(raised(path)) for path in SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_error_of_an_operators_command_has_a_hint(path: Path) -> None:
    mute = [f"{path.name}:{call.lineno}" for call in raised(path) if "hint" not in {one.arg for one in call.keywords}]
    assert mute == []
