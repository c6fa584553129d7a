"""The link between the run-tasks: who is believed, what is carried, and what a silent host looks like."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec
import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.generation.link import (
    MAX_STRANGERS,
    NEVER,
    Conversation,
    Host,
    HostLink,
    NoLink,
    PeerLink,
    Report,
    word_interval_seconds,
)
from nvrx_chain.generation.link_words import Answer, Greeting, Word, parse_line, render_line
from tests.fakes.fake_clock import FakeClock

SECRET = "s3cret"


def word(conversation: Conversation, task: int = 1, unread: float = 0.5, secret: str = SECRET) -> bytes:
    content = Word(task=task, unread_seconds=unread, challenge="c")
    return render_line(content, secret=secret, nonce=conversation.nonce)


def read_answer(line: bytes | None, challenge: str = "c") -> Answer:
    assert line is not None
    answer = parse_line(line, Answer, secret=SECRET, nonce=challenge)
    assert answer is not None
    return answer


def test_a_word_becomes_a_report_of_the_moment_at_which_its_nonce_was_given() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    clock.advance(7)
    conversation, _ = host.greet()
    clock.advance(2)
    assert read_answer(host.answer(conversation, word(conversation, task=3, unread=12.5))).excused_seconds is None
    # It was said between 7 and 9: at 7 the picture may have been two seconds younger.
    assert host.reports()[3] == Report(heard_at=7, unread_seconds=10.5)


def test_a_word_that_the_network_held_back_is_as_old_as_its_nonce() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    conversation, _ = host.greet()
    line = word(conversation, unread=6.0)
    clock.advance(40)
    assert host.answer(conversation, line) is not None
    assert host.reports()[1] == Report(heard_at=0, unread_seconds=0.0)


def test_a_word_on_an_older_connection_after_a_newer_one_changes_no_report() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    older, _ = host.greet()
    held_back = word(older, unread=30.0)
    clock.advance(3)
    newer, _ = host.greet()
    assert host.answer(newer, word(newer, unread=0.1)) is not None
    before = host.reports()
    assert host.answer(older, held_back) is None
    assert host.reports() == before


def test_no_word_is_believed_twice_and_none_that_proves_the_nonce_of_another_connection() -> None:
    host = HostLink(FakeClock(), SECRET)
    first, _ = host.greet()
    second, _ = host.greet()
    line = word(first)
    assert host.answer(second, line) is None
    assert host.answer(first, line) is not None
    assert host.answer(first, line) is None


def test_the_answer_says_how_long_ago_the_excuse_was_known() -> None:
    clock = FakeClock()
    host = HostLink(clock, SECRET)
    assert host.excused_seconds() == NEVER
    clock.advance(10)
    host.excuse(8.0)
    conversation, _ = host.greet()
    answer = read_answer(host.answer(conversation, word(conversation)))
    assert (answer.excused_seconds, answer.nonce) == (2.0, conversation.nonce)


STRANGE = [
    b"{}\n",
    b"\xff\n",
    b"[" * 400,
    b"GET / HTTP/1.1\r\n",
    b'{"content":{"task":1,"unread_seconds":1.0,"challenge":"c"},"proof":"\xc3\xa9"}\n',
    b'{"content":{"task":1,"unread_seconds":1.0,"challenge":"c"},"proof":"\\ud800"}\n',
    b'{"content":{"task":1,"unread_seconds":1.0,"challenge":"c"},"proof":""}\n',
    b'{"secret":"s3cret","task":1,"unread_seconds":1.0}\n',
]


@pytest.mark.parametrize("line", STRANGE)
def test_a_stranger_gets_no_answer_and_leaves_no_report(line: bytes) -> None:
    host = HostLink(FakeClock(), SECRET)
    conversation, _ = host.greet()
    assert host.answer(conversation, line) is None
    assert host.answer(conversation, word(conversation, secret="guess")) is None
    assert host.reports() == {}


@pytest.mark.parametrize("line", STRANGE)
def test_a_forged_answer_is_no_answer(line: bytes) -> None:
    assert parse_line(line, Answer, secret=SECRET, nonce="c") is None
    genuine = render_line(Answer(excused_seconds=0.0, nonce="n"), secret=SECRET, nonce="c")
    assert parse_line(genuine, Answer, secret=SECRET, nonce="c") is not None
    assert parse_line(genuine, Answer, secret=SECRET, nonce="of another word") is None
    assert parse_line(genuine, Word, secret=SECRET, nonce="c") is None
    assert parse_line(genuine.replace(b"0.0", b"1.0"), Answer, secret=SECRET, nonce="c") is None


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
    link = PeerLink(SystemClock(), 4, 0.05, find_host=lambda: None, unread=lambda: 6.0)
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
    assert 4.0 < host.reports()[4].unread_seconds <= 6.0
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


class Listener:
    """Whoever got hold of the port of a task 0 that is gone: greets, keeps what it hears, and answers as told."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.heard = b""
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        with contextlib.suppress(OSError):
            self._run()

    def _run(self) -> None:
        connection, _ = self._socket.accept()
        with self._socket, connection:
            connection.settimeout(30)
            connection.sendall(b'{"nonce":"mine"}\n')
            with connection.makefile("rb") as stream:
                line = stream.readline()
            self.heard += line
            connection.sendall(self._answer(line))


