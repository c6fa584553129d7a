from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SandboxError, Unobserved
from nvrx_chain.generation import rendezvous
from nvrx_chain.sandbox import record
from nvrx_chain.sandbox.config import Place, SandboxConfig
from nvrx_chain.sandbox.processes import Daemon
from nvrx_chain.sandbox.procfs import ProcessId
from nvrx_chain.sandbox.record import SandboxGone, SandboxState
from tests.unit.sandbox.fakes import FakeClock

CLOCK = SystemClock()


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "REGISTER", tmp_path / "register")
    return tmp_path / "register"


def _claim(directory: Path, *, nodes: int = 3, accounting: bool = False) -> tuple[Place, SandboxState]:
    config = SandboxConfig(directory=directory, nodes=nodes, accounting=accounting)
    with record.claim(config, CLOCK, uuid.uuid4().hex) as claimed:
        return claimed


def _read(place: Place) -> SandboxState:
    state = record.read_state(place)
    assert isinstance(state, SandboxState)
    return state


def test_a_claim_is_on_record_and_found_by_its_directory(register: Path, tmp_path: Path) -> None:
    directory = tmp_path / "it's 100% a&b #1"
    place, state = _claim(directory)
    assert record.find_place(directory) == place
    assert _read(place) == state
    assert (state.ready, state.daemons, state.created_directory) == (False, (), True)
    assert place.runtime.parent == register
    assert record.find_place(tmp_path / "other") is None


def test_two_sandboxes_share_neither_slot_nor_port(register: Path, tmp_path: Path) -> None:
    one, one_state = _claim(tmp_path / "one", nodes=5)
    two, two_state = _claim(tmp_path / "two", nodes=5, accounting=True)
    assert one.slot != two.slot
    assert len(one_state.ports.nodes) == len(two_state.ports.nodes) == 5
    assert (one_state.ports.database_daemon, two_state.ports.database_daemon is None) == (None, False)
    assert not one_state.ports.all & two_state.ports.all
    assert len(one_state.ports.all) == 6
    assert len(two_state.ports.all) == 7


def test_a_port_that_somebody_listens_on_is_not_taken(register: Path, tmp_path: Path) -> None:
    _, first = _claim(tmp_path / "one", nodes=1)
    wanted = max(first.ports.all) + 1
    with socket.socket() as listener, contextlib.suppress(OSError):
        # Somebody else may have it already, which serves as well.
        listener.bind(("127.0.0.1", wanted))
        listener.listen()
        _, second = _claim(tmp_path / "two", nodes=1)
        assert wanted not in second.ports.all


def test_ports_stay_below_those_that_the_kernel_gives_away(register: Path, tmp_path: Path) -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    _, state = _claim(tmp_path / "one", nodes=50)
    assert max(state.ports.all) < first_ephemeral


def test_ports_are_never_those_of_a_rendezvous(register: Path, tmp_path: Path) -> None:
    # A generation probes its port and binds it seconds later: a sandbox that starts in between must not take it.
    _, state = _claim(tmp_path / "one", nodes=50)
    assert not state.ports.all & set(range(rendezvous.PORT_BASE, rendezvous.PORT_BASE + rendezvous.PORT_SPAN))


def test_a_directory_has_one_sandbox(register: Path, tmp_path: Path) -> None:
    _claim(tmp_path / "one")
    with pytest.raises(SandboxError, match=r"there is one already: .*one \(run `sandbox down` first\)"):
        _claim(tmp_path / "one")


def test_a_directory_that_was_there_is_remembered_as_the_users(register: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert _claim(tmp_path / "mine")[1].created_directory is False
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SandboxError, match=r"^starting a sandbox: "):
            _claim(wrong)
    assert record.find_place(tmp_path / "file") is None


def test_a_slot_whose_claim_was_cut_short_is_given_again(register: Path, tmp_path: Path) -> None:
    first, _ = _claim(tmp_path / "one")
    (first.runtime / "directory").unlink()
    second, state = _claim(tmp_path / "two")
    assert second.slot == first.slot
    # A SLURM_CONF that somebody still has must not lead to another sandbox.
    assert second.runtime != first.runtime
    assert not first.runtime.exists()
    assert _read(second) == state


