from __future__ import annotations

import io
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as alter
from rich.cells import cell_len
from rich.console import Console

from nvrx_chain.errors import Unobserved
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import Cycle, Finding, LogActivity, Severity, Source
from nvrx_watch.ui.frame import render_frame, render_text
from nvrx_watch.ui.screen_model import ScreenModel
from tests.unit.watch import build
from tests.unit.watch.ui.scenes import SCENES, Scene, finding, held, queue_blind, report, request, restart_storm

HOSTILE = st.one_of(
    st.text(st.characters(codec=None), max_size=40),
    st.sampled_from(["[red]", "[/]", "\x1b[2J\x1b[H", "\u202eabc", "漢" * 200, "a\u0301" * 90, "\n\r\t", ""]),
    st.sampled_from(["👩‍👩‍👧", "❤\ufe0f", "🇩🇪🇩", "👍🏽" * 40, "\ue000", "x" * 5000]),
)
SIZES = st.tuples(st.integers(1, 200), st.integers(1, 60))
NUMBERS = st.integers(-(10**20), 10**20)
SECONDS = st.none() | st.integers(-(10**9), 10**9)


@st.composite
def hostile_cycles(draw: st.DrawFn) -> tuple[Cycle, ...]:
    nodes = tuple(draw(st.lists(HOSTILE, max_size=3)))
    return tuple(
        build.cycle(number, attempt=number, started=began, ended=ended, active_nodes=nodes, standby_nodes=nodes)
        for number, began, ended in draw(st.lists(st.tuples(NUMBERS, SECONDS, SECONDS), max_size=12))
    )


@st.composite
def hostile_findings(draw: st.DrawFn) -> list[Finding]:
    texts = draw(st.lists(st.tuples(HOSTILE, HOSTILE, st.sampled_from(Severity)), max_size=8))
    return [
        finding(name, severity, title, advice=title, details=(name,), scope=str(number))
        for number, (name, title, severity) in enumerate(texts)
    ]


@st.composite
def hostile_scenes(draw: st.DrawFn) -> Scene:
    """Text of strangers wherever the model takes any."""
    a, b, c = draw(HOSTILE), draw(HOSTILE), draw(HOSTILE)
    one = build.running_generation(
        11,
        cycles=draw(st.one_of(hostile_cycles(), st.none(), st.just(Unobserved(a)))),
        leases={0: build.lease(11, 0, phase=b)},
        log=draw(st.sampled_from([None, Unobserved(b), LogActivity(bytes=1, newest=a, iteration=10**19)])),
    )
    rows = (
        *build.running_rows(11, nodelist=a, reason=b),
        build.row(11, draw(st.none() | NUMBERS), c or "R", reason=c),
        *build.queued_rows(12, reason=c),
    )
    subject = build.subject(name=a, user=b, cluster=c, run_directory=Path("/" + a.replace("\x00", "")))
    return Scene(
        snapshot=build.snapshot(
            subject=subject,
            generations=build.generations(g11=one),
            queue=draw(st.sampled_from([build.queue(*rows), Unobserved(c)])),
            nodes=build.nodes(build.node("n1", "down*", reason=c)),
            iteration=draw(st.none() | NUMBERS | st.just(Unobserved(c))),
            hold=draw(st.sampled_from([None, build.hold(by=a, why=b, held_at=c)])),
            verdict=draw(st.sampled_from([None, build.verdict(by=b, why=c)])),
            sources=build.sources({Source.CYCLES: a}, notes=(a, c)),
        ),
        findings=draw(hostile_findings()),
        reports=[
            report(state, why=b, request=request(command=c), asked=(a,), gone=(b,))
            for state in draw(st.lists(st.sampled_from(ActionState), max_size=3))
        ],
        skipped={a: b},
        broken={b: c},
    )


def is_harmless(text: str) -> bool:
    """Nothing but letters, marks, numbers, punctuation, symbols and spaces."""
    return all(unicodedata.category(one)[0] in "LMNPS" or unicodedata.category(one) == "Zs" for one in text)


def check(model: ScreenModel, width: int, height: int) -> str:
    text = render_text(model, width, height)
    lines = text.split("\n")
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert is_harmless(text.replace("\n", ""))
    return text


