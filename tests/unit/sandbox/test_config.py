from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.sandbox.config import Addresses, Place, Ports, SandboxConfig, default_directory
from nvrx_chain.sandbox.record import REGISTER

DIRECTORY = Path("/somewhere")


@pytest.mark.parametrize(
    ("option", "low", "high"),
    [
        ("nodes", 1, 250),
        ("gpus_per_node", 0, 64),
        ("cpus_per_node", 1, 1024),
        ("kill_wait_seconds", 1, 65535),
        ("slurmd_timeout_seconds", 3, 65535),
        ("max_array_size", 1, 4_000_001),
        ("kill_on_bad_exit", 0, 1),
    ],
)
def test_an_option_is_refused_one_step_outside_its_range(option: str, low: int, high: int) -> None:
    default = SandboxConfig(directory=DIRECTORY)
    for inside in (low, high):
        assert getattr(dataclasses.replace(default, **{option: inside}), option) == inside
    for outside in (low - 1, high + 1):
        with pytest.raises(UsageError, match="out of range: --"):
            dataclasses.replace(default, **{option: outside})


def test_a_directory_must_be_absolute_and_writable_as_json() -> None:
    with pytest.raises(UsageError, match="not absolute: relative"):
        SandboxConfig(directory=Path("relative"))
    with pytest.raises(UsageError, match="not UTF-8"):
        SandboxConfig(directory=Path(os.fsdecode(b"/tmp/\xff")))


def test_the_default_directory_follows_the_xdg_specification() -> None:
    assert default_directory({"XDG_STATE_HOME": "/s t", "HOME": "/h"}) == Path("/s t/nvrx-chain/sandbox")
    assert default_directory({"HOME": "/h"}) == Path("/h/.local/state/nvrx-chain/sandbox")
    # The specification: a relative value is ignored.
    assert default_directory({"XDG_STATE_HOME": "state", "HOME": "/h"}) == Path("/h/.local/state/nvrx-chain/sandbox")


def test_socket_paths_fit_whatever_the_directory_is_called() -> None:
    place = Place(runtime=REGISTER / "249-3fa9c1", slot=249, directory=Path("/" + "long/" * 100))
    for path in (place.munge_socket, place.database_socket):
        assert len(os.fsencode(path)) < 108


def test_no_two_nodes_of_two_sandboxes_share_an_address() -> None:
    places = [Place(runtime=REGISTER / str(slot), slot=slot, directory=DIRECTORY) for slot in (10, 11, 249)]
    for network in (False, True):
        config = SandboxConfig(directory=DIRECTORY, network=network)
        addresses = [place.addresses(config).node(index) for place in places for index in range(1, 251)]
        assert len(set(addresses)) == len(addresses)
        own = {place.addresses(config).controller for place in places}
        assert not {"127.0.0.1", "127.0.1.1", *own} & set(addresses)


def test_no_device_of_one_sandbox_is_taken_for_one_of_another() -> None:
    one, ten = Addresses(slot=1, network=True), Addresses(slot=10, network=True)
    names = [ten.bridge, ten.host_end(250), ten.namespace(250)]
    assert all(len(name) <= 15 for name in [*names, Addresses(slot=249, network=True).host_end(250)])
    assert all(ten.owns(name) and not one.owns(name) for name in names)
    assert not any(ten.owns(name) for name in ("eth0", "nvrx10x", "xnvrx10", "nvrx10n", "nvrx100", "nvrx100n1"))


def test_all_ports_are_counted() -> None:
    assert Ports(controller=1, nodes=(2, 3)).all == {1, 2, 3}
    assert Ports(controller=1, nodes=(2, 3), database_daemon=4).all == {1, 2, 3, 4}
