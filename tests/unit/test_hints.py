"""Every error that submit, workloads or sandbox raise says how to mend what it is about. Read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain import errors

PACKAGE = Path(__file__).parents[2] / "nvrx_chain"
ROOMS = ("submit", "workloads", "sandbox")
ERRORS = frozenset(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
)
GIVEN_BY_THE_CALLER = {("workloads/checkpoint.py", "_read")}
"""Its one caller adds which checkpoints are intact."""


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


def calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Each call with the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield function, node
        yield from calls(node, node.name if isinstance(node, ast.FunctionDef) else function)


def without_a_hint(path: Path) -> list[str]:
    name = path.relative_to(PACKAGE).as_posix()
    return [
        f"{name}:{call.lineno} {ast.unparse(call)}"
        for function, call in calls(ast.parse(path.read_text()))
        if isinstance(call.func, ast.Name) and call.func.id in ERRORS and (name, function) not in GIVEN_BY_THE_CALLER
        if not any(keyword.arg == "hint" for keyword in call.keywords)
    ]


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_an_error_says_how_to_mend_it(path: Path) -> None:
    assert without_a_hint(path) == []


def test_an_error_without_a_hint_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    source = tmp_path / "one.py"
    source.write_text('def f():\n    raise UsageError("no", part="x")\n')
    assert without_a_hint(source) == ["one.py:2 UsageError('no', part='x')"]
