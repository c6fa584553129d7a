"""The screen as lines of text that fit: never wider than `width`, never more than `height`, readable without colour.

Each row has a rank; where height is short, the rows of the highest ranks go first. Pure but for rich's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from nvrx_watch.ui.cells import CUT, Span, Spans, clip_spans
from nvrx_watch.ui.rows import Rank, Row
from nvrx_watch.ui.screen_model import ScreenModel
from nvrx_watch.ui.sections import chain_rows, cycle_rows, footer_rows, generation_rows, header_rows, progress_rows
from nvrx_watch.ui.worries import action_rows, blind_rows, finding_rows, say_how_many_more

_LOW = 20
_FIXED_GLYPHS = str.maketrans({"…": "~", "━": "="})
"""What a terminal without UTF-8 shows in place of the frame's own marks; each stays one cell wide."""


def render_frame(
    model: ScreenModel, *, width: int, height: int, color: bool, encoding: str = "utf-8"
) -> RenderableType:
    """The frame for rich. Text of others goes in as plain text, never as markup."""
    lines = []
    for spans in frame_lines(model, width, height):
        line = Text(no_wrap=True, overflow="crop", end="")
        for span in spans:
            line.append(_encoded(span.text, encoding), style=span.style if color else "")
        lines.append(line)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def render_text(model: ScreenModel, width: int, height: int, *, encoding: str = "utf-8") -> str:
    """The frame as plain text without escape codes; no line break at its end."""
    lines = ("".join(span.text for span in spans).rstrip() for spans in frame_lines(model, width, height))
    return "\n".join(_encoded(line, encoding) for line in lines)


def frame_lines(model: ScreenModel, width: int, height: int) -> list[Spans]:
    """The lines of the frame, top to bottom. A size below one cell counts as one."""
    width, height = max(1, width), max(1, height)
    # A low screen has no room for second lines; each line then says itself that it was cut.
    most = 2 if height >= _LOW else 1
    middle = [*chain_rows(model, width, most), *generation_rows(model, width, most), *cycle_rows(model, width)]
    sections = [
        header_rows(model, width, most),
        middle,
        progress_rows(model, width, most),
        finding_rows(model, width, height, most),
        action_rows(model),
        [*blind_rows(model, width, most), *footer_rows(model)],
    ]
    rows = say_how_many_more(model, _fit(_separated(sections), height), width)
    return [clip_spans(row.spans, width) for row in rows]


def _separated(sections: Iterable[Sequence[Row]]) -> list[Row]:
    """The sections with blank rows between them, the first to go when height is short."""
    rows: list[Row] = []
    for section in sections:
        if section and rows:
            rows.append(Row(rank=Rank.BLANK, spans=()))
        rows.extend(section)
    return rows


def _fit(rows: Sequence[Row], height: int) -> list[Row]:
    """The `height` rows of the lowest rank, in the order given; of equal ones the upper ones stay."""
    kept = set(sorted(range(len(rows)), key=lambda index: (rows[index].rank, index))[:height])
    ends_early = {index - 1 for index, row in enumerate(rows) if row.continues and index not in kept}
    return [_cut(row) if index in ends_early else row for index, row in enumerate(rows) if index in kept]


def _cut(row: Row) -> Row:
    return replace(row, spans=(*row.spans, Span(f" {CUT}")))


def _encoded(text: str, encoding: str) -> str:
    if encoding.lower().replace("-", "") == "utf8" or text.isascii():
        return text
    return text.translate(_FIXED_GLYPHS).encode(encoding, "replace").decode(encoding)
