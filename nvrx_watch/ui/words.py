"""Words for people: durations, rates, and text of others made safe for a terminal, a mail and a JSON object. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime

from nvrx_watch.plain_text import plain

UNKNOWN = "?"
"""Stands for what could not be looked at. The reason is said once, elsewhere."""

_LONGEST = 2000
# How wide a terminal draws an unassigned or a private character is anybody's guess.
_NO_KNOWN_WIDTH = frozenset({"Cn", "Co"})
# These change the width of the character before them, in some terminals and not in others.
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def escape(text: str, longest: int = _LONGEST) -> str:
    """The text of others with everything spelled out that could steer a terminal, cut at `longest` characters."""
    shown = plain(text, longest)
    if shown.isascii():
        return shown
    return "".join(f"\\u{ord(one):04x}" if _has_no_known_width(one) else one for one in shown)


def encodable(text: str) -> str:
    """The text without lone surrogates, which no encoder takes; everything else as it is."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def render_rate(per_second: float) -> str:
    """Iterations per second, or seconds per iteration where that is the larger number."""
    if not math.isfinite(per_second) or per_second < 0:
        return UNKNOWN
    if per_second >= 1:
        return f"{per_second:.3g}/s"
    slow = 1 / per_second if per_second > 0 else math.inf
    return f"{slow:.3g} s each" if math.isfinite(slow) and slow < 1e6 else "0/s"


def seconds_since(then: datetime, now: datetime) -> float:
    """How long ago that was; a time in the future is just now."""
    return max(0.0, (now - then).total_seconds())


def _has_no_known_width(character: str) -> bool:
    return unicodedata.category(character) in _NO_KNOWN_WIDTH or bool(_VARIATION_SELECTORS.match(character))
