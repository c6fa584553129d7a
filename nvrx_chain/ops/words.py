"""Words for people: times, and text of others made safe for a terminal. Pure."""

from __future__ import annotations

import re
from datetime import timezone

from nvrx_chain.clock import parse_time

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")


def render_time(text: str) -> str:
    """A time of a record to the second; text that is none stays as it is."""
    at = parse_time(text)
    return text if at is None else at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def render_safely(text: str, *, keep_colours: bool = False) -> str:
    """The text with control characters spelled out: a file name or a log must not steer the reader's terminal."""
    if not keep_colours:
        return _CONTROL.sub(_spell_out, text)
    plain = _COLOUR.split(text)
    colours = _COLOUR.findall(text)
    spelled = [_CONTROL.sub(_spell_out, part) for part in plain]
    return "".join(part + colour for part, colour in zip(spelled, [*colours, ""], strict=True))


def _spell_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
