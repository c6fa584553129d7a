"""docs/detectors.md, `--explain` and `--list-detectors`, all from the detectors themselves. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

from nvrx_watch.detectors.detector import Check, Detector
from nvrx_watch.detectors.registry import find
from nvrx_watch.thresholds import WatchThresholds

_HEAD = """\
# Detectors

What `nvrx-watch` finds, one section per detector. This page is made from the detectors; a test compares the two.
`nvrx-watch --list-detectors` prints the list, `nvrx-watch --explain NAME` one section, `--disable NAME,NAME` leaves
some out.

A detector is skipped while a source that it needs could not be observed: unknown is never gone, and never fine either.
A finding has one of three severities; only a critical one turns the exit code to 2. The severity in the table is the
highest that the detector gives. Thresholds stand under `[thresholds]` of the configuration file, durations in seconds.
"""

_PACKAGE = "nvrx_watch.detectors"


def thresholds_of(check: Check) -> dict[str, float | int]:
    """The thresholds that a check reads, with their defaults, in the order of the settings.

    They are taken from its code and that of the functions of this package that it names: a list kept by hand would be
    forgotten.
    """
    named = _names(check, set()) if isinstance(check, FunctionType) else set()
    defaults = WatchThresholds()
    return {field: getattr(defaults, field) for field in WatchThresholds.__struct_fields__ if field in named}


def _names(function: FunctionType, seen: set[FunctionType]) -> set[str]:
    """Every name that a function mentions, and those of the detectors' functions that it may call."""
    if function in seen:
        return set()
    seen.add(function)
    found = set(_code_names(function.__code__))
    for name in tuple(found):
        called = function.__globals__.get(name)
        if isinstance(called, FunctionType) and called.__module__.startswith(_PACKAGE):
            found |= _names(called, seen)
    return found


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        # Generator expressions and lambdas are code of their own.
        if isinstance(constant, CodeType):
            yield from _code_names(constant)


def render_detectors_page(detectors: Sequence[Detector]) -> str:
    """The whole of docs/detectors.md."""
    parts = [_HEAD, _render_table(detectors)]
    parts.extend(_render_section(detector) for detector in detectors)
    return "\n".join(parts)


def _render_table(detectors: Sequence[Detector]) -> str:
    lines = ["| Detector | Severity | Needs |", "|---|---|---|"]
    for one in detectors:
        lines.append(f"| [`{one.name}`](#{one.name}) | {one.severity.value} | {_needs(one)} |")
    return "\n".join([*lines, ""])


def _render_section(detector: Detector) -> str:
    lines = [
        f"## {detector.name}",
        "",
        f"- **Fires when** {_sentence(detector.fires)}",
        f"- **Stays quiet when** {_sentence(detector.quiet)}",
        f"- **Severity**: {detector.severity.value}. **Needs**: {_needs(detector)}.",
        f"- **Thresholds**: {_thresholds(detector, mark='`')}",
        f"- **What to do**: {_sentence(detector.todo)}",
        "",
    ]
    return "\n".join(lines)


def render_explanation(name: str) -> str:
    """What `--explain NAME` prints, without a last line end. Raises UsageError for a name that no detector has."""
    return explain(find(name))


def explain(detector: Detector) -> str:
    """The section of one detector as plain text of at most 80 columns."""
    parts = [
        ("Fires when", _sentence(detector.fires)),
        ("Quiet when", _sentence(detector.quiet)),
        ("Needs", _needs(detector)),
        ("Thresholds", _thresholds(detector, mark="")),
        ("What to do", _sentence(detector.todo)),
    ]
    lines = [f"{detector.name} ({detector.severity.value})", ""]
    for label, text in parts:
        lines.append(textwrap.fill(text, width=80, initial_indent=f"{label + ':':<12} ", subsequent_indent=" " * 13))
    return "\n".join(lines)


def render_list(detectors: Sequence[Detector]) -> str:
    """What `--list-detectors` prints: one line each, without a last line end."""
    name = max(len(one.name) for one in detectors)
    severity = max(len(one.severity.value) for one in detectors)
    lines = [
        f"{one.name:<{name}}  {one.severity.value:<{severity}}  "
        + textwrap.shorten(one.fires, width=max(20, 118 - name - severity), placeholder=" ...")
        for one in detectors
    ]
    return "\n".join(lines)


def detectors_object(detectors: Sequence[Detector]) -> dict[str, object]:
    """What both print with `--json`: everything about each of them, as data."""
    return {
        "schema": 1,
        "detectors": [
            {
                "name": one.name,
                "severity": one.severity.value,
                "fires": one.fires,
                "quiet": one.quiet,
                "needs": sorted(source.value for source in one.needs),
                "thresholds": thresholds_of(one.check),
                "todo": one.todo,
            }
            for one in detectors
        ],
    }


def _needs(detector: Detector) -> str:
    return ", ".join(sorted(source.value for source in detector.needs)) or "nothing"


def _thresholds(detector: Detector, *, mark: str) -> str:
    found = thresholds_of(detector.check)
    return ", ".join(f"{mark}{name} = {_number(value)}{mark}" for name, value in found.items()) or "none"


def _number(value: float | int) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _sentence(text: str) -> str:
    stripped = text.strip()
    return stripped if stripped.endswith((".", "!", "?")) else f"{stripped}."
