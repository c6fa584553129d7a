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


def json_line(content: bytes) -> str:
    """JSON in UTF-8 on one line for a terminal and for a reader of lines: the same value, and nothing unseen in it.

    JSON lets stand what is from DEL on: the C1 controls that steer a terminal, and U+2028, where some readers split.
    """
    text = content.decode()
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(each) if unicodedata.category(each) in _UNSAFE else each for each in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Which known name somebody may have meant, None when none is near."""
    import difflib  # late: only a message about a mistake needs it

    found = difflib.get_close_matches(name[:100], known, n=1)
    return found[0] if found else None


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _spell(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
