"""What the live screen shows, as a value: one chain at one instant, and the instants from which ages are counted. Pure.

A frame can be drawn again a second later from the same model with another `now`, without a new pass. All text in it is
escaped already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from nvrx_chain.clock import parse_time
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.manifest import LauncherKind
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.history_model import History, Incident, IncidentState
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import Cycle, Finding, LogActivity, Queue, Severity, Snapshot, Source, Unavailable
from nvrx_watch.ui.marks import (
    SEVERITY_ORDER,
    ChainWord,
    GenerationMark,
    MarkKind,
    chain_word,
    hold_in_force,
    mark_generations,
    outcome_word,
)
from nvrx_watch.ui.screen_generation import CurrentGeneration, describe_current
from nvrx_watch.ui.words import escape, seconds_since

_TITLE, _NAME, _REASON, _COMMAND = 300, 80, 200, 400


class CycleMark(msgspec.Struct, frozen=True, kw_only=True):
    """One restart cycle. `seconds` None: open, or its times are not known (then `is_open` is False)."""

    label: str
    started_at: datetime | None
    seconds: float | None
    is_open: bool

    def duration(self, now: datetime) -> float | None:
        """How long it lasted, or has lasted so far."""
        if self.is_open and self.started_at is not None:
            return seconds_since(self.started_at, now)
        return self.seconds


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far training is.

    `saved` is the checkpoint iteration (None: there is no checkpoint; Unobserved: then `last_saved` is what was read
    last). `moved_at`: since when this watcher has seen that value; `moved_seen` says that it saw it change to it, else
    it may be older. `trained` is the newest iteration in the log, None when none is shown. `wall_at` None: not known,
    and `wall_why` says why; both None while nothing runs.
    """

    saved: int | Unobserved | None
    last_saved: int | None
    moved_at: datetime | None
    moved_seen: bool
    trained: int | Unobserved | None
    per_second: float | None
    target: int | None
    wall_at: datetime | None
    wall_why: str | None


class FindingLine(msgspec.Struct, frozen=True, kw_only=True):
    """One open finding. `seen` False: an earlier pass found it, this one did not or could not look."""

    severity: Severity
    detector: str
    title: str
    since: datetime | None
    last_seen_at: datetime | None
    seen: bool
    advice: str = ""


class ActionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action: what it was, how it went, and the command where it is the owner's to do."""

    title: str
    state: ActionState
    result: str
    command: str


class ScreenModel(msgspec.Struct, frozen=True, kw_only=True):
    """A screen. `blind` has every source that could not be observed with its reason, `without` what the site lacks."""

    now: datetime
    taken_at: datetime
    name: str
    user: str
    cluster: str | None
    chain_id: str | None
    run_directory: str | None
    state: ChainWord
    verdict: str | None
    hold: str | None
    held_at: datetime | None
    generations: tuple[GenerationMark, ...]
    current: CurrentGeneration | None
    cycles: tuple[CycleMark, ...] | Unobserved | None
    no_cycles: str
    progress: Progress
    findings: tuple[FindingLine, ...]
    actions: tuple[ActionLine, ...]
    blind: tuple[tuple[str, str], ...]
    without: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    skipped_detectors: int
    broken_detectors: tuple[str, ...]

    def at(self, now: datetime) -> ScreenModel:
        """The same screen at another instant: ages and the time to the wall move, nothing else."""
        return replace(self, now=now)


