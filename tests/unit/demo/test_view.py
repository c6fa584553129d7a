"""How a demo is shown: plain lines, a live terminal, tables, JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from nvrx_chain.demo.expectations import failed, ok, undecided
from nvrx_chain.demo.hand_off import HAND_OFF
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import DemoReport, ScenarioName
from nvrx_chain.demo.view import make_console, opened_view, print_report, render_json, summarise
from tests.fakes.fake_clock import FakeClock
from tests.unit.demo.story import Story

REPORT = DemoReport(
    ok=False,
    scenario=ScenarioName.HAND_OFF,
    launcher="torchrun",
    seconds=123.4,
    repairs=(
        Repair(fault="a rank killed (rank 1 [bold])", repaired_by="in-job restart cycle", seconds=7.25, steps_lost=5),
        Repair(fault="the node of task 0 lost (n1)", repaired_by="not repaired"),
    ),
    expectations=(ok("one", "seen"), failed("two", "not within 5 s"), undecided("three", "nothing")),
    kept=Path("/tmp/it's here"),
)


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, no_color=True, width=150)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_have_the_time_the_seconds_and_no_control_codes() -> None:
    clock, console = FakeClock(), plain_console()
    with opened_view(console, clock, HAND_OFF) as view:
        clock.advance(12.34)
        view.say("FAULT a rank killed: [red]rank 1[/red] " + "x" * 200)
        view.show(Story().evidence(), "something")
    (line,) = written(console).splitlines()
    assert line.endswith("  12.3 s  FAULT a rank killed: [red]rank 1[/red] " + "x" * 200)
    assert "\x1b" not in line


def test_a_terminal_shows_what_is_waited_for_and_how_far_training_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    story = Story()
    story.trains(1, 0, 40, at=1.0)
    with opened_view(console, FakeClock(), HAND_OFF) as view:
        view.say("generation 1 starts")
        view.show(story.evidence(), "training finishes")
        # What the live part draws is drawn by a thread of rich's, or at the end of the view.
    text = written(console)
    assert "generation 1 starts" in text
    assert "training finishes" in text
    assert "iteration 40/80" in text


def test_the_tables_name_faults_repairs_prices_and_promises() -> None:
    console = plain_console()
    print_report(REPORT, console)
    text = written(console)
    rank, node = (line for line in text.splitlines() if "(rank 1 [bold])" in line or "(n1)" in line)
    assert " ".join(rank.split()) == "a rank killed (rank 1 [bold]) in-job restart cycle 7.2 5 steps"
    assert " ".join(node.split()) == "the node of task 0 lost (n1) not repaired - -"
    for name, state, detail in (
        ("one", "ok", "seen"),
        ("two", "FAILED", "not within 5 s"),
        ("three", "not reached", ""),
    ):
        (line,) = (line for line in text.splitlines() if line.strip().startswith(name))
        assert state in line
        assert detail in line
    assert text.rstrip().endswith("1 of 3 expectations hold, 123 s; FAILED: two")


def test_the_tables_can_be_read_without_unicode() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), force_terminal=False, width=150)
    print_report(REPORT, console)


def test_a_demo_that_kept_everything_says_so() -> None:
    report = DemoReport(
        ok=True,
        scenario=ScenarioName.WALLTIME,
        launcher="torchrun",
        seconds=9.0,
        repairs=(),
        expectations=(ok("one", "seen"),),
        kept=None,
    )
    assert summarise(report) == "1 of 1 expectations hold, 9 s"


def test_the_report_is_one_json_object() -> None:
    report = json.loads(render_json(REPORT))
    assert (report["schema"], report["ok"], report["kept"]) == (1, False, "/tmp/it's here")
    assert [row["state"] for row in report["expectations"]] == ["ok", "FAILED", "not reached"]
    assert report["repairs"][0] == {
        "fault": "a rank killed (rank 1 [bold])",
        "repaired_by": "in-job restart cycle",
        "seconds": 7.25,
        "steps_lost": 5,
    }


@pytest.mark.parametrize("plain", [True, False])
def test_a_pipe_is_never_a_terminal(plain: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console(plain=plain, to_stderr=True)
    assert not console.is_terminal
    console.print("[red]x[/red]")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "x\n")
