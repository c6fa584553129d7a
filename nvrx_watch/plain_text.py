"""Text that somebody else wrote, made fit for one line of a message, a log or a record. Pure."""

from __future__ import annotations

import unicodedata

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


def _spell(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
