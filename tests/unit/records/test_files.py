"""Single files on a file system that lags, stalls and repeats itself: what is read, what is written, who was first."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.control import SCHEMA, Hold
from nvrx_chain.records.files import (
    MAX_RECORD_BYTES,
    encode_record,
    list_names,
    read_bytes,
    read_record,
    write_atomic,
    write_first,
)

RACERS = 6
ROUNDS = 25

HOLD = Hold(chain_id="c", by="alice", why="it fails", held_at="2026-01-01T00:00:00Z", array_job_ids=(7, 8))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "a b&c#'100%\""
    path.mkdir()
    return path


RACE = """
import pathlib, sys
from nvrx_chain.records.files import write_first
directory, number = pathlib.Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
won = [turn for turn in range(25) if write_first(directory / f"closed.{turn}", number.encode())]
print(*won)
"""


def test_of_many_processes_exactly_one_is_first(directory: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(directory), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(RACERS)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [racer.communicate(timeout=120)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACERS
    assert sorted(int(turn) for won in wins for turn in won) == list(range(ROUNDS))
    for number, won in enumerate(wins):
        for turn in won:
            assert read_bytes(directory / f"closed.{turn}") == f"{number}".encode()


def test_who_comes_second_neither_wins_nor_changes_the_file(directory: Path) -> None:
    path = directory / "closed.json"
    assert write_first(path, b"first")
    assert not write_first(path, b"second")
    assert path.read_bytes() == b"first"


def lose_reply(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """A server that makes the link and loses the reply, so that the client sees an error."""
    link = os.link

    def link_and_fail(source: Path, target: Path) -> None:
        link(source, target)
        raise error

    monkeypatch.setattr(os, "link", link_and_fail)


@pytest.mark.parametrize("error", [FileExistsError(errno.EEXIST, "exists"), OSError(errno.EIO, "lost")])
def test_a_lost_reply_of_the_server_is_still_a_win(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    lose_reply(monkeypatch, error)
    assert write_first(directory / "closed.json", b"mine")
    assert (directory / "closed.json").read_bytes() == b"mine"


def test_a_file_system_without_hard_links_is_an_error_with_a_hint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(RecordError, match="hard links"):
        write_first(directory / "closed.json", b"mine")
    assert os.listdir(directory) == []


def test_a_temporary_that_vanished_after_a_refused_link_is_a_loss_and_no_crash(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clean_up_and_refuse(source: Path, _target: Path) -> None:
        os.unlink(source)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", clean_up_and_refuse)
    assert not write_first(directory / "closed.json", b"mine")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_directory_that_cannot_be_synced_undoes_no_write(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sync = os.fsync

    def sync_files_only(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    assert write_first(directory / "closed.json", b"mine")
    write_atomic(directory / "record.json", b"there")
    assert (directory / "record.json").read_bytes() == b"there"


def test_no_reader_ever_sees_half_a_file_that_is_replaced(directory: Path) -> None:
    path = directory / "lease.0.json"
    write_atomic(path, b"a" * 100_000)
    code = (
        "import sys, pathlib; from nvrx_chain.records.files import write_atomic\n"
        "for i in range(60): write_atomic(pathlib.Path(sys.argv[1]), bytes([97 + i % 26]) * 100_000)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as writer:
        looks = 0
        while writer.poll() is None:
            content = read_bytes(path)
            assert isinstance(content, bytes)
            assert len(content) == 100_000
            assert len(set(content)) == 1
            looks += 1
    assert writer.returncode == 0
    assert looks > 10


WRITE_TOO_MUCH = """
import pathlib, resource, sys
from nvrx_chain.errors import RecordError
from nvrx_chain.records import files
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    getattr(files, sys.argv[2])(pathlib.Path(sys.argv[1]), b"x" * 100_000)
except RecordError as error:
    print(error)
