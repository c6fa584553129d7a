"""Directories for sockets: short, private, and not left behind for good."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_chain.errors import NvrxError
from nvrx_chain.launcher import socket_directory
from nvrx_chain.launcher.socket_directory import SocketDirectory
from tests.rank_lab import ROOT

OWNER = (
    "import sys, socket, time\nfrom pathlib import Path\n"
    "from nvrx_chain.launcher.socket_directory import SocketDirectory\n"
    "place = SocketDirectory(Path(sys.argv[1]))\nsocket.socket(socket.AF_UNIX).bind(str(place.path / '0.0'))\n"
    "print(place.path, flush=True); time.sleep(1000)"
)


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("b")


def start_owner(base: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(base)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    os.utime(path, (0, 0))
    return process, path


def test_what_a_killed_launcher_left_is_removed_and_a_living_one_keeps_its_own(base: Path) -> None:
    killed, left = start_owner(base)
    living, kept = start_owner(base)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=20)
        assert left.is_dir()
        SocketDirectory(base).close()
        assert not left.exists()
        assert (kept / "0.0").is_socket()
    finally:
        living.kill()
        living.communicate(timeout=20)


def test_a_young_directory_is_left_alone_and_so_is_what_is_no_socket(base: Path) -> None:
    young = base / f"{socket_directory._prefix()}young"
    young.mkdir()
    full = base / f"{socket_directory._prefix()}full"
    full.mkdir()
    (full / "data").write_text("mine")
    os.utime(full, (0, 0))
    target = base / "target"
    target.mkdir()
    os.utime(target, (0, 0))
    (base / f"{socket_directory._prefix()}link").symlink_to(target)
    SocketDirectory(base).close()
    assert young.is_dir()
    assert (full / "data").read_text() == "mine"
    assert target.is_dir()


def test_a_path_that_is_too_long_gives_way_to_a_short_one(base: Path) -> None:
    deep = base / ("d" * 90)
    deep.mkdir()
    place = SocketDirectory(deep)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place.path / "0.0"))
    place.close()
    assert not place.path.exists()


def test_no_place_at_all_is_one_error_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_directory, "_parents", lambda base: (Path("/nowhere"), Path("/" + "x" * 120)))
    with pytest.raises(NvrxError) as caught:
        SocketDirectory()
    assert "/nowhere: No such file" in str(caught.value)
    assert "too long" in str(caught.value)
