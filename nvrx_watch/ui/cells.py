"""Text measured in the cells of a terminal, where a wide character takes two: cut, padded, shortened. Pure.

Imports rich, so only the frame may use it.
"""

from __future__ import annotations

import msgspec
from rich.cells import cell_len

CUT = "…"


class Span(msgspec.Struct, frozen=True):
    """A piece of a line and its style, in rich's words. The text is escaped and has no line break."""

    text: str
    style: str = ""

    def width(self) -> int:
        """In cells."""
        return cell_len(self.text)


Spans = tuple[Span, ...]


def spans_width(spans: Spans) -> int:
    """The width of a line in cells."""
    return sum(span.width() for span in spans)


def clip(text: str, width: int) -> str:
    """At most `width` cells of the text, with a mark where it was cut."""
    if cell_len(text) <= width:
        return text
    return _head(text, width - 1) + CUT if width > 0 else ""


def shorten_middle(text: str, width: int) -> str:
    """As `clip`, but keeps both ends: of a path the last part says most."""
    if cell_len(text) <= width:
        return text
    if width <= 2:
        return clip(text, width)
    front = (width - 1) // 3
    tail = _head(text[::-1], width - 1 - front)[::-1]
    return _head(text, front) + CUT + tail


def clip_spans(spans: Spans, width: int) -> Spans:
    """At most `width` cells of a line; styles are kept."""
    if spans_width(spans) <= width:
        return spans
    kept: list[Span] = []
    left = width
    for span in spans:
        wide = span.width()
        # One cell must stay for the mark, whatever comes after.
        if wide < left:
            kept.append(span)
            left -= wide
            continue
        text = _head(span.text, left - 1) + CUT if left > 0 else ""
        return (*kept, Span(text, span.style))
    return tuple(kept)


def pad(text: str, width: int) -> str:
    """Exactly `width` cells."""
    cut = clip(text, width)
    return cut + " " * (width - cell_len(cut))


def _head(text: str, width: int) -> str:
    taken, used = [], 0
    for character in text:
        used += cell_len(character)
        if used > width:
            break
        taken.append(character)
    return "".join(taken)