"""


@pytest.mark.parametrize("function", ["write_atomic", "write_first"])
def test_a_write_cut_short_keeps_the_old_file_and_leaves_no_litter(directory: Path, function: str) -> None:
    # The file size limit of a process cuts a write as a full file system does: part of it, then an error.
    path = directory / "chain.json"
    if function == "write_atomic":
        path.write_bytes(b"old")
    before = sorted(os.listdir(directory))
    done = subprocess.run(
        [sys.executable, "-c", WRITE_TOO_MUCH, str(path), function],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "writing" in done.stdout
    assert "chain.json" in done.stdout
    assert sorted(os.listdir(directory)) == before
    assert function != "write_atomic" or path.read_bytes() == b"old"


def test_a_short_write_that_reports_success_is_found_by_its_size(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def cut(descriptor: int) -> None:
        if os.path.isfile(f"/proc/self/fd/{descriptor}"):
            os.ftruncate(descriptor, 3)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(RecordError, match="No space left"):
        write_first(directory / "closed.json", b"more than three bytes")
    assert os.listdir(directory) == []


def test_a_directory_that_is_gone_is_an_error_that_names_the_file(directory: Path) -> None:
    for write in (write_atomic, write_first):
        with pytest.raises(RecordError, match=r"closed\.json"):
            write(directory / "gone" / "closed.json", b"mine")


def test_a_mode_is_kept(directory: Path) -> None:
    write_atomic(directory / "rendezvous.json", b"secret", mode=0o600)
    assert (directory / "rendezvous.json").stat().st_mode & 0o777 == 0o600


# Reading


def make_symlink(path: Path) -> None:
    path.with_name("target").write_bytes(b"{}")
    path.symlink_to("target")


def make_dangling_symlink(path: Path) -> None:
    path.symlink_to("nowhere")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_oversize(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(MAX_RECORD_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_symlink, "symbolic link"),
        (make_dangling_symlink, "symbolic link"),
        (make_fifo, "not a regular file"),
        (make_directory, "not a regular file"),
        (make_oversize, "larger than"),
    ],
)
def test_what_is_no_plain_small_file_is_unobserved_at_once(
    directory: Path, make: Callable[[Path], None], reason: str
) -> None:
    path = directory / "closed.json"
    make(path)
    content = read_bytes(path)
    assert isinstance(content, Unobserved)
    assert reason in content.reason


@pytest.mark.parametrize("make", [make_fifo, make_directory, make_oversize])
def test_a_poll_of_what_cannot_be_read_keeps_no_descriptor(directory: Path, make: Callable[[Path], None]) -> None:
    path = directory / "closed.json"
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        read_bytes(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_largest_size_is_read(directory: Path) -> None:
    path = directory / "closed.json"
    path.write_bytes(b"x" * MAX_RECORD_BYTES)
    assert read_bytes(path) == b"x" * MAX_RECORD_BYTES


def test_absent_is_none_also_where_the_directory_is_absent_or_no_directory(directory: Path) -> None:
    (directory / "file").write_bytes(b"")
    assert read_bytes(directory / "closed.json") is None
    assert read_bytes(directory / "gone" / "closed.json") is None
    assert read_bytes(directory / "file" / "closed.json") is None


def test_a_file_of_another_user_is_unobserved(directory: Path) -> None:
    path = directory / "closed.json"
    path.write_bytes(b"{}")
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    owner = path.stat().st_uid
    foreign = read_bytes(path, owner_uid=owner + 1)
    assert isinstance(foreign, Unobserved)
    assert f"uid {owner}" in foreign.reason
    assert read_bytes(path, owner_uid=owner) == b"{}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to root")
def test_a_file_of_root_is_believed(directory: Path) -> None:
    path = directory / "closed.json"
    path.write_bytes(b"{}")
    assert read_bytes(path, owner_uid=12345) == b"{}"


def go_stale(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """A server that renamed the file under the client: the next `times` opens find a stale handle."""
    opened: list[int] = []
    real = os.open

    def open_stale(path: str | Path, flags: int, *rest: int) -> int:
        if str(path).endswith("closed.json"):
            opened.append(flags)
            if len(opened) <= times:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", open_stale)
    return opened


def test_a_stale_handle_is_opened_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "closed.json").write_bytes(b"new")
    opened = go_stale(monkeypatch, times=2)
    assert read_bytes(directory / "closed.json") == b"new"
    assert len(opened) == 3


def test_a_handle_that_stays_stale_is_unobserved_and_not_absent(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "closed.json").write_bytes(b"new")
    go_stale(monkeypatch, times=100)
    content = read_bytes(directory / "closed.json")
    assert isinstance(content, Unobserved)
    assert "stale" in content.reason


BROKEN = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"{}",
    b"\xff\xfe",
    b'{"chain_id": 7}',
    b"[" * 100_000,
    b'{"schema": ' + b"9" * 5000 + b"}",
    encode_record(HOLD)[:40],
    encode_record(HOLD).replace(b'"alice"', b"\xff"),
    encode_record(HOLD) + b"{",
]


@pytest.mark.parametrize("content", BROKEN)
def test_what_is_no_such_record_is_unobserved(directory: Path, content: bytes) -> None:
    (directory / "hold.json").write_bytes(content)
    record = read_record(directory / "hold.json", Hold)
    assert isinstance(record, Unobserved)
    assert "Hold" in record.reason


@given(content=st.binary(max_size=200))
def test_no_content_makes_a_reader_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("r", numbered=True) / "hold.json"
    path.write_bytes(content)
    assert isinstance(read_record(path, Hold), Unobserved)


def test_a_record_comes_back_as_it_was_written_and_reads_well(directory: Path) -> None:
    write_atomic(directory / "hold.json", encode_record(HOLD))
    assert read_record(directory / "hold.json", Hold) == HOLD
    text = (directory / "hold.json").read_text()
    assert text.endswith("}\n")
    assert f'  "schema": {SCHEMA},\n' in text


def test_a_field_of_a_later_version_is_ignored(directory: Path) -> None:
    later = encode_record(HOLD).replace(b'"why"', b'"colour": {"of": ["the", "sky"]},\n  "why"')
    assert b"colour" in later
    (directory / "hold.json").write_bytes(later)
    assert read_record(directory / "hold.json", Hold) == HOLD


def test_listing_tells_absent_empty_and_unreadable_apart(directory: Path) -> None:
    (directory / "file").write_bytes(b"")
    (directory / "empty").mkdir()
    assert list_names(directory / "gone") is None
    assert list_names(directory / "empty") == ()
    assert list_names(directory) == ("empty", "file")
    assert isinstance(list_names(directory / "file"), Unobserved)


def test_the_file_size_limit_of_this_process_is_untouched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096