def build_screen(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    history: History,
    reports: Sequence[ActionReport],
    *,
    now: datetime,
    skipped: Mapping[str, str] | None = None,
    broken: Mapping[str, str] | None = None,
) -> ScreenModel:
    """Fold one pass into a screen. `skipped` and `broken` name detectors and say why they did not judge."""
    subject, hold, verdict = snapshot.subject, hold_in_force(snapshot), snapshot.verdict
    marks = mark_generations(snapshot)
    current = describe_current(snapshot, marks)
    return ScreenModel(
        now=now,
        taken_at=snapshot.taken_at,
        name=escape(subject.name, _NAME),
        user=escape(subject.user, _NAME),
        cluster=escape(subject.cluster, _NAME) if subject.cluster else None,
        chain_id=escape(subject.chain_id, _NAME) if subject.chain_id else None,
        run_directory=escape(str(subject.run_directory)) if subject.run_directory is not None else None,
        state=chain_word(snapshot),
        verdict=_verdict_text(verdict) if isinstance(verdict, ChainOutcome) else None,
        hold=f"by {escape(hold.by, _NAME)}: {escape(hold.why, _TITLE)}" if hold is not None else None,
        held_at=parse_time(hold.held_at) if hold is not None else None,
        generations=marks,
        current=current,
        cycles=_cycles(snapshot),
        no_cycles=_no_cycles(snapshot),
        progress=_progress(snapshot, current),
        findings=_finding_lines(findings, history),
        actions=tuple(_action_line(report) for report in reports),
        blind=_blind(snapshot),
        without=tuple((source.value, escape(why, _REASON)) for source, why in snapshot.sources.unavailable.items()),
        notes=tuple(escape(note, _REASON) for note in snapshot.sources.notes),
        skipped_detectors=len(skipped or {}),
        broken_detectors=tuple(escape(name, _NAME) for name in broken or {}),
    )


def _verdict_text(verdict: ChainOutcome) -> str:
    return f"{verdict.verdict.value} by {escape(verdict.by, _NAME)}: {escape(verdict.why, _TITLE)}"


def _no_cycles(snapshot: Snapshot) -> str:
    """What stands in the place of cycles while there is none."""
    manifest = snapshot.subject.manifest
    writes_none = manifest is not None and manifest.launcher.kind is LauncherKind.TORCHRUN
    return "torchrun writes no records" if writes_none else "no record yet"


def _cycles(snapshot: Snapshot) -> tuple[CycleMark, ...] | Unobserved | None:
    one = snapshot.current()
    if one is None or one.cycles is None:
        return None
    if isinstance(one.cycles, Unobserved):
        return one.cycles
    over = outcome_word(one) is not None
    return tuple(_cycle_mark(cycle, over=over) for cycle in one.cycles)


def _cycle_mark(cycle: Cycle, *, over: bool) -> CycleMark:
    label = f"#{cycle.number}" if not cycle.attempt else f"#{cycle.attempt}.{cycle.number}"
    # The record of a cycle whose launcher was killed stays open for ever: in a closed generation it grows no longer.
    is_open = cycle.ended_at is None and cycle.started_at is not None and not over
    return CycleMark(label=label, started_at=cycle.started_at, seconds=cycle.seconds(), is_open=is_open)


def _progress(snapshot: Snapshot, current: CurrentGeneration | None) -> Progress:
    memory, manifest, one = snapshot.memory, snapshot.subject.manifest, snapshot.current()
    steady = memory.steady_seconds(ITERATION_NAME, snapshot.taken_at)
    last = memory.value(ITERATION_NAME)
    log = one.log if one is not None else None
    wall_at, wall_why = _wall(snapshot, current)
    rate = log.iterations_per_second if isinstance(log, LogActivity) else None
    return Progress(
        saved=snapshot.iteration,
        last_saved=last if isinstance(last, int) else None,
        moved_at=snapshot.taken_at - timedelta(seconds=steady) if steady is not None else None,
        moved_seen=memory.changes(ITERATION_NAME) > 0,
        trained=log.iteration if isinstance(log, LogActivity) else log,
        per_second=rate if rate is not None and math.isfinite(rate) and rate >= 0 else None,
        target=manifest.completion.target_iteration if manifest is not None else None,
        wall_at=wall_at,
        wall_why=wall_why,
    )


def _wall(snapshot: Snapshot, current: CurrentGeneration | None) -> tuple[datetime | None, str | None]:
    """When the time limit of the running generation strikes, else why that is not known."""
    if current is None or current.kind not in (MarkKind.RUNNING, MarkKind.UNKNOWN):
        return None, None
    manifest, started_at = snapshot.subject.manifest, current.started_at
    if manifest is None:
        return None, "no manifest"
    if manifest.time_limit_seconds is None:
        return None, "no time limit on record"
    if started_at is None:
        return None, "the start of task 0 is not known"
    try:
        return started_at + timedelta(seconds=manifest.time_limit_seconds), None
    except OverflowError:
        return None, "no time limit that can be"


