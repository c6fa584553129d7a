"""Text that somebody else wrote, made fit for one line of a message, a log or a record. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Controls, marks that reorder or hide text, lone surrogates of undecodable file names, line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain(text: str, longest: int) -> str:
    """The text on one line, with everything spelled out that no encoder takes or no reader sees, cut at `longest`."""
    cut = text[:longest]
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(_spell(each) if unicodedata.category(each) in _UNSAFE else each for each in cut)
    if len(text) <= longest and len(cut) <= longest:
        return cut
    return cut[: max(0, longest - 3)] + "..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Which known name somebody may have meant, None when none is near."""
    import difflib  # late: only a message about a mistake needs it

    found = difflib.get_close_matches(name[:100], known, n=1)
    return found[0] if found else None


def _spell(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
