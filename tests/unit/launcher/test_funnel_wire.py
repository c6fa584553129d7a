"""Frames of log lines: what one end proves the other believes once, in order, in this connection, and in bounds."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher.funnel_wire import (
    FRAME_BYTES,
    HEADER,
    BadFrame,
    Frame,
    FrameReader,
    FrameSeal,
    Word,
    parse_hello,
    parse_nonce,
    split_lines,
)
from nvrx_chain.launcher.log_settings import LAST_CYCLE
from nvrx_chain.launcher.wire import End, new_nonce


def pair(other_secret: str = "s", guest_nonce: str = "g") -> tuple[FrameSeal, FrameSeal]:
    host = FrameSeal("s", End.HOST, host_nonce="h", guest_nonce="g")
    guest = FrameSeal(other_secret, End.GUEST, host_nonce="h", guest_nonce=guest_nonce)
    return host, guest


def wire(seal: FrameSeal, *frames: Frame) -> bytes:
    return b"".join(header + content for header, content in map(seal.encode, frames))


LINES = Frame(word=Word.APP, cycle=3, seq=1, content=b"0: a\n0: b\n")


def test_frames_arrive_however_the_stream_is_cut() -> None:
    host, guest = pair()
    frames = [LINES, Frame(word=Word.LAUNCHER, seq=2, content=b""), Frame(word=Word.FIN, seq=2)]
    reader = FrameReader(host)
    found = [frame for byte in wire(guest, *frames) for frame in reader.feed(bytes([byte]))]
    assert found == frames


def test_another_secret_a_repeated_a_missing_and_a_returned_frame_prove_nothing() -> None:
    host, stranger = pair(other_secret="t")
    with pytest.raises(BadFrame):
        list(FrameReader(host).feed(wire(stranger, LINES)))
    host, guest = pair()
    data = wire(guest, LINES)
    with pytest.raises(BadFrame):
        list(FrameReader(host).feed(data + data))
    host, guest = pair()
    guest.encode(LINES)
    with pytest.raises(BadFrame):
        list(FrameReader(host).feed(wire(guest, LINES)))
    host, _ = pair()
    with pytest.raises(BadFrame):
        list(FrameReader(host).feed(wire(host, LINES)))
    host, guest = pair(guest_nonce=new_nonce())
    with pytest.raises(BadFrame):
        list(FrameReader(host).feed(wire(guest, LINES)))


@given(st.integers(0, 60), st.integers(1, 255))
def test_no_byte_can_be_changed(place: int, difference: int) -> None:
    host, guest = pair()
    data = bytearray(wire(guest, LINES))
    place %= len(data)
    data[place] ^= difference
    with pytest.raises(BadFrame):
        # A longer length waits for bytes: the next frame brings them.
        list(FrameReader(host, FRAME_BYTES).feed(bytes(data) + b"\0" * FRAME_BYTES))


def test_a_frame_of_an_unknown_kind_or_cycle_is_refused() -> None:
    host, guest = pair()
    with pytest.raises(BadFrame, match="no cycle"):
        list(FrameReader(host).feed(wire(guest, Frame(word=Word.APP, cycle=LAST_CYCLE + 1, seq=1))))
    host, guest = pair()
    with pytest.raises(BadFrame, match="no kind"):
        list(FrameReader(host).feed(wire(guest, Frame(word=99, seq=1))))  # type: ignore[arg-type]


def test_a_frame_that_is_too_long_is_refused_before_it_has_come() -> None:
    host, _ = pair()
    with pytest.raises(BadFrame, match="too long"):
        list(FrameReader(host).feed(HEADER.pack(Word.APP, 0, 1, FRAME_BYTES)))
    with pytest.raises(BadFrame, match="too long"):
        list(FrameReader(host, FRAME_BYTES).feed(HEADER.pack(Word.APP, 0, 1, FRAME_BYTES + 1)))


@given(st.binary(max_size=300))
def test_no_bytes_pass_or_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(BadFrame):
        assert not list(FrameReader(pair()[0]).feed(data))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"node_id": 1, "incarnation": ""}', b"\xff"])
def test_a_greeting_that_makes_no_sense_is_refused(content: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_hello(Frame(word=Word.HELLO, content=content))
    with pytest.raises(BadFrame):
        parse_hello(LINES)


@pytest.mark.parametrize("line", [b"", b"\n", b"x" * 33, b"../" * 10 + b"xy\n", b"\xff" * 32 + b"\n"])
def test_a_nonce_is_letters_and_digits(line: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_nonce(line)


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"") + b"\n")), st.integers(1, 50))
def test_lines_are_split_between_lines_only(lines: list[bytes], limit: int) -> None:
    pieces = list(split_lines(b"".join(lines), limit))
    assert b"".join(pieces) == b"".join(lines)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert all(len(piece) <= limit or piece.count(b"\n") == 1 for piece in pieces)