def test_no_slot_left_is_said_so(register: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_SLOTS", range(10, 11))
    _claim(tmp_path / "one")
    with pytest.raises(SandboxError, match="all 1 slots are taken"):
        _claim(tmp_path / "two")


def test_processes_of_an_earlier_boot_are_not_believed(register: Path, tmp_path: Path) -> None:
    place, state = _claim(tmp_path / "one")
    daemons = (Daemon(name="munged", id=ProcessId(pid=1, started=2)),)
    now = msgspec.structs.replace(state, daemons=daemons)
    record.write_state(place, now)
    assert _read(place).daemons == daemons
    record.write_state(place, msgspec.structs.replace(now, boot_id="another boot"))
    assert _read(place).daemons == ()


def test_a_damaged_record_is_unknown_and_never_none(register: Path, tmp_path: Path) -> None:
    place, _ = _claim(tmp_path / "one")
    place.state_file.write_text('{"schema": 1')
    assert isinstance(record.read_state(place), Unobserved)
    place.state_file.unlink()
    assert record.read_state(place) is None


def test_a_record_is_readable_by_others_whatever_the_umask(register: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        place, _ = _claim(tmp_path / "one")
    finally:
        os.umask(before)
    assert place.state_file.stat().st_mode & 0o777 == 0o644
    assert place.runtime.stat().st_mode & 0o777 == 0o755
    assert register.stat().st_mode & 0o777 == 0o755


def test_the_latest_process_of_a_name_counts() -> None:
    first, second = (Daemon(name="node.n1", id=ProcessId(pid=pid, started=1)) for pid in (7, 8))
    state = msgspec.convert(_raw(), SandboxState, dec_hook=record._decode)
    assert state.daemon("node.n1") is None
    assert msgspec.structs.replace(state, daemons=(first, second)).daemon("node.n1") == second


@given(
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40),
    pids=st.lists(st.tuples(st.integers(1, 2**22), st.integers(0, 2**62)), max_size=5),
)
def test_a_record_survives_its_file(name: str, pids: list[tuple[int, int]]) -> None:
    state = msgspec.structs.replace(
        msgspec.convert(_raw(), SandboxState, dec_hook=record._decode),
        config=SandboxConfig(directory=Path("/") / name),
        daemons=tuple(Daemon(name=f"node.n{pid}", id=ProcessId(pid=pid, started=at)) for pid, at in pids),
    )
    text = msgspec.json.encode(state, enc_hook=record._encode)
    assert msgspec.json.decode(text, type=SandboxState, dec_hook=record._decode) == state


def test_a_lock_that_another_command_keeps_is_given_up_with_a_word(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    refused = pytest.raises(SandboxError, match=r"^ending: another command works on it")
    with _held(lock), refused, record.hold_lock(lock, FakeClock(), doing="ending"):
        pytest.fail("the lock was given twice")
    with record.hold_lock(lock, FakeClock(), doing="ending"):
        pass


def test_a_lock_of_a_sandbox_that_was_removed_meanwhile_is_not_given(tmp_path: Path) -> None:
    with pytest.raises(SandboxGone), record.hold_lock(tmp_path / "gone" / "lock", FakeClock(), doing="ending"):
        pytest.fail("there is nothing to lock")
    lock = tmp_path / "lock"

    class RemovingClock(FakeClock):
        """While we wait, the holder removes the sandbox, gives up its lock, and another sandbox takes the slot."""

        def wait(self, event: object, seconds: float) -> bool:
            self.seconds += seconds
            lock.unlink(missing_ok=True)
            lock.write_text("")
            holder.close()
            return False

    holder = contextlib.ExitStack()
    holder.enter_context(_held(lock))
    with pytest.raises(SandboxGone), record.hold_lock(lock, RemovingClock(), doing="ending"):
        pytest.fail("this is the lock of another sandbox")


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    with record.hold_lock(path, CLOCK, doing="holding"):
        yield


def _raw() -> dict[str, object]:
    return {
        "schema": 1,
        "sandbox_id": "x",
        "boot_id": "b",
        "created_at": "2026-11-30T00:00:00Z",
        "created_directory": False,
        "config": {"directory": "/d"},
        "ports": {"controller": 1, "nodes": [2]},
    }
