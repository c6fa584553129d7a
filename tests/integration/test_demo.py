"""The demo as people run it: every scenario, every switch that must break it, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.demo import hand_off
from nvrx_chain.demo.evidence import Evidence
from nvrx_chain.demo.expectations import Expectation, failed, ok
from nvrx_chain.demo.no_restart import NO_RESTART
from nvrx_chain.demo.runner import DemoRequest, run_demo
from nvrx_chain.demo.scenario import Act, DemoReport, KillRank, Scenario
from nvrx_chain.errors import DemoError, PreflightError
from nvrx_chain.generation.hooks import VARIABLE
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.sandbox import Sandbox
from nvrx_chain.sandbox.procfs import list_processes, read_arguments
from nvrx_chain.sandbox.record import REGISTER
from tests.integration.harness import COMMAND, PEER_PYTHON
from tests.integration.sandbox_lab import needs_cluster

pytestmark = needs_cluster

NASTY = "demos & 'more' #1 100% of it"
DEMO_SECONDS = 500.0
"""Generous: everything here may share two cores with others. The bound of an idle machine is measured, not held."""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Path]:
    """Where the demos of a test make their directories. What is still there afterwards is ended."""
    parent = tmp_path / NASTY
    yield parent
    for runtime in sandboxes_below(parent):
        Sandbox.open(Path(os.readlink(runtime / "directory"))).down(grace_seconds=0)


def sandboxes_below(parent: Path) -> list[Path]:
    """The runtime directories of the sandboxes whose directory lies below `parent`."""
    links = [entry / "directory" for entry in REGISTER.iterdir() if (entry / "directory").is_symlink()]
    return [link.parent for link in links if Path(os.readlink(link)).is_relative_to(parent)]


def processes_of(parent: Path) -> list[str]:
    """Commands of live processes that name the parent directory."""
    return [
        text for text in (" ".join(read_arguments(process.pid)) for process in list_processes()) if str(parent) in text
    ]


def assert_nothing_left(parent: Path) -> None:
    """No cluster, no process, no directory of any demo."""
    assert sandboxes_below(parent) == []
    assert processes_of(parent) == []
    assert list(parent.iterdir()) == []


def argv_of(parent: Path, *words: str) -> list[str]:
    return [COMMAND, "demo", "--json", "--dir", str(parent), *words]


def run_command(parent: Path, *words: str, hooks: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, report and story of the command."""
    environ = {**os.environ, VARIABLE: hooks} if hooks else dict(os.environ)
    done = subprocess.run(
        argv_of(parent, *words), env=environ, capture_output=True, text=True, timeout=DEMO_SECONDS, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def states(report: Mapping[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in report["expectations"]}


def assert_kept_all_promises(code: int, report: Mapping[str, Any], story: str) -> None:
    assert set(states(report).values()) == {"ok"}, story + json.dumps(report, indent=1)
    assert code == 0


# Whole scenarios


def test_no_restart_keeps_its_promises_and_leaves_nothing(parent: Path) -> None:
    code, report, story = run_command(parent, "--scenario", "no-restart")
    assert_kept_all_promises(code, report, story)
    assert [row["repaired_by"] for row in report["repairs"]] == ["none wanted: the chain ended"]
    assert report["kept"] is None
    assert_nothing_left(parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "python"),
    [("nvrx", sys.executable), ("ft_launcher", PEER_PYTHON), ("torchrun", sys.executable)],
    ids=["nvrx", "ft_launcher", "torchrun"],
)
def test_hand_off_keeps_its_promises_and_leaves_nothing(parent: Path, launcher: str, python: str) -> None:
    code, report, story = run_command(parent, "--launcher", launcher, "--python", python)
    assert_kept_all_promises(code, report, story)
    rank, node = report["repairs"]
    assert (rank["repaired_by"], node["repaired_by"]) == ("in-job restart cycle", "hand-off to generation 2")
    for row in (rank, node):
        assert 0 <= row["steps_lost"] <= hand_off.SAVE_INTERVAL
        assert row["seconds"] > 0
    assert_nothing_left(parent)


@pytest.mark.slow
def test_walltime_keeps_its_promises_and_leaves_nothing(parent: Path) -> None:
    code, report, story = run_command(parent, "--scenario", "walltime", "--python", PEER_PYTHON)
    assert_kept_all_promises(code, report, story)
    first = report["repairs"][0]
    assert (first["repaired_by"], first["steps_lost"]) == ("hand-off to generation 2", 0)
    assert_nothing_left(parent)


# With a mechanism switched off it must fail, and by the name of what is missing.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "name"),
    [
        ("no-fence", hand_off.FENCED),
        ("no-release", hand_off.TAKEN_OVER),
        ("no-resume", hand_off.RANK_RESUMED),
    ],
)
def test_without_a_mechanism_the_demo_fails_and_names_the_row(parent: Path, hook: str, name: str) -> None:
    code, report, story = run_command(parent, "--python", PEER_PYTHON, hooks=hook)
    assert code == 1
    assert states(report)[name] == "FAILED", story
    assert name in story.splitlines()[-1]
    assert sandboxes_below(parent) == []
    assert Path(report["kept"]).is_relative_to(parent), "the records of a failed demo are needed"


