"""Everything that a command prints can be had as JSON, in one object with a `schema`; errors stay a line and a code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from nvrx_chain.cli import cli
from nvrx_chain.commands.sandbox import _print
from nvrx_chain.sandbox.teardown import DownReport
from nvrx_watch.cli import watch
from tests.unit.test_docs_cli import walk

WITHOUT = {
    "nvrx-chain completion": "prints a script for a shell",
    "nvrx-chain launch": "passes on what the ranks print; what it did is in its records",
    "nvrx-chain sandbox env": "prints lines for a shell; `sandbox status --json` has the same as data",
    "nvrx-chain sandbox shell": "becomes another program",
}
"""Commands that print no result of their own, and why."""


def flags(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_command_that_prints_a_result_prints_it_as_json() -> None:
    silent = {
        " ".join(path)
        for path, command in walk(cli, ("nvrx-chain",))
        if not isinstance(command, click.Group) and "--json" not in flags(command)
    }
    assert silent == set(WITHOUT)
    assert "--json" in flags(watch)


def run(*words: str, cwd: Path, program: str = "nvrx-chain", code: int = 0) -> str:
    """Standard output of a command where no Slurm is installed."""
    environ = {**os.environ, "PATH": "/no/slurm", "NVRX_SANDBOX_DIR": str(cwd / "sandbox")}
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *words],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("submit", "--train-tasks=2", "--dry-run", "--allow-local-run-dir", "--json"), 0),
        (("submit", "--train-tasks=2", "--show-config", "--json"), 0),
        (("list", "--json"), 0),
        (("doctor", "--python=/bin/false", "--json"), 1),
        (("sandbox", "down", "--json"), 0),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_printed_is_one_object_with_a_schema(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    found = json.loads(run(*words, cwd=tmp_path, code=code))
    assert found["schema"] == 1


@pytest.mark.parametrize("words", [("--list-detectors",), ("--explain", "chain_exhausted")])
def test_the_detectors_are_one_object(words: tuple[str, ...], tmp_path: Path) -> None:
    found = json.loads(run(*words, "--json", program="nvrx-watch", cwd=tmp_path))
    assert found["schema"] == 1
    assert "chain_exhausted" in [detector["name"] for detector in found["detectors"]]
    assert set(found["detectors"][0]) == {"name", "severity", "fires", "quiet", "needs", "thresholds", "todo"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "--run-dir", "none", "--json"), 1),
        (("cancel", "--json"), 2),
        (("submit", "--json"), 2),
        (("sandbox", "status", "--json"), 1),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_a_line_on_standard_error_and_nothing_on_standard_output(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nvrx_chain", *words],
        env={**os.environ, "PATH": "/no/slurm", "NVRX_SANDBOX_DIR": str(tmp_path / "sandbox")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("nvrx-chain: ")


def test_a_report_of_the_sandbox_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    report = DownReport(directory=Path("/a b"), was_there=False, jobs_killed=(), processes_ended=0)
    _print(report, True, str)
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["directory"]) == (1, "/a b")
