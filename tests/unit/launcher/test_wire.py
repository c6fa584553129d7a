"""Signed lines: what one end signs the other believes once, in order, and in this connection only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.launcher.wire import BadLine, End, Seal, new_nonce


def pair(
    secret: str = "s", other_secret: str = "s", host_nonce: str = "h", guest_nonce: str = "g"
) -> tuple[Seal, Seal]:
    host = Seal(secret, End.HOST, host_nonce=host_nonce, guest_nonce=guest_nonce)
    guest = Seal(other_secret, End.GUEST, host_nonce=host_nonce, guest_nonce=guest_nonce)
    return host, guest


def test_lines_arrive_in_both_directions() -> None:
    host, guest = pair()
    for content in (b"", b"{}", b"a b"):
        assert guest.check(host.sign(content)) == content
        assert host.check(guest.sign(content)) == content


def test_another_secret_is_no_proof() -> None:
    host, guest = pair(other_secret="t")
    with pytest.raises(BadLine):
        guest.check(host.sign(b"x"))


def test_the_secret_is_not_on_the_wire() -> None:
    host, _ = pair(secret="hunter2", other_secret="hunter2")
    assert b"hunter2" not in host.sign(b"x")


def test_a_line_counts_once() -> None:
    host, guest = pair()
    line = host.sign(b"x")
    guest.check(line)
    with pytest.raises(BadLine):
        guest.check(line)


def test_a_line_left_out_is_noticed() -> None:
    host, guest = pair()
    host.sign(b"x")
    with pytest.raises(BadLine):
        guest.check(host.sign(b"y"))


def test_a_line_cannot_be_handed_back() -> None:
    host, _ = pair()
    with pytest.raises(BadLine):
        host.check(host.sign(b"x"))


def test_a_line_of_another_connection_is_no_proof() -> None:
    host, _ = pair()
    _, guest = pair(guest_nonce=new_nonce())
    with pytest.raises(BadLine):
        guest.check(host.sign(b"x"))


@given(st.binary(max_size=300))
def test_no_bytes_pass_or_raise_anything_else(data: bytes) -> None:
    with pytest.raises(BadLine):
        pair()[0].check(data)
