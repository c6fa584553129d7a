"""Words of ranks: whatever comes in is a word or a BadWord."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher.hang_limits import Timeouts
from nvrx_chain.launcher.rank_words import (
    BadWord,
    Committed,
    Heartbeat,
    Now,
    Start,
    Use,
    parse_word,
    render_refused,
    render_timeouts,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NEARLY = st.fixed_dictionaries(
    {"do": st.sampled_from(["hello", "start", "end", "now", "mark", "committed", "ask", "use", "calculate", "dump"])},
    optional={"name": JSON, "open": JSON, "iteration": JSON, "action": JSON, "why": JSON, "timeouts": JSON},
)


@given(st.binary(max_size=200) | (JSON | NEARLY).map(lambda value: json.dumps(value).encode()))
def test_anything_at_all_is_a_word_or_a_bad_word(line: bytes) -> None:
    try:
        word = parse_word(line)
    except BadWord:
        return
    if isinstance(word, Start):
        assert 0 < len(word.name) <= 100


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b'{"do":"heartbeat"}', Heartbeat()),
        (b'{"do": "heartbeat", "later": 1}', Heartbeat()),
        (b'{"do":"start","name":"check pointing"}', Start("check pointing")),
        (b'{"do":"now","open":["a"]}', Now(("a",))),
        (b'{"do":"committed","iteration":-1}', Committed(-1)),
        (b'{"do":"use","timeouts":{"heartbeat":null,"sections":{"a":2}}}', Use(Timeouts(sections={"a": 2.0}))),
    ],
)
def test_words_are_understood(line: bytes, word: object) -> None:
    assert parse_word(line) == word


@pytest.mark.parametrize("seconds", ["0", "-1", "1e999", '"3"', "true"])
@pytest.mark.parametrize("place", ['"heartbeat":{}', '"sections":{{"a":{}}}', '"warmup":{{"a":{}}}'])
def test_a_limit_that_is_none_is_refused(place: str, seconds: str) -> None:
    with pytest.raises(BadWord):
        parse_word(('{"do":"use","timeouts":{' + place.format(seconds) + "}}").encode())


def test_answers_are_one_line_of_json() -> None:
    timeouts = render_timeouts(Timeouts(heartbeat=3.0, sections={"a\nb": 2.0}))
    assert timeouts.count(b"\n") == 1
    assert json.loads(timeouts)["timeouts"]["sections"] == {"a\nb": 2.0}
    assert json.loads(render_refused('why "not"\n')) == {"refused": 'why "not"\n'}
