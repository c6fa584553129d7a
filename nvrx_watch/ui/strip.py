"""Lines that fold to the width they get: words that flow, the strip of generations, the timeline of cycles. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from nvrx_chain.clock import render_age
from nvrx_watch.ui.cells import Span, Spans, clip, clip_spans, pad, spans_width
from nvrx_watch.ui.marks import GenerationMark, MarkKind
from nvrx_watch.ui.screen_model import CycleMark
from nvrx_watch.ui.words import UNKNOWN

_GAP = Span("  ")
_ARROW = Span(" > ", "dim")
_BAR, _OPEN_END = "━", ">"
_LONGEST_BAR = 20
_MOST_KINDS = 3
_HARMLESS = frozenset({"walltime", "preempted", "terminated", "superseded", "completed", "COMPLETED", "TIMEOUT"})


def flow(parts: Sequence[Spans], width: int, most_rows: int, gap: Span = _GAP) -> list[Spans]:
    """The parts in as few rows as they need, none broken; what is left after `most_rows` is cut off with a mark."""
    rows: list[Spans] = []
    for part in parts:
        if rows and spans_width(rows[-1]) + gap.width() + spans_width(part) <= width:
            rows[-1] = (*rows[-1], gap, *part)
        elif rows and len(rows) == most_rows:
            # The last row runs over its width, so that clipping marks it as cut.
            rows[-1] = (*rows[-1], gap, *part)
        else:
            rows.append(part)
    return [clip_spans(row, width) for row in rows]


def wrap(text: str, width: int, most_rows: int, style: str = "") -> list[Spans]:
    """A sentence, broken between words."""
    return flow([(Span(word, style),) for word in text.split(" ")], width, most_rows, Span(" ", style))


def strip_rows(marks: Sequence[GenerationMark], current_id: int | None, width: int, most_rows: int) -> list[Spans]:
    """The generations in order, the current one in brackets; long runs of one kind fold until they fit."""
    rows: list[Spans] = []
    for keep in (len(marks), 3, 2, 1, 0):
        parts = [part for run in _runs(marks) for part in _run_parts(run, keep, current_id)]
        rows = flow(parts, width, len(parts), _ARROW)
        if len(rows) <= most_rows:
            return rows
    return flow(parts, width, most_rows, _ARROW)


def timeline_rows(cycles: Sequence[CycleMark], width: int, now: datetime) -> list[Spans]:
    """Two rows, bars and labels under them. The newest is at the right; the oldest are counted when room is short."""
    cells: list[tuple[str, str]] = []
    used = 0
    for cycle in reversed(cycles):
        bar, label = _cycle_cell(cycle, now)
        wide = max(len(bar), len(label)) + 1
        earlier = len(cycles) - len(cells) - 1
        if used + wide + (len(_earlier(earlier)) + 1 if earlier else 0) > width and cells:
            break
        cells.append((pad(bar, wide), pad(label, wide)))
        used += wide
    cells.reverse()
    hidden = len(cycles) - len(cells)
    head = f"{_earlier(hidden)} " if hidden else ""
    bars = " " * len(head) + "".join(bar for bar, _ in cells)
    labels = head + "".join(label for _, label in cells)
    return [(Span(clip(bars.rstrip(), width), "cyan"),), (Span(clip(labels.rstrip(), width)),)]


def _runs(marks: Sequence[GenerationMark]) -> list[list[GenerationMark]]:
    return [list(group) for _, group in itertools.groupby(marks, key=lambda mark: mark.kind)]


def _run_parts(run: Sequence[GenerationMark], keep: int, current_id: int | None) -> list[Spans]:
    """One run of generations of one kind. Of ended ones the newest matter, of waiting ones the next."""
    kind = run[0].kind
    if len(run) <= max(keep, 1):
        return [_mark_part(mark, current_id) for mark in run]
    if kind is MarkKind.ENDED:
        shown, folded = run[len(run) - keep :], run[: len(run) - keep]
        return [_folded_part(folded, "… "), *(_mark_part(mark, current_id) for mark in shown)]
    shown, folded = run[:keep], run[keep:]
    return [*(_mark_part(mark, current_id) for mark in shown), _folded_part(folded, "+" if keep else "")]


def _folded_part(folded: Sequence[GenerationMark], head: str) -> Spans:
    text = f"{head}{len(folded)} {folded[0].kind.value}"
    if folded[0].kind is MarkKind.ENDED:
        words = Counter(mark.word for mark in folded).most_common()
        listed = [f"{number} {word}" for word, number in words[:_MOST_KINDS]]
        listed += ["…"] if len(words) > _MOST_KINDS else []
        text += f" ({', '.join(listed)})"
    return (Span(text, "dim"),)


def _mark_part(mark: GenerationMark, current_id: int | None) -> Spans:
    text = f"{mark.array_job_id} {mark.word}"
    if mark.array_job_id == current_id:
        return (Span(f"[{text}]", "bold" if mark.kind is not MarkKind.RUNNING else "bold green"),)
    return (Span(text, _mark_style(mark)),)


def _mark_style(mark: GenerationMark) -> str:
    if mark.kind is MarkKind.ENDED:
        return "dim" if mark.word in _HARMLESS else "red"
    return {MarkKind.RUNNING: "green", MarkKind.LEFT_OVER: "yellow", MarkKind.UNKNOWN: "yellow"}.get(mark.kind, "")


def _cycle_cell(cycle: CycleMark, now: datetime) -> tuple[str, str]:
    seconds = cycle.duration(now)
    if seconds is None:
        return "", f"{cycle.label} {UNKNOWN}"
    bar = _BAR * _bar_width(seconds)
    if cycle.is_open:
        return bar + _OPEN_END, f"{cycle.label} {render_age(seconds)}+"
    return bar, f"{cycle.label} {render_age(seconds)}"


def _bar_width(seconds: float) -> int:
    """About two cells more for each doubling of the minutes: 1 for 5 s, 8 for 12 m, 19 for 8 h."""
    return min(_LONGEST_BAR, 1 + round(2 * math.log2(1 + seconds / 60)))


def _earlier(number: int) -> str:
    return f"…{number} earlier"
