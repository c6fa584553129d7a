"""One pass over one chain for a cron mail (plain text) and for programs (`--json`). Pure.

The first line is the verdict; a clean pass is that line alone. Needs no third-party library but msgspec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvrx_chain.clock import format_time
from nvrx_chain.records.control import ChainOutcome
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionRequest, Finding, Generation, Queue, Severity, Snapshot, SourceReport
from nvrx_watch.ui.marks import SEVERITY_ORDER, chain_word, fold_tasks, hold_in_force, mark_generation, outcome_word
from nvrx_watch.ui.report_model import (
    ActionObject,
    ActionWanted,
    ChainObject,
    FindingObject,
    GenerationObject,
    PassObject,
)
from nvrx_watch.ui.words import encodable, escape

_LONGEST_REASON = 300
_SETTLED = frozenset({ActionState.DONE, ActionState.NOTHING_LEFT})


def render_report(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    reports: Sequence[ActionReport],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    sources: SourceReport,
    notes: Sequence[str] = (),
) -> str:
    """The report without a line break at its end. `skipped` and `broken` map a detector to the reason.

    `notes` are what the pass has to say besides what the sources noted; a note is never printed twice.
    """
    noted = tuple(dict.fromkeys((*sources.notes, *notes)))
    lines = [_verdict(snapshot, findings, broken, sources)]
    settled = [report.request for report in reports if report.state in _SETTLED]
    for finding in worst_first(findings):
        lines += _finding_lines(finding, settled)
    lines += [_action_line(report) for report in reports]
    lines += _unseen_lines(skipped, broken, sources)
    lines += [f"note: {_reason(note)}" for note in noted]
    return "\n".join(lines)


def report_object(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    reports: Sequence[ActionReport],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    sources: SourceReport,
    notes: Sequence[str] = (),
    *,
    exit_code: int,
    pass_seconds: float | None = None,
) -> PassObject:
    """The same as an object that `msgspec.json.encode` takes; `PassObject` says what the fields mean."""
    subject, hold, verdict = snapshot.subject, hold_in_force(snapshot), snapshot.verdict
    directory = subject.run_directory
    return PassObject(
        chain=ChainObject(
            key=encodable(subject.key),
            name=encodable(subject.name),
            user=encodable(subject.user),
            cluster=_maybe(subject.cluster),
            chain_id=_maybe(subject.chain_id),
            run_directory=encodable(str(directory)) if directory is not None else None,
        ),
        taken_at=format_time(snapshot.taken_at),
        exit_code=exit_code,
        state=chain_word(snapshot),
        verdict=verdict.verdict.value if isinstance(verdict, ChainOutcome) else None,
        held_by=encodable(hold.by) if hold is not None else None,
        iteration=snapshot.iteration if isinstance(snapshot.iteration, int) else None,
        findings=tuple(_finding_object(finding) for finding in worst_first(findings)),
        actions=tuple(_action_object(report) for report in reports),
        generations=tuple(_generation_object(snapshot, one) for one in snapshot.generations),
        unobserved={source.value: encodable(why) for source, why in sources.unobserved.items()},
        unavailable={source.value: encodable(why) for source, why in sources.unavailable.items()},
        skipped={encodable(name): encodable(why) for name, why in skipped.items()},
        broken={encodable(name): encodable(why) for name, why in broken.items()},
        notes=tuple(encodable(note) for note in dict.fromkeys((*sources.notes, *notes))),
        pass_seconds=pass_seconds,
    )


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """By severity, then by key, so that two passes print the same order."""
    return sorted(findings, key=lambda finding: (SEVERITY_ORDER.index(finding.severity), finding.key))


def _verdict(snapshot: Snapshot, findings: Sequence[Finding], broken: Mapping[str, str], sources: SourceReport) -> str:
    subject = snapshot.subject
    counts = [
        f"{number} {severity.value}"
        for severity in SEVERITY_ORDER
        if (number := sum(finding.severity is severity for finding in findings))
    ]
    unseen = [source.value for source in sources.unobserved]
    degraded = [f"degraded (could not observe {', '.join(unseen)})"] if unseen else []
    if broken and not degraded:
        degraded = ["degraded"]
    worst = {finding.severity for finding in findings}
    # Information alone leaves a pass clean; a warning does not, though its exit code is 0.
    clean = ["clean"] if not degraded and not worst & {Severity.CRITICAL, Severity.WARNING} else []
    words = [*clean, *counts, *degraded] if Severity.CRITICAL in worst else [*clean, *degraded, *counts]
    without = [source.value for source in sources.unavailable]
    lacking = f" (without {', '.join(without)})" if without else ""
    return f"{escape(subject.name, 80)} of {escape(subject.user, 80)}: {', '.join(words)}{lacking}"


def _finding_lines(finding: Finding, settled: Sequence[ActionRequest]) -> Iterator[str]:
    yield f"{finding.severity.value.upper()} {escape(finding.detector, 80)}: {escape(finding.title)}"
    for detail in finding.details:
        yield f"    {escape(detail)}"
    if finding.advice:
        yield f"    do: {escape(finding.advice)}"
    # What has been done already is not for the owner to do.
    if finding.action is not None and finding.action not in settled:
        yield f"    by hand, as the owner: {escape(finding.action.command)}"


def _action_line(report: ActionReport) -> str:
    request = report.request
    job = f" {request.array_job_id}" if request.array_job_id is not None else ""
    parts = [report.state.value.replace("_", " ")]
    if report.state not in (ActionState.OBSERVE_ONLY, ActionState.NOTHING_LEFT):
        parts += [
            f"{word} {_specs(specs)}"
            for word, specs in (("asked", report.asked), ("gone", report.gone), ("still there", report.still_there))
            if specs
        ]
    if report.why:
        parts.append(_reason(report.why))
    return f"action {request.kind.value}{job}: {'; '.join(parts)}"


def _specs(specs: Sequence[str]) -> str:
    shown = ", ".join(escape(spec, 40) for spec in specs[:20])
    return shown if len(specs) <= 20 else f"{shown} and {len(specs) - 20} more"


def _unseen_lines(skipped: Mapping[str, str], broken: Mapping[str, str], sources: SourceReport) -> Iterator[str]:
    for source, why in sources.unobserved.items():
        yield f"could not observe {source.value}: {_reason(why)}"
    for name, why in broken.items():
        yield f"detector {escape(name, 80)} broke: {_reason(why)}"
    if skipped and sources.unobserved:
        # The reasons are those above; which detectors were blind is what a reader must know before trusting silence.
        yield f"not judged for that: {', '.join(escape(name, 80) for name in sorted(skipped))}"


def _reason(text: str) -> str:
    return escape(text, _LONGEST_REASON)


def _maybe(text: str | None) -> str | None:
    return encodable(text) if text is not None else None


def _finding_object(finding: Finding) -> FindingObject:
    return FindingObject(
        detector=encodable(finding.detector),
        severity=finding.severity,
        key=encodable(finding.key),
        title=encodable(finding.title),
        details=tuple(encodable(detail) for detail in finding.details),
        advice=encodable(finding.advice),
        array_job_ids=finding.array_job_ids,
        action=_wanted(finding.action) if finding.action is not None else None,
    )


def _wanted(request: ActionRequest) -> ActionWanted:
    return ActionWanted(
        kind=request.kind,
        array_job_id=request.array_job_id,
        why=encodable(request.why),
        command=encodable(request.command),
    )


def _action_object(report: ActionReport) -> ActionObject:
    return ActionObject(
        detector=encodable(report.detector),
        kind=report.request.kind,
        array_job_id=report.request.array_job_id,
        state=report.state,
        asked=tuple(encodable(spec) for spec in report.asked),
        gone=tuple(encodable(spec) for spec in report.gone),
        still_there=tuple(encodable(spec) for spec in report.still_there),
        why=encodable(report.why),
        command=encodable(report.request.command),
    )


def _generation_object(snapshot: Snapshot, one: Generation) -> GenerationObject:
    mark = mark_generation(snapshot, one)
    seen = isinstance(snapshot.queue, Queue) and one.array_job_id not in snapshot.queue.doubtful
    rows = snapshot.queue.rows(one.array_job_id) if isinstance(snapshot.queue, Queue) else ()
    return GenerationObject(
        array_job_id=one.array_job_id,
        sequence=one.sequence,
        state=mark.kind,
        word=mark.word,
        outcome=outcome_word(one),
        tasks={fold.state: fold.count for fold in fold_tasks(rows)} if seen else None,
        cycles=len(one.cycles) if isinstance(one.cycles, Sequence) else None,
    )
