"""How a notice reads to a person. Pure."""

from __future__ import annotations

from nvrx_watch.history_model import Notice, NoticeKind
from nvrx_watch.plain_text import plain

LONGEST_LINE = 500
MOST_DETAILS = 20
_LONGEST_NAME = 80


def render_summary(notice: Notice, longest: int = LONGEST_LINE) -> str:
    """One line: what happened to which chain."""
    finding = notice.finding
    title = finding.title if finding is not None else notice.incident.title
    word = "resolved" if notice.kind is NoticeKind.RESOLVE else notice.incident.severity.value.upper()
    still = "still " if notice.repeated else ""
    return plain(f"[{still}{word}] {plain(notice.subject.name, _LONGEST_NAME)}: {title}", longest)


def render_details(notice: Notice) -> tuple[str, ...]:
    """Further lines: details, what to do, the command, and which chain it is."""
    lines: list[str] = []
    finding = notice.finding
    if finding is not None:
        lines.extend(finding.details[:MOST_DETAILS])
        if finding.advice:
            lines.append(f"What to do: {finding.advice}")
        if finding.action is not None and finding.action.command:
            lines.append(f"Command: {finding.action.command}")
    lines.append(f"Detector: {notice.incident.detector}, since {notice.incident.first_seen_at}")
    lines.append(f"Chain: {render_chain(notice)}")
    return tuple(plain(line, LONGEST_LINE) for line in lines)


def render_text(notice: Notice) -> str:
    """Summary and details."""
    return "\n".join((render_summary(notice), *render_details(notice)))


def render_chain(notice: Notice) -> str:
    """Which chain, for somebody who does not know it."""
    subject = notice.subject
    words = [subject.name, f"of {subject.user}"]
    if subject.cluster:
        words.append(f"on {subject.cluster}")
    if subject.run_directory is not None:
        words.append(f"in {subject.run_directory}")
    return plain(" ".join(words), LONGEST_LINE)
