from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nvrx_watch.ui.cells import Span, clip, clip_spans, pad, shorten_middle, spans_width
from nvrx_watch.ui.words import escape

TEXTS = st.text(max_size=60).map(escape)


def test_a_wide_character_is_never_cut_in_half() -> None:
    assert clip("漢字漢字", 6) == "漢字…"
    assert clip("漢字漢字", 4) == "漢…"


def test_a_long_path_keeps_its_last_part() -> None:
    shown = shorten_middle("/scratch/projects/physics/run 17", 20)
    assert cell_len(shown) == 20
    assert shown.startswith("/scr")
    assert shown.endswith("run 17")


def test_a_style_ends_where_the_line_is_cut() -> None:
    assert clip_spans((Span("abc", "red"), Span("defg", "bold")), 5) == (Span("abc", "red"), Span("d…", "bold"))


@given(TEXTS, st.integers(0, 40))
def test_cut_text_is_never_wider_than_asked(text: str, width: int) -> None:
    assert cell_len(clip(text, width)) <= width
    assert cell_len(shorten_middle(text, width)) <= width
    assert cell_len(pad(text, width)) == width


@given(st.lists(TEXTS, max_size=5), st.integers(0, 40))
def test_a_cut_line_is_never_wider_than_asked(texts: list[str], width: int) -> None:
    spans = tuple(Span(text) for text in texts)
    assert spans_width(clip_spans(spans, width)) <= width
