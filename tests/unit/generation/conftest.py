"""What every test of a generation needs: a chain of three generations, the first of which runs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.generation.hooks import VARIABLE
from tests.fakes.generation_lab import Lab


@pytest.fixture(autouse=True)
def _no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of the fake Slurm have addresses, 10.0.0.7 for n7, where nothing listens."""
    real = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **options: Any) -> Any:
        node = re.fullmatch(r"n(\d+)", str(host))
        return real(f"10.0.0.{node[1]}" if node else host, *rest, **options)

    connect = socket.create_connection

    def refuse(address: Any, *rest: Any, **options: Any) -> Any:
        # Somebody real may have such an address, and answer.
        if re.fullmatch(r"n\d+|10\.0\.0\.\d+", str(address[0])):
            raise ConnectionRefusedError("nothing listens on the nodes of the fake Slurm")
        return connect(address, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: hours of leases are written, and a disk takes a while to sync each."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="nvrx-chain-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """T=2 H=1 C=2, three generations queued as jobs 1, 5 and 6; tasks 0 to 2 of job 1 run on n1 to n3."""
    lab = Lab(tmp_path)
    assert lab.submit(3) == [1, 5, 6]
    assert [lab.slurm.task(f"1_{task}").nodelist for task in range(3)] == ["n1", "n2", "n3"]
    return lab
