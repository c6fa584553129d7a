"""Text of others on one line, whatever is in it."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.plain_text import json_line, plain


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


def test_json_keeps_its_value_and_loses_what_steers_a_terminal() -> None:
    value = {"by": "a\x9b31m\x7f\u2028\u202e\U000e0001 Grüße"}
    line = json_line(msgspec.json.encode(value))
    assert line == '{"by":"a\\u009b31m\\u007f\\u2028\\u202e\\udb40\\udc01 Grüße"}'
    assert json.loads(line) == value


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_any_object_is_one_line_of_json_with_the_same_value(value: dict[str, object]) -> None:
    line = json_line(msgspec.json.encode(value))
    assert len(line.splitlines()) == 1
    assert json.loads(line) == value
