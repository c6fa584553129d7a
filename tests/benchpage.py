"""docs/benchmarks.md in sections, each written by one command and kept by the others. Touches: that file."""

from __future__ import annotations

import re
from pathlib import Path

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

LIMITS, LAUNCHER, WATCHER = "Limits of a chain", "Limits of the launcher", "Limits of the watcher"
SOAK, WATCHER_SOAK = "Soak", "Soak of the watcher"
ORDER = (LIMITS, LAUNCHER, WATCHER, SOAK, WATCHER_SOAK)

TITLE = """\
# Benchmarks

`make bench` writes the tables of limits, `make soak` the soaks. Machines are noisy: ratios hold, absolutes do not.
"""


def write_section(heading: str, text: str) -> None:
    """Put a section in the place of its older self."""
    page = REPORT.read_text() if REPORT.exists() else ""
    temporary = REPORT.with_suffix(".tmp")
    temporary.write_text(with_section(page, heading, text))
    temporary.replace(REPORT)


def with_section(page: str, heading: str, text: str) -> str:
    """The page with one section new and all others as they were, in their order."""
    found = {name: body for name, body in re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", page) if name in ORDER}
    found[heading] = text
    return TITLE + "".join(f"\n## {name}\n\n{found[name].strip()}\n" for name in ORDER if name in found)
