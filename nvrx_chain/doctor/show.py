"""The doctor's report as lines for people. Pure."""

from __future__ import annotations

from nvrx_chain.doctor.model import Grade, Report

_SPELLED = {Grade.OK: "ok", Grade.UNKNOWN: "unknown", Grade.WARN: "warn", Grade.BAD: "BAD"}


def render_report(report: Report) -> list[tuple[Grade, str]]:
    """Each line with its grade, which the caller may colour; the last line counts."""
    wide = max((len(line.check) for line in report.lines), default=0)
    far = max((len(line.place) for line in report.lines), default=0)
    lines: list[tuple[Grade, str]] = []
    for line in report.lines:
        lines.append((line.grade, f"{_SPELLED[line.grade]:<8}{line.check:<{wide}}  {line.place:<{far}}  {line.seen}"))
        if line.mend:
            lines.append((line.grade, f"{'':<{8 + wide + far + 4}}-> {line.mend}"))
    counted = ", ".join(f"{report.counts[grade.value]} {grade.value}" for grade in Grade)
    lines.append((report.grade, f"{counted}; {report.run_directory}; {report.seconds:.1f} s"))
    return lines
