"""`make bench`: measures every row of the table of limits with ft_launcher and torchrun, and writes docs/benchmarks.md.

The rows are the tests of tests/integration/test_limits_*.py; this only runs them, the long ones too, and makes a table
of what they measured. A failed test leaves its figure in the table, marked, and the exit code is pytest's.
`--figures FILE` makes the table of what another run of the tests left in the file that NVRX_TEST_FIGURES named.
Touches: docs/benchmarks.md, a temporary file; what the tests touch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from nvrx_chain.sandbox.programs import locate, search_path
from tests.benchpage import LIMITS as LIMITS_HEADING
from tests.benchpage import write_section
from tests.integration.measure import FIGURES_VARIABLE, LIMITS, Figure, Limit, read_figures

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/integration/test_limits_*.py"))
RUN_SECONDS = 3 * 3600.0
LAUNCHERS = ("ft_launcher", "torchrun")

HEADER = """\
Each figure is one run of the test that its command names, on a private Slurm on one machine
(KillWait 30, SlurmdTimeout 300, 2 training tasks, 1 hot and 2 cold spares unless the row says otherwise, our defaults).
The reference is NVIDIA's example deployment around ft_launcher 0.7.0: **m** was measured on such a sandbox with the
same shape, **r** follows from reading it. The ranks train a small GPT on the CPU; their first step includes the import
of torch.

"""
COLUMNS = (
    "row",
    "bound",
    "ours, ft_launcher",
    "ours, torchrun",
    "reference",
    "date",
    "commit",
    "command",
)


def main() -> int:
    """Run the tests and write their table; the exit code of pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, help="run no test, read what a run of them measured")
    parser.add_argument("--commit", default=read_commit(), help="the commit that was measured (the one checked out)")
    options = parser.parse_args()
    figures, code = (read_figures(options.figures), 0) if options.figures else run_tests()
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    write_section(LIMITS_HEADING, render_table(figures, date=date, commit=options.commit, machine=describe_machine()))
    return code


def run_tests() -> tuple[Sequence[Figure], int]:
    """What the tests measured, and the exit code of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "figures.jsonl"
        path.touch()
        argv = [sys.executable, "-m", "pytest", *TESTS]
        done = subprocess.run(
            argv, cwd=ROOT, env={**os.environ, FIGURES_VARIABLE: str(path)}, timeout=RUN_SECONDS, check=False
        )
        return read_figures(path), done.returncode


def render_table(figures: Sequence[Figure], *, date: str, commit: str, machine: str) -> str:
    """The section: every row, measured or not."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for limit in LIMITS:
        own = [figure for figure in figures if figure.key == limit.key]
        cells = [limit.what, limit.bound, *(_cell(limit, own, launcher) for launcher in LAUNCHERS)]
        cells += [limit.reference, date if own else "", commit if own else "", _command(own)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return f"{HEADER}{machine}\n\n" + "\n".join(lines) + "\n"


def _cell(limit: Limit, figures: Sequence[Figure], launcher: str) -> str:
    texts = [_text(figure) for figure in figures if figure.launcher == launcher]
    if launcher == "torchrun" and limit.torchrun_note is not None:
        texts.append(limit.torchrun_note)
    return "; ".join(texts) or "not measured"


def _text(figure: Figure) -> str:
    mark = "" if figure.is_within else " **over**"
    words = ", ".join(word for word in (figure.variant, figure.detail) if word)
    return f"{figure.seconds:.1f} s{mark}" + (f" ({words})" if words else "")


def _command(figures: Sequence[Figure]) -> str:
    """The command that repeats the row: the functions of its tests, whatever their parameters."""
    tests = dict.fromkeys(figure.test.partition("[")[0] for figure in figures if figure.launcher in LAUNCHERS)
    return " ".join(("`.venv/bin/pytest", *tests)) + "`" if tests else ""


def read_commit() -> str:
    """The commit that was measured, with a plus sign when the tree was not clean."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def describe_machine() -> str:
    """What it was measured on, in one line."""
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    controller = locate(search_path(os.environ), accounting=False)["slurmctld"]
    version = subprocess.run([controller, "-V"], capture_output=True, text=True, timeout=30, check=True).stdout
    return (
        f"Machine: {os.cpu_count()} cores ({model[1] if model else platform.machine()}), {version.strip()}, "
        f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}."
    )


if __name__ == "__main__":
    sys.exit(main())
