"""Where the launchers meet: a free port, a name that peers can reach, and who has a seat."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import NvrxError
from nvrx_chain.generation import rendezvous
from nvrx_chain.generation.rendezvous import PORT_BASE, PORT_SPAN, choose_members, choose_port, reachable_name
from nvrx_chain.records.control import Rendezvous
from tests.fakes.generation_lab import Lab, read, shape


def test_a_port_with_a_listener_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "127.0.0.1"):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken = choose_port()
            listener.bind((address, taken))
            listener.listen()
            monkeypatch.setattr(rendezvous.secrets, "randbelow", lambda _span, at=taken: at - PORT_BASE)
            assert choose_port() != taken


def test_a_port_that_was_left_a_moment_ago_can_be_bound_at_once() -> None:
    port = choose_port()
    assert PORT_BASE <= port < PORT_BASE + PORT_SPAN
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))


def test_after_the_last_port_comes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous.secrets, "randbelow", lambda span: span - 1)
    last = PORT_BASE + PORT_SPAN - 1
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", last))
            listener.listen()
        except OSError:
            pass  # Somebody else has it: just as good.
        assert PORT_BASE <= choose_port() < last


def test_when_a_long_run_of_ports_is_taken_that_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PORT_TRIES", 0)
    with pytest.raises(NvrxError, match="all taken"):
        choose_port()


# The name


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)


@pytest.mark.parametrize("addresses", [("10.0.0.7",), ("127.0.1.1", "10.0.0.7"), ("127.0.1.3",), ("fe80::1%eth0",)])
def test_a_name_with_an_address_that_peers_can_reach_is_taken(
    monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str]
) -> None:
    resolve_to(monkeypatch, *addresses)
    assert reachable_name("node7", alone=False) == "node7"


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("127.0.1.1",), ("::1",), ("127.0.0.1", "::1"), ("0.0.0.0",)])
def test_a_name_that_only_means_this_host_is_refused_and_never_replaced(
    monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str]
) -> None:
    resolve_to(monkeypatch, *addresses)
    with pytest.raises(NvrxError, match="node7") as refused:
        reachable_name("node7", alone=False)
    assert addresses[0] in str(refused.value)
    assert reachable_name("node7", alone=True) == "node7"


def test_a_name_that_does_not_resolve_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NvrxError, match="node7"):
        reachable_name("node7", alone=False)


def test_a_generation_of_one_task_on_one_node_needs_no_name_for_peers(tmp_path: Path) -> None:
    lab = Lab(tmp_path, shape=shape(train=1, hot=0, cold=0))
    lab.submit(1)
    context = lab.arrive(1, 0)
    assert rendezvous.publish(context, started=True, members=(0,), present=(0,)).rendezvous_host == "n1"


def test_what_is_published_is_readable_by_the_owner_only_and_new_each_time(lab: Lab) -> None:
    context = lab.arrive(1, 0)
    first = rendezvous.publish(context, started=False, members=(), present=())
    second = rendezvous.publish(context, started=True, members=(0, 1), present=(0, 1))
    path = lab.directory(1).rendezvous
    assert read(path, Rendezvous) == second
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.started_at is None
    assert second.started_at is not None
    assert first.nonce != second.nonce
    assert first.secret != second.secret


# Seats


def test_members_keep_their_seats_and_a_free_one_goes_to_the_lowest_that_waits() -> None:
    assert choose_members((0, 1, 2, 3), (), (0, 1), 2) == (0, 1)
    assert choose_members((0, 1, 2, 3), (1,), (0, 1), 2) == (0, 2)
    assert choose_members((0, 2, 3), (), (0,), 2) == (0, 2)
    assert choose_members((0, 1, 2, 3), (0,), (0, 1, 2), 3) == (3, 1, 2)


def test_without_enough_tasks_there_are_fewer_members() -> None:
    assert choose_members((0, 1), (1,), (0, 1), 2) == (0,)
    assert choose_members((), (), (0, 1), 2) == ()


tasks = st.lists(st.integers(0, 12), unique=True, max_size=13)


@given(joined=tasks, left=tasks, current=tasks, train=st.integers(1, 8))
def test_seats_hold_living_tasks_only_once_and_a_living_member_never_loses_its_own(
    joined: list[int], left: list[int], current: list[int], train: int
) -> None:
    current = current[:train]
    members = choose_members(joined, left, current, train)
    alive = [task for task in joined if task not in left]
    assert len(set(members)) == len(members) <= train
    assert set(members) <= set(alive)
    assert {task for task in current if task in alive} <= set(members)
    if len(members) == train:
        # The seat is the rank: who stays, stays where it was.
        assert all(members[seat] == task for seat, task in enumerate(current) if task in alive)
    else:
        assert set(members) == set(alive)
