"""The link between the run-tasks: who is believed, what is carried, and what a silent host looks like."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.generation.link import (
    MAX_STRANGERS,
    NEVER,
    Host,
    HostLink,
    NoLink,
    PeerLink,
    Word,
    word_interval_seconds,
)
from tests.fakes.fake_clock import FakeClock

SECRET = "s3cret"


def word(task: int = 1, unread: float = 0.5, secret: str = SECRET) -> bytes:
    return msgspec.json.encode(Word(secret=secret, task=task, unread_seconds=unread)) + b"\n"


def test_a_word_becomes_a_report_with_the_hosts_own_time() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    clock.advance(7)
    answer = host.answer(word(task=3, unread=12.5))
    assert answer is not None
    assert msgspec.json.decode(answer) == {"excused_seconds": None}
    assert (host.reports()[3].heard_at, host.reports()[3].unread_seconds) == (7, 12.5)


def test_the_answer_says_how_long_ago_the_excuse_was_known() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    assert host.excused_seconds() == NEVER
    clock.advance(10)
    host.excuse(8.0)
    answer = host.answer(word())
    assert answer is not None
    assert msgspec.json.decode(answer) == {"excused_seconds": 2.0}


@pytest.mark.parametrize("line", [word(secret="guess"), b"{}\n", b"\xff\n", b"[" * 400, b"GET / HTTP/1.1\r\n"])
def test_a_stranger_gets_no_answer_and_leaves_no_report(line: bytes) -> None:
    host = HostLink(FakeClock(), SECRET)
    assert host.answer(line) is None
    assert host.reports() == {}


def test_without_a_link_nobody_is_excused_and_no_host_is_silent() -> None:
    assert (NoLink().excused_seconds(), NoLink().host_silent_seconds()) == (NEVER, 0.0)


def test_big_arrays_speak_more_slowly() -> None:
    assert [word_interval_seconds(total) for total in (1, 1000, 5000)] == [2.0, 2.0, 10.0]


@pytest.fixture
def host() -> HostLink:
    link = HostLink(SystemClock(), SECRET)
    link.start()
    return link


@pytest.fixture
def peer() -> Iterator[PeerLink]:
    link = PeerLink(SystemClock(), 4, 0.05, find_host=lambda: None, read_age=lambda: 6.0)
    yield link
    link.stop()


def address(link: HostLink) -> tuple[str, int]:
    assert link.port is not None
    return ("127.0.0.1", link.port)


def until(condition: object) -> None:
    assert callable(condition)
    never, clock = threading.Event(), SystemClock()
    deadline = clock.monotonic() + 30
    while not condition():
        assert clock.monotonic() < deadline
        clock.wait(never, 0.02)


def test_the_two_ends_talk_over_a_real_connection(host: HostLink, peer: PeerLink) -> None:
    there = Host(address=address(host), secret=SECRET)
    talking = threading.Thread(target=lambda: peer.talk(there))
    talking.start()
    until(lambda: 4 in host.reports())
    assert host.reports()[4].unread_seconds == 6.0
    assert peer.excused_seconds() == NEVER
    host.excuse(SystemClock().monotonic() - 3)
    until(lambda: peer.excused_seconds() < 30)
    # Never younger than the host's own knowledge.
    assert peer.excused_seconds() >= 3
    assert peer.host_silent_seconds() < 5
    peer.stop()
    talking.join(30)
    assert not talking.is_alive()


def test_a_wrong_secret_ends_the_connection_and_counts_as_no_answer(host: HostLink, peer: PeerLink) -> None:
    with pytest.raises(ConnectionError):
        peer.talk(Host(address=address(host), secret="guess"))
    assert peer.host_silent_seconds() == 0.0
    assert host.reports() == {}


def test_a_line_without_end_closes_one_connection_and_no_other(host: HostLink, peer: PeerLink) -> None:
    with socket.create_connection(address(host), timeout=10) as stranger:
        stranger.sendall(b"x" * 4096)
        assert stranger.recv(1) == b""
    with socket.create_connection(address(host), timeout=10) as friend:
        friend.sendall(word(task=2))
        assert friend.makefile("rb").readline().startswith(b"{")


def test_strangers_without_a_word_take_a_bounded_number_of_connections(host: HostLink) -> None:
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address(host), timeout=10)) for _ in range(MAX_STRANGERS)
        ]
        until(lambda: host._strangers == MAX_STRANGERS)
        with socket.create_connection(address(host), timeout=10) as one_more:
            assert one_more.recv(1) == b""
        # And they do not keep their places.
        for connection in silent:
            assert connection.recv(1) == b""
        with socket.create_connection(address(host), timeout=10) as friend:
            friend.sendall(word(task=2))
            assert friend.makefile("rb").readline().startswith(b"{")


def test_a_host_that_answered_and_does_so_no_more_is_silent_after_an_interval() -> None:
    clock = FakeClock()
    peer = PeerLink(clock, 1, 2.0, find_host=lambda: None, read_age=lambda: 0.0)
    clock.advance(100)
    assert peer.host_silent_seconds() == 0.0, "a host that was never reached may be behind a wall"
    peer._answered_at = clock.monotonic()
    clock.advance(2)
    assert peer.host_silent_seconds() == 0.0
    clock.advance(7)
    assert peer.host_silent_seconds() == 7.0
