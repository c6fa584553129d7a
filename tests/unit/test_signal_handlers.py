"""No signal handler takes a lock: the code that it interrupted may hold it, and goes on only after the handler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAKE_LOCKS = frozenset(
    {"set", "stop", "notify", "notify_all", "acquire", "debug", "info", "warning", "error", "exception", "echo"}
)
"""Of events, conditions, locks, loggers and terminals. A SimpleQueue's put and a Bell's ring may be called anywhere."""


def handlers(tree: ast.Module) -> Iterator[ast.AST]:
    """What a module hands to `signal.signal`: lambdas, and its own functions and methods by name."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "signal.signal":
            handler = node.args[1]
            name = handler.attr if isinstance(handler, ast.Attribute) else getattr(handler, "id", "")
            yield functions.get(name, handler)


def modules() -> list[Path]:
    found = [path for package in ("nvrx_chain", "nvrx_watch") for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in found if "signal.signal(" in path.read_text())


def test_there_are_handlers_to_look_at() -> None:
    assert {"signals.py", "wrapper.py", "command.py"} <= {path.name for path in modules()}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_handler_calls_nothing_that_takes_a_lock(path: Path) -> None:
    for handler in handlers(ast.parse(path.read_text())):
        called = {
            node.func.attr
            for node in ast.walk(handler)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & TAKE_LOCKS, f"line {getattr(handler, 'lineno', '?')}: ring a bell instead (nvrx_chain.bell)"
