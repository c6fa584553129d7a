"""The lower part of the screen: open findings, actions, and what could not be seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nvrx_chain.clock import render_age
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import Severity
from nvrx_watch.ui.cells import Span, Spans, clip
from nvrx_watch.ui.marks import SEVERITY_ORDER
from nvrx_watch.ui.rows import LABEL_WIDTH, NARROW, Rank, Row, labelled, plain
from nvrx_watch.ui.screen_model import ActionLine, FindingLine, ScreenModel
from nvrx_watch.ui.strip import wrap
from nvrx_watch.ui.words import UNKNOWN, seconds_since

_SHORT = {Severity.CRITICAL: "CRIT", Severity.WARNING: "WARN", Severity.INFO: "info"}
_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_FEW = 3
_INDENT = "  "
_GOOD = frozenset({ActionState.DONE, ActionState.NOTHING_LEFT})


def finding_rows(model: ScreenModel, width: int, height: int, most: int) -> list[Row]:
    """Counts, then the findings, worst first. A third of the height is theirs before anything else has to go."""
    rows = labelled("findings", [_counts(model, width)], Rank.FINDINGS)
    for number, line in enumerate(model.findings):
        rows.append(Row(rank=_rank(number, height // 3), spans=_finding(line, model, width), is_finding=True))
        if line.advice:
            advice = wrap(f"do: {line.advice}", max(1, width - LABEL_WIDTH), most, "dim")
            rows += labelled("", advice, Rank.ADVICE)
    return rows


def say_how_many_more(model: ScreenModel, rows: Sequence[Row], width: int) -> list[Row]:
    """The rows that were kept, with the number of findings that were not."""
    hidden = len(model.findings) - sum(row.is_finding for row in rows)
    if not hidden:
        return list(rows)
    counts = (*_counts(model, width), Span(f" +{hidden} more", "bold"))
    return [labelled("findings", [counts], Rank.FINDINGS)[0] if row.rank is Rank.FINDINGS else row for row in rows]


def action_rows(model: ScreenModel) -> list[Row]:
    """The actions of the pass, the newest first, with the command where it is the owner's."""
    lines = list(reversed(model.actions))
    rows: list[Row] = []
    for number, line in enumerate(lines):
        rank = Rank.MORE_ACTIONS if number else Rank.FIRST_ACTION
        rows += labelled("" if number else "actions", [_action(line)], rank)
        if line.command:
            rows += labelled("", [plain(f"owner: {line.command}")], Rank.COMMANDS)
    return rows


def blind_rows(model: ScreenModel, width: int, most: int) -> list[Row]:
    """Each source that could not be observed, with its reason: the one place that says it."""
    room = max(1, width - LABEL_WIDTH)
    lines = [row for name, why in model.blind for row in wrap(f"{name}: {why}", room, most, "yellow")]
    if model.broken_detectors:
        lines += wrap(f"detectors that broke: {', '.join(model.broken_detectors)}", room, most, "yellow")
    if model.skipped_detectors:
        word = "detector" if model.skipped_detectors == 1 else "detectors"
        lines.append((Span(f"{model.skipped_detectors} {word} skipped for that", "yellow"),))
    return labelled("BLIND", lines, Rank.BLIND, Rank.MORE_BLIND, "bold yellow")


def _rank(number: int, share: int) -> Rank:
    if not number:
        return Rank.WORST_FINDING
    if number < _FEW:
        return Rank.FIRST_FINDINGS
    return Rank.MORE_FINDINGS if number < share else Rank.ALL_FINDINGS


def _counts(model: ScreenModel, width: int) -> Spans:
    if not model.findings:
        # Nothing found by half of the detectors is not nothing to find.
        return plain("none that can be seen" if model.skipped_detectors or model.blind else "none open")
    counts = Counter(line.severity for line in model.findings)
    words = _SHORT if width < NARROW else {one: one.value for one in SEVERITY_ORDER}
    parts = [Span(f"{counts[one]} {words[one]}", _STYLES[one]) for one in SEVERITY_ORDER if counts[one]]
    return tuple(span for part in parts for span in (part, Span(" " if width < NARROW else ", ")))[:-1]


def _finding(line: FindingLine, model: ScreenModel, width: int) -> Spans:
    age = render_age(seconds_since(line.since, model.now)) if line.since is not None else "new"
    name = f" [{line.detector}]" if width >= NARROW else ""
    unseen = ""
    if not line.seen:
        seen_at = line.last_seen_at
        ago = f"{render_age(seconds_since(seen_at, model.now))} ago" if seen_at is not None else UNKNOWN
        unseen = f" (last seen {ago})" if width >= NARROW else f" ({ago})"
    style = _STYLES[line.severity]
    head = Span(f"{_INDENT}{_SHORT[line.severity]} {age:>6} ", style)
    # The name of the detector is what `--explain` takes: a long title must not push it off the line.
    room = max(1, width - head.width() - len(name) - len(unseen))
    return (head, Span(clip(line.title, room)), Span(name, "dim"), Span(unseen, "yellow"))


def _action(line: ActionLine) -> Spans:
    return (Span(line.title, "bold"), Span(f": {line.result}", "" if line.state in _GOOD else "yellow"))
