"""Text of others on one line, whatever is in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.plain_text import plain


def test_what_steers_a_terminal_or_hides_is_spelled_out() -> None:
    assert plain("a\nb\x1b[2J\u202e\u200b\ud800\x9b", 100) == "a\\x0ab\\x1b[2J\\u202e\\u200b\\ud800\\x9b"
    assert plain("Grüße 训练", 100) == "Grüße 训练"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert plain("x" * 10, 10) == "x" * 10
    assert plain("x" * 11, 10) == "xxxxxxx..."
    assert plain("\n" * 4, 10) == "\\x0a\\x0..."


@given(st.text(alphabet=st.characters()), st.integers(3, 50))
def test_any_text_becomes_one_bounded_line(text: str, longest: int) -> None:
    line = plain(text, longest)
    assert len(line) <= longest
    assert len(line.splitlines()) <= 1
    line.encode("utf-8")
