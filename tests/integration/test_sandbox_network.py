"""A sandbox whose nodes have a network of their own: up, side by side with another, down without a trace."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain.sandbox.cluster import end_directory
from nvrx_chain.sandbox.config import Addresses
from nvrx_chain.sandbox.network import DEVICES, NAMESPACES
from nvrx_chain.sandbox.record import SandboxState, find_place, read_state
from tests.integration.sandbox_lab import CLOCK, PATIENCE, Lab, end_group, needs_cluster, running_lab, wait
from tests.integration.test_sandbox import HOSTILE, _start_up

pytestmark = [pytest.mark.integration, needs_cluster]

LISTEN = """
import socket
server = socket.create_server(('', 20999))
server.settimeout(60)
peer = server.accept()[1][0]
print(peer)
"""
CONNECT = """
import socket, time
for _ in range(300):
    try:
        socket.create_connection(('{host}', 20999), timeout=5)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("network") / HOSTILE, nodes=3, network=True) as lab:
        yield lab


def traces(slot: int) -> set[str]:
    """Devices and namespaces of a slot, in the words of the kernel."""
    addresses = Addresses(slot=slot, network=True)
    names = [*os.listdir(DEVICES), *(os.listdir(NAMESPACES) if NAMESPACES.exists() else [])]
    return {name for name in names if addresses.owns(name)}


def slot_of(lab: Lab) -> int:
    return int(lab.sandbox.slurm_conf.parent.name.partition("-")[0])


def test_nodes_reach_each_other_and_this_machine_by_addresses_of_their_own(lab: Lab) -> None:
    slot = slot_of(lab)
    job = lab.submit("-w", "n1", script=f'#!/bin/bash\npython3 -c "{LISTEN}" >"$1.peer"\n')
    lab.run("srun", "-w", "n2", "python3", "-c", CONNECT.format(host="n1"))
    wait(lambda: str(job) not in lab.queue(), "the listener ends")
    assert (lab.directory / "pulse.peer").read_text().strip() == f"198.18.{slot}.2"
    assert lab.run("srun", "-w", "n3", "sinfo", "-h", "-o", "%D") == "3"
    # What one node binds is free on the others and on this machine.
    script = "#!/bin/bash\nsrun -N3 python3 -c \"import socket, time; s = socket.create_server(('', 20999))\"\n"
    lab.submit("--wait", "-N3", script=script)


@pytest.mark.slow
def test_two_networks_lie_side_by_side_and_go_one_by_one(tmp_path: Path, lab: Lab) -> None:
    with running_lab(tmp_path / "other", nodes=2, network=True) as other:
        slot = slot_of(other)
        assert traces(slot) == {f"nvrx{slot}{end}" for end in ("", "n1", "n2", "-n1", "-n2")}
        assert other.run("srun", "-N2", "hostname").split()
    assert traces(slot) == set()
    assert len(traces(slot_of(lab))) == 7
    assert lab.run("srun", "-N3", "sinfo", "-h", "-o", "%D").split() == ["3"] * 3


@pytest.mark.slow
def test_a_node_of_a_network_comes_back_after_a_power_loss(lab: Lab) -> None:
    lab.sandbox.kill_node("n2")
    lab.sandbox.revive_node("n2")
    assert lab.run("srun", "-w", "n2", "hostname") == "n2"


@pytest.mark.slow
def test_accounting_answers_inside_the_nodes_of_a_network(tmp_path: Path) -> None:
    with running_lab(tmp_path / "x", nodes=1, network=True, accounting=True) as lab:
        assert lab.run("srun", "sacctmgr", "-n", "-P", "show", "cluster", "format=cluster") == "sandbox"


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["claimed", "network"])
def test_down_removes_the_network_of_an_up_that_was_killed(tmp_path: Path, stage: str) -> None:
    directory = tmp_path / HOSTILE
    process = _start_up(directory, "--nodes", "100", "--network")
    try:
        place = wait(lambda: find_place(directory), "the slot is claimed")
        # Before its first record nobody knows who made the directory, and it stays.
        wait(lambda: isinstance(read_state(place), SandboxState), "the claim is on record")
        if stage == "network":
            wait(lambda: len(traces(place.slot)) > 20, "some of the network is there")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    finally:
        end_group(process)
    assert end_directory(directory, CLOCK).was_there
    assert traces(place.slot) == set()
    assert not directory.exists()
