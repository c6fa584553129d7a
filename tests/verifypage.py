"""docs/verification.md in two parts, each written by one command and kept by the other. Touches: that file."""

from __future__ import annotations

from pathlib import Path

REPORT = Path(__file__).resolve().parents[1] / "docs" / "verification.md"
OTHER_VERSIONS = "\n## Other versions of Slurm\n"


def write_scenarios(text: str) -> None:
    """Put the table of scenarios in the place of its older self. By `make test-all`."""
    _write(with_scenarios(_read(), text))


def write_versions(text: str) -> None:
    """Put the section about other versions of Slurm in the place of its older self. By `make compat`."""
    _write(with_versions(_read(), text))


def with_scenarios(page: str, text: str) -> str:
    """The page with other scenarios and the same versions."""
    _, heading, versions = page.partition(OTHER_VERSIONS)
    return f"{text.rstrip()}\n{heading}{versions}"


def with_versions(page: str, text: str) -> str:
    """The page with the same scenarios and other versions."""
    return f"{page.partition(OTHER_VERSIONS)[0].rstrip()}\n{OTHER_VERSIONS}\n{text.strip()}\n"


def _read() -> str:
    return REPORT.read_text() if REPORT.exists() else ""


def _write(page: str) -> None:
    temporary = REPORT.with_suffix(".tmp")
    temporary.write_text(page)
    temporary.replace(REPORT)
