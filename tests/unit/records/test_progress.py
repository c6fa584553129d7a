"""The checkpoint tracker says odd things; only a plain number is an iteration, the rest is unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.progress import UNREADABLE, parse_iteration, read_iteration, recorded_iteration


@given(st.integers(min_value=0, max_value=10**15 - 1))
def test_a_number_is_read_back(iteration: int) -> None:
    assert parse_iteration(str(iteration).encode()) == iteration


@pytest.mark.parametrize(
    ("content", "iteration"),
    [(b"0", 0), (b"100\n", 100), (b" 100 ", 100), (b"\r\n100\r\n", 100), (b"000100", 100)],
)
def test_white_space_and_zeros_around_a_number_do_not_matter(content: bytes, iteration: int) -> None:
    assert parse_iteration(content) == iteration


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"release",
        b"100\n200",
        b"1e3",
        b"-5",
        b"+5",
        b"1.0",
        b"0x10",
        b"1_000",
        "٣".encode(),
        b"9" * 16,
        b"9" * 5000,
        b"iter_0000100",
        b"\xff\xfe1\x000\x00",
        b"100\x00",
    ],
)
def test_what_is_no_plain_number_is_unknown_and_neither_zero_nor_absent(content: bytes) -> None:
    assert isinstance(parse_iteration(content), Unobserved)


@given(st.binary(max_size=100))
def test_no_content_makes_the_parser_raise(content: bytes) -> None:
    found = parse_iteration(content)
    assert isinstance(found, Unobserved) or found >= 0


def test_absent_is_none_and_unreadable_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "latest checkpointed & iteration.txt"
    assert read_iteration(path) is None
    assert read_iteration(tmp_path / "gone" / "latest.txt") is None
    path.write_text("42\n")
    assert read_iteration(path) == 42
    path.write_bytes(b"7" * 5000)
    assert isinstance(read_iteration(path), Unobserved)


@pytest.mark.timeout(30)
def test_a_fifo_in_place_of_the_tracker_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest.txt")
    assert isinstance(read_iteration(tmp_path / "latest.txt"), Unobserved)


def test_a_record_tells_no_checkpoint_from_an_unreadable_one() -> None:
    assert recorded_iteration(None) is None
    assert recorded_iteration(0) == 0
    assert recorded_iteration(Unobserved("x")) == UNREADABLE