# Nothing is left behind, whatever happens.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_an_interrupted_demo_takes_its_cluster_down(parent: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        argv_of(parent, "--launcher", "torchrun"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        try:
            line = next(line for line in demo.stderr if "is queued with" in line)
            assert len(sandboxes_below(parent)) == 1
            demo.send_signal(number)
            _, rest = demo.communicate(timeout=120)
        finally:
            demo.kill()
    assert demo.returncode == 1, line + rest
    assert "the private Slurm is taken down" in rest
    assert "Aborted" in rest
    assert_nothing_left(parent)


def test_a_kept_demo_says_how_to_look_at_it_and_how_to_end_it(parent: Path) -> None:
    code, report, story = run_command(parent, "--scenario", "no-restart", "--keep")
    assert_kept_all_promises(code, report, story)
    assert len(sandboxes_below(parent)) == 1
    environ = {**os.environ, "PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}"}

    def follow(advice: str) -> str:
        """Run the shell words that stand after this in the story."""
        words = next(line for line in story.splitlines() if advice in line).partition(advice)[2]
        done = subprocess.run(
            ["bash", "-ec", words], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    assert "CANCELLED" in follow("its Slurm")
    assert "no_restart" in follow("its chain")
    follow("end it")
    assert sandboxes_below(parent) == []


class Silence:
    """A view that shows nothing and remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def show(self, evidence: Evidence, waiting_for: str) -> None:
        pass


def play(
    parent: Path, *, acts: Sequence[Act] = (), rows: tuple[Expectation, ...] = (), python: str = sys.executable
) -> tuple[DemoReport, Silence]:
    """A demo of a chain that nobody watches for long: these acts, and these rows whatever happens."""
    scenario: Scenario = replace(NO_RESTART, acts=tuple(acts), judge=lambda evidence: rows)
    view = Silence()
    request = DemoRequest(
        scenario=scenario,
        launcher=LauncherKind.TORCHRUN,
        python=python,
        interpreter=sys.executable,
        parent=parent,
        keep=False,
        environ=os.environ,
    )
    return run_demo(request, SystemClock(), view), view


def test_a_broken_promise_leaves_the_records_and_no_cluster(parent: Path) -> None:
    report, view = play(parent, rows=(ok("one", "-"), failed("two", "-")))
    assert report.kept is not None
    assert (report.kept / "chain" / "chain.json").exists()
    assert any(str(report.kept) in line for line in view.said)
    assert sandboxes_below(parent) == []


def test_a_demo_that_went_well_leaves_nothing(parent: Path) -> None:
    report, _ = play(parent, rows=(ok("one", "-"),))
    assert report.kept is None
    assert_nothing_left(parent)


def test_an_error_in_the_middle_leaves_the_records_and_no_cluster(parent: Path) -> None:
    with pytest.raises(DemoError, match="no rank has said anything"):
        play(parent, acts=(KillRank(rank=0),))
    assert sandboxes_below(parent) == []
    (kept,) = parent.iterdir()
    assert (kept / "chain" / "chain.json").exists()


def test_a_refused_chain_is_an_error_and_no_cluster_is_left(parent: Path) -> None:
    refused = replace(NO_RESTART, submit_flags=lambda place: {**NO_RESTART.submit_flags(place), "partition": "none"})
    request = DemoRequest(
        scenario=refused,
        launcher=None,
        python=sys.executable,
        interpreter=sys.executable,
        parent=parent,
        keep=False,
        environ=os.environ,
    )
    with pytest.raises(PreflightError, match="no partition none"):
        run_demo(request, SystemClock(), Silence())
    assert sandboxes_below(parent) == []