FORGED = msgspec.json.encode({"content": {"excused_seconds": 0.0, "nonce": "n"}, "proof": "0" * 64}) + b"\n"


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b'{"excused_seconds":0.0}\n',
        lambda _: FORGED,
        lambda line: line,
        lambda _: render_line(Answer(excused_seconds=0.0, nonce="n"), secret=SECRET, nonce="an earlier challenge"),
        lambda _: b"{" * 4096,
        lambda _: b"",
    ],
    ids=["as before", "a guess", "the word itself", "an old answer", "no end", "nothing"],
)
def test_whoever_took_the_port_of_task_0_excuses_nobody_and_learns_no_secret(
    peer: PeerLink, answer: Callable[[bytes], bytes]
) -> None:
    thief = Listener(answer)
    with pytest.raises(OSError):
        peer.talk(Host(address=thief.address, secret=SECRET))
    assert peer.excused_seconds() == NEVER
    assert peer.host_silent_seconds() == 0.0
    assert b'"task":4' in thief.heard
    assert SECRET.encode() not in thief.heard


def test_the_secret_is_not_among_the_bytes_on_the_wire(host: HostLink, peer: PeerLink) -> None:
    seen: list[bytes] = []

    class Tap(Listener):
        """Hands everything on to the real host, and what that says back."""

        def _run(self) -> None:
            here, _ = self._socket.accept()
            with self._socket, here, socket.create_connection(address(host), timeout=30) as there:
                here.settimeout(30)
                with there.makefile("rb") as far, here.makefile("rb") as near:
                    while line := far.readline():
                        seen.append(line)
                        here.sendall(line)
                        said = near.readline()
                        seen.append(said)
                        there.sendall(said)

    tap = Tap(lambda line: line)
    host.excuse(SystemClock().monotonic())
    talking = threading.Thread(target=lambda: peer.talk(Host(address=tap.address, secret=SECRET)))
    talking.start()
    until(lambda: peer.excused_seconds() < 30)
    peer.stop()
    talking.join(30)
    assert len(seen) >= 3
    assert SECRET.encode() not in b"".join(seen)


def test_a_blind_peer_speaks_with_a_nonce_that_was_given_just_now(host: HostLink) -> None:
    # Far apart: with the nonce of the word before it the report would be as old as the pause.
    peer = PeerLink(SystemClock(), 4, 2.0, find_host=lambda: None, unread=lambda: 3.5)
    talking = threading.Thread(target=lambda: peer.talk(Host(address=address(host), secret=SECRET)))
    talking.start()
    until(lambda: 4 in host.reports())
    first = host.reports()[4].heard_at
    until(lambda: host.reports()[4].heard_at > first + 1.5)
    assert SystemClock().monotonic() - host.reports()[4].heard_at < 1.0
    peer.stop()
    talking.join(30)


def test_a_line_without_end_closes_one_connection_and_no_other(host: HostLink) -> None:
    with (
        socket.create_connection(address(host), timeout=10) as stranger,
        stranger.makefile("rb") as stream,
    ):
        stranger.sendall(b"x" * 4096)
        assert stream.readline().startswith(b'{"nonce"')
        assert ends(stream)
    assert_answered(host)


def ends(stream: BinaryIO) -> bool:
    try:
        return stream.read(1) == b""
    except ConnectionResetError:
        return True


def assert_answered(host: HostLink) -> None:
    with socket.create_connection(address(host), timeout=10) as friend, friend.makefile("rb") as stream:
        nonce = msgspec.json.decode(stream.readline(), type=Greeting).nonce
        friend.sendall(word(Conversation(number=0, nonce=nonce, given_at=0.0), task=2))
        assert read_answer(stream.readline()).nonce != nonce


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
            with connection.makefile("rb") as stream:
                assert stream.readline().startswith(b'{"nonce"')
                assert ends(stream)
    assert_answered(host)


def test_a_host_whose_loop_fails_listens_again_on_the_same_port() -> None:
    failed = threading.Event()

    class Once(HostLink):
        async def _listen(self, listener: socket.socket) -> None:
            if not failed.is_set():
                failed.set()
                raise ZeroDivisionError("a fault")
            await super()._listen(listener)

    host = Once(SystemClock(), SECRET)
    host.start()
    assert failed.wait(30)
    assert_answered(host)


def test_a_host_that_answered_and_does_so_no_more_is_silent_after_an_interval() -> None:
    clock = FakeClock()
    peer = PeerLink(clock, 1, 2.0, find_host=lambda: None, unread=lambda: 0.0)
    clock.advance(100)
    assert peer.host_silent_seconds() == 0.0, "a host that was never reached may be behind a wall"
    peer._answered_at = clock.monotonic()
    clock.advance(2)
    assert peer.host_silent_seconds() == 0.0
    clock.advance(7)
    assert peer.host_silent_seconds() == 7.0
