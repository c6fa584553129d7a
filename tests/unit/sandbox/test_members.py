from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import ID_VARIABLE
from nvrx_chain.sandbox.config import Ports, SandboxConfig
from nvrx_chain.sandbox.faults import kill_all
from nvrx_chain.sandbox.members import descendants, find_members, find_node
from nvrx_chain.sandbox.processes import Daemon, poll
from nvrx_chain.sandbox.procfs import Process, ProcessId, read_process
from nvrx_chain.sandbox.record import SCHEMA, SandboxState
from tests.unit.sandbox.fakes import child


def _state(sandbox_id: str, *daemons: Daemon) -> SandboxState:
    return SandboxState(
        schema=SCHEMA,
        sandbox_id=sandbox_id,
        boot_id="b",
        created_at="2026-11-30T00:00:00Z",
        created_directory=False,
        config=SandboxConfig(directory=Path("/d"), nodes=2),
        ports=Ports(controller=1, nodes=(2, 3)),
        daemons=daemons,
    )


def _process(pid: int, parent: int) -> Process:
    return Process(pid=pid, started=pid, parent=parent, state="S")


def test_a_process_with_the_sandboxs_id_is_a_member_and_one_of_another_sandbox_is_not() -> None:
    with child("sleep", "60", **{ID_VARIABLE: "mine"}) as mine, child("sleep", "60", **{ID_VARIABLE: "yours"}) as yours:
        assert poll(SystemClock(), lambda: {p.pid for p in find_members(_state("mine"))} == {mine.pid}, 30)
        assert poll(SystemClock(), lambda: {p.pid for p in find_members(_state("yours"))} == {yours.pid}, 30)


def test_a_recorded_process_is_a_member_only_while_it_is_that_process() -> None:
    with child("sh", "-c", "sleep 60 & wait") as process:
        seen = read_process(process.pid)
        assert seen is not None
        recorded = Daemon(name="munged", id=seen.id)
        # The child's child too, though nothing but its parent shows it.
        assert poll(SystemClock(), lambda: len(find_members(_state("none", recorded))) == 2, 30)
        stale = Daemon(name="munged", id=ProcessId(pid=seen.pid, started=seen.started + 1))
        assert find_members(_state("none", stale)) == ()
        orphan = find_members(_state("none", recorded))[-1]
        process.kill()
        process.wait(30)
    assert orphan.pid != seen.pid
    kill_all(SystemClock(), [orphan], doing="cleaning up")


def test_descendants_are_found_in_any_order_and_strangers_are_not() -> None:
    family = [_process(5, 3), _process(3, 2), _process(2, 1), _process(9, 1), _process(4, 2)]
    assert {process.pid for process in descendants([_process(2, 1)], family)} == {3, 4, 5}


def test_a_node_that_is_off_is_none_and_a_wrong_name_is_an_error() -> None:
    assert find_node(_state("x"), "n2") is None
    with pytest.raises(SandboxError, match=r"no 'n3' here \(n1 to n2\)"):
        find_node(_state("x"), "n3")


def test_a_recorded_process_without_a_namespace_of_its_own_is_no_node() -> None:
    # Between its start and its namespace, what it would be frozen or killed with is this whole machine.
    with child("sleep", "60") as process:
        seen = read_process(process.pid)
        assert seen is not None
        assert find_node(_state("x", Daemon(name="node.n1", id=seen.id)), "n1") is None
