"""A host that nobody reaches while its lease goes on: who says so, and how many it takes."""

from __future__ import annotations

import dataclasses
import socket

import msgspec
import pytest

from nvrx_chain.errors import RecordError
from nvrx_chain.generation.board import Board
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.silence import AGAIN_SECONDS, DOUBT_SECONDS, SILENT_SECONDS, HostSilence, out_of_reach
from nvrx_chain.generation.votes import renew_seconds
from nvrx_chain.generation.watcher import LeaseView, Snapshot
from nvrx_chain.records.control import LauncherExit, Rendezvous, Silence
from tests.fakes.generation_lab import HeldWork, Lab, freeze, read

TIMEOUT = 30.0


def seen(
    joined: tuple[int, ...], silenced: tuple[int, ...], still: float = 1.0, left: tuple[int, ...] = ()
) -> Snapshot:
    lease = LeaseView(counter=9, still_seconds=still, interval_seconds=5.0)
    return Snapshot(taken_at=0.0, leases={0: lease}, joined=joined, left=left, silenced=silenced)


def rendezvous_at(host: str, port: int) -> Rendezvous:
    stamp = {"array_job_id": 1, "array_task_id": 0, "restart_count": 0, "host": "n0", "boot_id": "b", "pid": 1}
    place = {"rendezvous_host": host, "rendezvous_port": port, "nonce": "x", "secret": "y"}
    times = {"published_at": "x", "started_at": "y", "members": [0, 1], "present": [0, 1]}
    return msgspec.convert({**stamp, "pid_started_at": 1, **place, **times}, Rendezvous)


def launcher_exit(task: int) -> LauncherExit:
    return LauncherExit(
        array_job_id=1,
        array_task_id=task,
        restart_count=0,
        host=f"n{task}",
        boot_id="b",
        pid=1,
        pid_started_at=1,
        node=f"n{task}",
        exit_code=1,
        asked_to_stop=False,
        rendezvous_lost=True,
        started_at="x",
        ended_at="y",
    )


@pytest.mark.parametrize(
    ("snapshot", "train", "closed"),
    [
        (seen((0, 1), (1,)), 2, True),
        (seen((0, 1, 2), (1, 2)), 2, True),
        (seen((0, 1, 2), (2,)), 2, False),
        (seen((0, 1, 2), (1,)), 2, False),
        (seen((0, 1, 2), (1,), left=(2,)), 2, True),
        (seen((0, 1, 2), (2,), left=(2,)), 2, False),
        (seen((0, 1), (1,), still=15.0), 2, False),
        (seen(tuple(range(65)), tuple(range(1, 33))), 64, False),
        (seen(tuple(range(65)), tuple(range(1, 34))), 64, True),
        (seen((0, 1, 2, 3), (1, 2)), 8, False),
    ],
)
def test_it_takes_a_majority_of_the_peers_and_half_of_the_training_tasks(
    snapshot: Snapshot, train: int, closed: bool
) -> None:
    assert (out_of_reach(snapshot, train, TIMEOUT) is not None) is closed


def test_launchers_that_lost_the_host_prove_nothing_before_somebody_waited_for_its_answer() -> None:
    exits = tuple(launcher_exit(task) for task in (1, 2))
    lost = dataclasses.replace(seen((0, 1, 2), ()), launcher_exits=exits)
    assert lost.lost_hosts() == (1, 2)
    assert out_of_reach(lost, 2, TIMEOUT) is None
    one_waited = dataclasses.replace(seen((0, 1, 2), (2,)), launcher_exits=exits[:1])
    assert out_of_reach(one_waited, 2, TIMEOUT) is not None


class SilentLink:
    seconds = 0.0

    def excused_seconds(self) -> float:
        return float("inf")

    def maybe_excused_seconds(self) -> float:
        return self.excused_seconds()

    def host_silent_seconds(self) -> float:
        return self.seconds


@pytest.fixture
def peer(lab: Lab) -> TaskContext:
    lab.arrive(1, 0)
    return dataclasses.replace(lab.arrive(1, 1), link=SilentLink())


def says(lab: Lab) -> bool | None:
    path = lab.directory(1).silence(1)
    return read(path, Silence).silent if path.exists() else None


def test_a_peer_says_when_the_host_falls_silent_and_when_it_answers_again(lab: Lab, peer: TaskContext) -> None:
    silence = HostSilence(peer)
    for seconds, said in ((0.0, None), (SILENT_SECONDS, None), (SILENT_SECONDS + 1, True), (40.0, True), (0.0, False)):
        peer.link.seconds = seconds  # type: ignore[attr-defined]
        for _ in range(2):
            silence.tick(peer.watcher.latest())
        assert says(lab) is said
        assert silence.may_close is bool(said)
        assert peer.watcher.latest().silenced == ((1,) if said else ())
        lab.clock.advance(AGAIN_SECONDS)