def _finding_lines(findings: Sequence[Finding], history: History) -> tuple[FindingLine, ...]:
    lines = [_finding_line(finding, history.incidents.get(finding.key)) for finding in findings]
    present = {finding.key for finding in findings}
    for key, incident in history.incidents.items():
        if key not in present and incident.state is IncidentState.FIRING:
            lines.append(_remembered_line(incident))
    return tuple(sorted(lines, key=_urgency))


def _finding_line(finding: Finding, incident: Incident | None) -> FindingLine:
    firing = incident is not None and incident.state is IncidentState.FIRING
    return FindingLine(
        severity=finding.severity,
        detector=escape(finding.detector, _NAME),
        title=escape(finding.title, _TITLE),
        since=parse_time(incident.first_seen_at) if incident is not None and firing else None,
        last_seen_at=None,
        seen=True,
        advice=escape(finding.advice, _TITLE),
    )


def _remembered_line(incident: Incident) -> FindingLine:
    return FindingLine(
        severity=incident.severity,
        detector=escape(incident.detector, _NAME),
        title=escape(incident.title, _TITLE),
        since=parse_time(incident.first_seen_at),
        last_seen_at=parse_time(incident.last_seen_at),
        seen=False,
    )


def _urgency(line: FindingLine) -> tuple[int, bool, float, str]:
    """Worst first; of these what is seen now, then what has been open for longest."""
    since = line.since.timestamp() if line.since is not None else math.inf
    return SEVERITY_ORDER.index(line.severity), not line.seen, since, line.detector


def _action_line(report: ActionReport) -> ActionLine:
    request = report.request
    job = f" {request.array_job_id}" if request.array_job_id is not None else ""
    left_to_owner = report.state not in (ActionState.DONE, ActionState.NOTHING_LEFT)
    return ActionLine(
        title=f"{request.kind.value}{job}",
        state=report.state,
        result=action_result(report),
        command=escape(request.command, _COMMAND) if left_to_owner else "",
    )


def action_result(report: ActionReport) -> str:
    """How an action went, in one line."""
    words = [report.state.value.replace("_", " ")]
    if report.asked or report.gone or report.still_there:
        words.append(f"asked {len(report.asked)}, gone {len(report.gone)}, still there {len(report.still_there)}")
    if report.why:
        words.append(escape(report.why, _REASON))
    return "; ".join(words)


def _blind(snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """Every reason once, with the names of what it keeps from being seen."""
    one = snapshot.current()
    named: list[tuple[str, object]] = [(Source.QUEUE.value, snapshot.queue)]
    named += [(Source.ACCOUNTING.value, snapshot.accounting), (Source.NODES.value, snapshot.nodes)]
    named += [(Source.ITERATION.value, snapshot.iteration), ("verdict", snapshot.verdict), ("hold", snapshot.hold)]
    if one is not None:
        named += [("rendezvous", one.rendezvous), ("closed", one.closed), ("record", one.record)]
        named += [("no_restart", one.no_restart), (Source.CYCLES.value, one.cycles), ("log", one.log)]
    reasons: dict[str, list[str]] = {}
    for source, why in snapshot.sources.unobserved.items():
        reasons.setdefault(why, []).append(source.value)
    for name, answer in named:
        if isinstance(answer, Unobserved) and not isinstance(answer, Unavailable):
            reasons.setdefault(answer.reason, [name])
    if isinstance(snapshot.queue, Queue):
        for job, why in snapshot.queue.doubtful.items():
            reasons.setdefault(why, []).append(f"job {job}")
        if not snapshot.queue.sees_user:
            who = snapshot.subject.user
            reasons.setdefault(f"Slurm lists no job of {who}: none is left, or they are hidden", ["queue"])
    return tuple((", ".join(names), escape(why, _REASON)) for why, names in reasons.items())
