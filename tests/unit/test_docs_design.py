"""The table of modules in docs/design.md is what the modules say of themselves. NVRX_UPDATE_DESIGN=1 writes it anew."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design.md"
HEADING = "## Modules\n"
TABLE = "| Module | Role | Touches |\n|---|---|---|\n"


def row(path: Path) -> str:
    """Role: the first sentence of the docstring. Touches: the sentence that says so, `-` when there is none."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    role = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0].rstrip(".")
    touches = re.search(r"Touches:? (.*?)\.(?= [A-Z`]|$)", text)
    what = touches.group(1) if touches else "-"
    return f"| `{path.relative_to(ROOT)}` | {escaped(role)} | {escaped(what)} |\n"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def modules() -> list[Path]:
    found = [path for package in ("nvrx_chain", "nvrx_watch") for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if path.name != "__init__.py"]


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_the_table_of_modules_is_what_the_modules_say() -> None:
    text = DESIGN.read_text()
    expected = TABLE + "".join(row(path) for path in modules())
    before, heading, _ = text.partition(HEADING)
    assert heading, "docs/design.md has no section Modules"
    if os.environ.get("NVRX_UPDATE_DESIGN"):
        DESIGN.write_text(f"{before}{HEADING}\n{expected}")
    assert DESIGN.read_text() == f"{before}{HEADING}\n{expected}"