@given(hostile_scenes(), SIZES)
def test_hostile_text_never_leaves_the_frame(scene: Scene, size: tuple[int, int]) -> None:
    check(scene.screen(), *size)


@given(st.sampled_from(sorted(SCENES)), SIZES)
def test_every_scene_fits_every_size(scene: str, size: tuple[int, int]) -> None:
    check(SCENES[scene]().screen(), *size)


@pytest.mark.parametrize("scene", SCENES)
def test_forty_columns_still_say_state_iteration_and_findings(scene: str) -> None:
    text = check(SCENES[scene]().screen(), 40, 12)
    assert text.startswith(SCENES[scene]().screen().state.value.upper())
    assert "\niteration " in text
    assert "\nfindings " in text


def test_findings_that_do_not_fit_are_counted() -> None:
    findings = [finding(f"d{number}", Severity.WARNING, f"title {number}") for number in range(20)]
    lines = check(Scene(snapshot=build.snapshot(), findings=findings).screen(), 80, 24).split("\n")
    shown = sum(line.lstrip().startswith("WARN") for line in lines)
    assert f"findings   20 warning +{20 - shown} more" in lines
    assert 3 <= shown < 20


def test_a_low_frame_keeps_the_worst_finding_and_counts_the_others() -> None:
    lines = check(restart_storm().screen(), 40, 5).split("\n")
    assert "findings   3 CRIT 3 WARN 1 info +6 more" in lines
    assert any("20 cycles ended" in line for line in lines)


def test_what_is_blind_stays_visible_on_a_low_screen() -> None:
    text = check(queue_blind().screen(), 80, 6)
    assert "BLIND      queue, nodes: squeue did not answer within 20 s …" in text


def test_a_reason_is_said_once_and_the_rest_is_a_question_mark() -> None:
    text = check(queue_blind().screen(), 140, 40)
    assert text.count("squeue did not answer") == 1
    assert "[11 ?]" in text
    assert "hot ? of 1, cold ? of 2" in text


def test_the_directory_of_a_long_path_keeps_its_end() -> None:
    subject = build.subject(run_directory=Path("/lustre/" + "very long/" * 20 + "run 17"))
    text = check(Scene(snapshot=build.snapshot(subject=subject)).screen(), 80, 24)
    assert "…" in text.split("\n")[1]
    assert text.split("\n")[1].endswith("run 17")


def draw_with_rich(model: ScreenModel, width: int, height: int, **console: Any) -> str:
    out = io.StringIO()
    screen = Console(file=out, width=width, height=height, highlight=False, **console)
    screen.print(render_frame(model, width=width, height=height, color=not screen.no_color), end="")
    return out.getvalue()


def test_rich_draws_the_very_same_characters() -> None:
    model = restart_storm().screen()
    drawn = draw_with_rich(model, 80, 24, color_system=None)
    assert [line.rstrip() for line in drawn.split("\n")] == render_text(model, 80, 24).split("\n")


def test_markup_in_a_name_is_text() -> None:
    model = alter(held().screen(), name="[bold red]x[/]")
    assert "[bold red]x[/]" in draw_with_rich(model, 80, 24, color_system=None)


def test_colour_is_used_when_it_is_wanted_and_only_then() -> None:
    model = restart_storm().screen()
    assert "\x1b[" in draw_with_rich(model, 80, 24, force_terminal=True, color_system="standard")
    assert "\x1b[" not in draw_with_rich(model, 80, 24, force_terminal=True, no_color=True)


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_a_terminal_without_utf8_gets_nothing_that_it_cannot_show(encoding: str) -> None:
    model = alter(restart_storm().screen(), name="漢字")
    text = render_text(model, 80, 24, encoding=encoding)
    assert text.encode(encoding)
    assert "~14 earlier" in text


def test_many_actions_do_not_push_the_findings_off() -> None:
    reports: list[ActionReport] = [report(ActionState.FAILED, why=f"no {number}") for number in range(50)]
    scene = replace(restart_storm(), reports=reports)
    lines = check(scene.screen(), 80, 24).split("\n")
    assert sum(line.startswith("  CRIT") for line in lines) == 3
