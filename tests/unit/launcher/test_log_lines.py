"""Lines of a worker: only newlines end them, characters stay whole, and nothing that was written is missing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher import log_lines
from nvrx_chain.launcher.log_lines import CUT, LineSplitter, rank_prefix


def read_all(chunks: list[bytes], prefix: bytes = b"") -> bytes:
    splitter = LineSplitter(prefix)
    return b"".join(splitter.feed(chunk) for chunk in chunks) + splitter.finish()


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("rank", "world", "prefix"),
    [(0, 1, b"0: "), (3, 8, b"3: "), (3, 10, b"3: "), (3, 11, b" 3: "), (7, 1000, b"  7: "), (7, 1001, b"   7: ")],
)
def test_the_rank_is_aligned_for_the_highest_one(rank: int, world: int, prefix: bytes) -> None:
    assert rank_prefix(rank, world) == prefix


def test_a_carriage_return_and_a_line_separator_end_no_line() -> None:
    bar = b"1%\r50%\r100%\n" + "a\u2028b\x85c\x0bd\n".encode()
    assert read_all([bar], b"0: ") == b"0: 1%\r50%\r100%\n0: " + "a\u2028b\x85c\x0bd\n".encode()


def test_a_last_line_without_a_newline_gets_one_and_a_whole_one_gets_no_second() -> None:
    assert read_all([b"a\nb"], b"0: ") == b"0: a\n0: b\n"
    assert read_all([b"a\n"], b"0: ") == b"0: a\n"
    assert read_all([b""], b"0: ") == b""


def test_empty_lines_stay_and_get_their_prefix() -> None:
    assert read_all([b"\n\na\n\n"], b"0: ") == b"0: \n0: \n0: a\n0: \n"


def test_nul_and_invalid_bytes_are_shown() -> None:
    assert read_all([b"a\0b\xffc\n"]) == "a<NUL>b\ufffdc\n".encode()


def test_a_character_that_never_ends_is_shown_as_one_that_is_broken() -> None:
    assert read_all(["é".encode()[:1]]) == "\ufffd\n".encode()
    assert read_all(["x€".encode()[:3], b"\nnext\n"]) == "x\ufffd\nnext\n".encode()


@given(st.text(), st.lists(st.integers(0, 400)))
def test_text_arrives_as_it_was_written_however_it_is_cut(text: str, places: list[int]) -> None:
    data = text.replace("\0", "").encode(errors="ignore")
    whole = data if data.endswith(b"\n") or not data else data + b"\n"
    assert read_all(cut_at(data, places)) == whole


@given(st.binary(), st.lists(st.integers(0, 400)))
def test_any_bytes_become_the_same_valid_text_however_they_are_cut(data: bytes, places: list[int]) -> None:
    found = read_all(cut_at(data, places), b"7: ")
    assert found == read_all([data], b"7: ")
    lines = found.decode().split("\n")
    assert lines.pop() == ""
    assert all(line.startswith("7: ") for line in lines)
    expected = data.replace(b"\0", b"<NUL>").decode(errors="replace").removesuffix("\n").split("\n") if data else []
    assert [line[3:] for line in lines] == expected


def test_a_line_of_a_mebibyte_stays_one_line() -> None:
    line = b"x" * (1 << 20) + b"\n"
    assert read_all(cut_at(line * 2, list(range(0, 1 << 21, 65536))), b"0: ") == (b"0: " + line) * 2


def test_a_line_beyond_the_bound_is_cut_between_characters_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LINE_BYTES", 10)
    text = "é" * 13
    found = read_all([bytes([byte]) for byte in text.encode()] + [b"\nshort\n"], b"0: ")
    lines = found.decode().splitlines()
    assert lines == ["0: " + "é" * 5 + CUT.decode(), "0: " + "é" * 5 + CUT.decode(), "0: " + "é" * 3, "0: short"]


def test_a_stream_without_newlines_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LINE_BYTES", 1000)
    splitter = LineSplitter()
    out = b"".join(splitter.feed(b"x" * 77) for _ in range(1000))
    assert splitter._held_bytes <= 1000
    assert (out + splitter.finish()).replace(CUT, b"").replace(b"\n", b"") == b"x" * 77000
