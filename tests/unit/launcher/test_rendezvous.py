"""Our rendezvous behind torch's interface, as an elastic agent uses it."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.environment import SECRET
from nvrx_chain.launcher.rendezvous import create_handler, torchrun_handler

SECONDS = 60


def parameters(port: int, rank: int) -> RendezvousParameters:
    return RendezvousParameters(
        backend="nvrx",
        endpoint=f"localhost:{port}",
        run_id="run",
        min_nodes=2,
        max_nodes=2,
        local_addr=f"127.0.0.{rank + 1}",
        is_host=str(rank == 0),
        infra_rank=str(rank),
        max_restarts="5",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[RendezvousHandler]:
    monkeypatch.setenv(SECRET, "the secret")
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: create_handler(parameters(port, rank)), range(2), timeout=SECONDS))


def meet(handlers: list[RendezvousHandler]) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers, timeout=SECONDS))


def test_agents_meet_meet_again_and_end(handlers: list[RendezvousHandler]) -> None:
    infos = meet(handlers)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    places = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
    assert len(places) == 1
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]

    again = meet(handlers)  # as after a failed rank: every agent comes again
    assert [info.rank for info in again] == [0, 1]
    other = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in again}
    assert other != places, "a new store for every round"

    handlers[1].set_closed()
    deadline = time.monotonic() + SECONDS
    while not all(handler.is_closed() for handler in handlers):
        assert time.monotonic() < deadline, "it is not closed"
    with pytest.raises(RendezvousClosedError):
        handlers[0].next_rendezvous()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda handler: handler.shutdown(), handlers, timeout=SECONDS)) == [True, True]


def test_without_a_secret_nobody_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(UsageError, match=SECRET):
        create_handler(parameters(free_port(), 0))


def test_torchrun_finds_it_by_an_entry_point() -> None:
    assert torchrun_handler() is create_handler