def test_while_it_lasts_it_is_said_again_every_ten_seconds_and_no_oftener(lab: Lab, peer: TaskContext) -> None:
    silence, path = HostSilence(peer), lab.directory(1).silence(1)
    peer.link.seconds = SILENT_SECONDS + 1  # type: ignore[attr-defined]
    written: set[str] = set()
    for _ in range(500):
        silence.tick(peer.watcher.latest())
        if path.exists():
            written.add(read(path, Silence).written_at)
        lab.clock.advance(0.2)
    assert 10 <= len(written) <= 11
    assert peer.watcher.latest().silenced == (1,)


def test_a_directory_that_takes_no_statement_is_asked_every_two_seconds_at_most(
    lab: Lab, peer: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []

    def refuse(board: Board, silent: bool, seconds: float) -> None:
        tried.append(silent)
        raise RecordError("writing: no space")

    monkeypatch.setattr(Board, "say_silent", refuse)
    silence = HostSilence(peer)
    peer.link.seconds = SILENT_SECONDS + 1  # type: ignore[attr-defined]
    for _ in range(100):
        silence.tick(peer.watcher.latest())
        lab.clock.advance(0.2)
    assert 5 <= len(tried) <= 11
    assert not silence.may_close


def test_a_statement_is_taken_back_when_the_rendezvous_answers(lab: Lab, peer: TaskContext) -> None:
    silence = HostSilence(peer)
    peer.link.seconds = SILENT_SECONDS + 1  # type: ignore[attr-defined]
    silence.tick(seen((0, 1), ()))
    assert says(lab) is True
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = rendezvous_at("127.0.0.1", listener.getsockname()[1])
        lab.clock.advance(renew_seconds(4))
        for _ in range(2):
            silence.tick(dataclasses.replace(seen((0, 1), ()), rendezvous=there))
    assert says(lab) is False
    assert not silence.may_close


def test_who_reaches_the_host_reads_nobody_elses_statement(lab: Lab, peer: TaskContext) -> None:
    other = lab.arrive(1, 2)
    silence = HostSilence(peer)
    silence.tick(peer.watcher.latest())
    for _ in range(3):
        other.board.say_silent(True, 30.0)
        lab.clock.advance(5)
        assert peer.watcher.latest().silenced == ()
    peer.link.seconds = DOUBT_SECONDS + 1  # type: ignore[attr-defined]
    silence.tick(peer.watcher.latest())
    assert peer.watcher.latest().silenced == (), "what was there before may be of a peer that died"
    lab.clock.advance(10)
    peer.board.say_silent(False, 1.0)
    assert peer.watcher.latest().silenced == ()
    other.board.say_silent(True, 40.0)
    assert peer.watcher.latest().silenced == (2,)
    assert not silence.may_close, "its own link has not been silent for long enough"


def test_a_host_whose_rendezvous_answers_is_not_said_to_be_silent(lab: Lab, peer: TaskContext) -> None:
    silence = HostSilence(peer)
    peer.link.seconds = SILENT_SECONDS + 1  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = rendezvous_at("127.0.0.1", listener.getsockname()[1])
        for _ in range(3):
            silence.tick(dataclasses.replace(seen((0, 1), ()), rendezvous=there))
            assert not silence.may_close
            lab.clock.advance(AGAIN_SECONDS)
        assert says(lab) is None
    # Now it refuses.
    for _ in range(2):
        silence.tick(dataclasses.replace(seen((0, 1), ()), rendezvous=there))
    assert says(lab) is True


def test_of_a_host_whose_lease_stands_still_nothing_is_said(lab: Lab, peer: TaskContext) -> None:
    host = lab.context(1, 0)
    freeze(host)
    silence = HostSilence(peer)
    peer.link.seconds = 60.0  # type: ignore[attr-defined]
    silence.tick(seen((0, 1), (), still=TIMEOUT / 2))
    assert says(lab) is None


def test_a_directory_that_hangs_does_not_hold_the_loop(lab: Lab) -> None:
    lab.arrive(1, 0)
    held = HeldWork()
    peer = dataclasses.replace(lab.arrive(1, 1, spawn=held), link=SilentLink())
    peer.link.seconds = 60.0  # type: ignore[attr-defined]
    silence = HostSilence(peer)
    for _ in range(5):
        silence.tick(peer.watcher.latest())
    assert held.names == ["say that task 0 is silent"]
    held.release()
    assert says(lab) is True
