"""Files of secrets: one clear line for what cannot be one, at once, and never the secret."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_watch.secret_file import LARGEST_BYTES, read_secret_file

ROOT = Path(__file__).parents[3]
FLAG = "--pd-routing-key-file"
SECRET = "R0UT1NG-K3Y"


def make_socket(path: Path) -> None:
    # Bound by a short name: the path of a test is longer than such a name may be.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def make_sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "no such file"),
    "a directory": (Path.mkdir, "not a regular file"),
    "a fifo": (os.mkfifo, "not a regular file"),
    "a socket": (make_socket, "No such device"),
    "a loop": (lambda path: path.symlink_to(path), "symbolic link"),
    "a long loop": (lambda path: (path.symlink_to("b"), path.with_name("b").symlink_to(path.name)), "symbolic link"),
    "a link to nothing": (lambda path: path.symlink_to("nothing here"), "no such file"),
    "a link to zeros": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a terabyte": (make_sparse, "larger than 4096 bytes"),
    "one byte too many": (lambda path: path.write_text(SECRET[0] * (LARGEST_BYTES + 1)), "larger than 4096 bytes"),
    "nothing in it": (Path.touch, "it is empty"),
    "blanks": (lambda path: path.write_text(" \n\t\n"), "it is empty"),
    "a mark and blanks": (lambda path: path.write_bytes(b"\xef\xbb\xbf\n"), "it is empty"),
    "two lines": (lambda path: path.write_text(f"{SECRET}\nanother {SECRET}\n"), "it has 2 lines"),
    "an escape": (lambda path: path.write_text(f"{SECRET}\x1b[A"), "characters that no key"),
    "a NUL": (lambda path: path.write_text(f"{SECRET}\0"), "characters that no key"),
    "other bytes": (lambda path: path.write_bytes(SECRET.encode() + b"\xff"), "no text in UTF-8"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_secret_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    make, says = ODD[kind]
    path = tmp_path / "a key & #1"
    make(path)
    with pytest.raises(UsageError, match=says) as caught:
        read_secret_file(path, FLAG)
    said = str(caught.value)
    assert FLAG in said
    assert "a key & #1" in said
    assert said.isprintable()
    assert SECRET not in said
    assert len(said) < 900


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_secret_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        read_secret_file(path, FLAG)


@pytest.mark.parametrize(
    "content",
    [SECRET, f"{SECRET}\n", f"\ufeff{SECRET}\r\n", f"  {SECRET} \n\n"],
    ids=["bare", "line", "windows", "loose"],
)
def test_what_stands_around_a_secret_is_no_part_of_it(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(content, newline="")
    path.chmod(0o600)
    found = read_secret_file(path, FLAG)
    assert found.text == SECRET
    assert found.note is None
    assert SECRET not in repr(found)


def test_a_link_to_a_secret_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(SECRET)
    (tmp_path / "link").symlink_to("real")
    assert read_secret_file(tmp_path / "link", FLAG).text == SECRET


def test_many_secrets_stand_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "urls").write_text("json://a\r\n\n json://b \n")
    assert read_secret_file(tmp_path / "urls", FLAG, many_lines=True).text.split() == ["json://a", "json://b"]


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_secret_that_everybody_may_read_is_said(mode: int, is_open: bool, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(mode)
    note = read_secret_file(path, FLAG).note
    assert (note is not None) == is_open
    if note is not None:
        assert "chmod 600" in note
        assert SECRET not in note


@pytest.mark.parametrize("text", [SECRET, "https://hooks.example/T1/R0UT1NG-K3Y", "slack://R0UT1NG-K3Y/x/y"])
def test_a_secret_in_the_place_of_its_file_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        read_secret_file(Path(text), FLAG)
    assert SECRET not in str(caught.value)


def test_a_home_that_no_shell_expanded_is_said() -> None:
    with pytest.raises(UsageError, match="not expanded"):
        read_secret_file(Path("~/.pd"), FLAG)


@pytest.mark.parametrize("name", ["pd-routing-key", "webhook-url", "heartbeat-url", "notify"])
def test_the_command_ends_at_once_with_64_and_one_line(name: str, tmp_path: Path) -> None:
    flag = f"--{name}-file"
    fifo = tmp_path / "key"
    os.mkfifo(fifo)
    argv = [sys.executable, "-m", "nvrx_watch", "1", f"{flag}={fifo}"]
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
    assert flag in done.stderr
