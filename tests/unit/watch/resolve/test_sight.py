"""A chain that is not there is a wrong word (64); one that cannot be looked at is a degraded watcher (1)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, NvrxError, RecordError, SlurmError, SlurmUnavailable, UsageError
from nvrx_watch import cli
from nvrx_watch.resolve.by_directory import resolve_run_directory
from nvrx_watch.resolve.sight import is_blind
from tests.rundirs import Size, write_own

NOBODY = 65534


@contextlib.contextmanager
def somebody_else() -> Iterator[None]:
    """Who may not look into a directory of mode 700: root for a while as nobody, any other user as it is."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def run_directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "a run & #1 'q' 100%"
    write_own(directory, Size(generations=1, cycles=1))
    yield directory
    directory.chmod(0o700)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["nvrx-watch", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, False),
        (errno.ENOTDIR, False),
        (errno.ELOOP, False),
        (errno.ENAMETOOLONG, False),
        (errno.EACCES, True),
        (errno.EPERM, True),
        (errno.EIO, True),
        (errno.ESTALE, True),
        (errno.ETIMEDOUT, True),
        (errno.EHOSTDOWN, True),
        (errno.ENOTCONN, True),
        (errno.EMFILE, True),
    ],
    ids=errno.errorcode.get,
)
def test_what_the_system_says_to_a_path_decides(number: int, expected: bool) -> None:
    error = RecordError("reading the chain")
    error.__cause__ = OSError(number, os.strerror(number))
    assert is_blind(error) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RecordError("no chain was submitted"), False),
        (IdentityError("it is another's"), False),
        (SlurmError("squeue did not answer"), True),
        (SlurmUnavailable("there is no squeue"), True),
        (UsageError("reading --config"), False),
    ],
    ids=str,
)
def test_without_a_word_of_the_system_the_kind_of_error_decides(error: NvrxError, expected: bool) -> None:
    assert is_blind(error) == expected


def test_settings_that_may_not_be_read_are_bad_usage() -> None:
    error = UsageError("reading --config")
    error.__cause__ = PermissionError(errno.EACCES, "no")
    assert not is_blind(error)


def test_a_manifest_that_may_not_be_read_is_said_with_the_word_of_the_system(run_directory: Path) -> None:
    run_directory.chmod(0)
    with somebody_else(), pytest.raises(RecordError, match="Permission denied") as caught:
        resolve_run_directory(run_directory)
    assert isinstance(caught.value.__cause__, PermissionError)
    assert is_blind(caught.value)


def test_a_directory_that_may_not_be_read_is_a_degraded_watcher(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--run-dir={run_directory}", "--platform=none", f"--state-dir={run_directory.parent / 'state'}")
    assert run(monkeypatch, *words) in (0, 2)
    run_directory.chmod(0)
    with somebody_else():
        assert run(monkeypatch, *words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Permission denied" in said


@pytest.mark.parametrize("kind", ["nothing", "a file", "an empty directory", "a loop", "a fifo", "a socket", "damaged"])
def test_a_directory_without_a_chain_is_bad_usage(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    if kind == "a file":
        directory.write_text("")
    elif kind != "nothing":
        directory.mkdir()
    manifest = directory / "chain.json"
    if kind == "a loop":
        manifest.symlink_to(manifest)
    elif kind == "a fifo":
        os.mkfifo(manifest)
    elif kind == "a socket":
        monkeypatch.chdir(directory)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(manifest.name)
    elif kind == "damaged":
        manifest.write_text('{"chain_id": ')
    assert run(monkeypatch, f"--run-dir={directory}", "--platform=none", f"--state-dir={tmp_path / 'state'}") == 64
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(directory) in said


def test_a_work_directory_that_may_not_be_seen_is_a_degraded_watcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    (closed / "work").mkdir(parents=True)
    closed.chmod(0)
    words = (f"--work-dir={closed / 'work'}", "--platform=none", f"--state-dir={tmp_path / 'state'}")
    with somebody_else():
        assert run(monkeypatch, *words) == 1
    closed.chmod(0o700)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Permission denied" in said


def test_an_error_is_one_line_whatever_a_file_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, f"--run-dir={tmp_path}/two\nlines \x1b[2J", "--platform=none") == 64
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
