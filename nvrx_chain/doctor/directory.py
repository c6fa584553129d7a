"""The run directory as one machine sees it, by doing there what a chain does: atomic writes, first-wins links.

Touches: the run directory, or the nearest one above it that exists: a scratch directory in it that `sweep` removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from pathlib import Path

import msgspec

from nvrx_chain.doctor.facts import ChainFacts, Directory, Echo
from nvrx_chain.errors import NvrxError, RecordError, Unobserved
from nvrx_chain.records.files import list_names, read_bytes, read_record, refresh_names, write_atomic, write_first
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.submit.mounts import read_file_system

WRITES = 5
POLL_SECONDS = 0.05
SCRATCH_PREFIX = ".nvrx-doctor-"
_FROM_NODE, _FROM_LOGIN = "from-node", "from-login"


class _Hello(msgspec.Struct, frozen=True):
    wrote_at: float


class _Answer(msgspec.Struct, frozen=True):
    saw_at: float
    wrote_at: float


def nearest(path: Path) -> Path:
    """The directory itself, or the nearest one above it that is there."""
    return next((parent for parent in (path, *path.parents) if parent.is_dir()), Path("/"))


def scratch_of(tested: Path, token: str) -> Path:
    return tested / f"{SCRATCH_PREFIX}{token}"


def read_login_directory(path: Path, token: str) -> Directory:
    """On the login node: makes the scratch directory and tries it."""
    tested = nearest(path)
    scratch = scratch_of(tested, token)
    try:
        scratch.mkdir(mode=0o700)
    except OSError as error:
        return _described(path, tested, problem=f"nothing can be made in {tested}: {error.strerror}")
    return _tried(path, tested, scratch, "login")


def read_node_directory(path: Path, tested: Path, token: str, *, seconds: float) -> Directory:
    """On the compute node: waits until the login node's scratch directory is seen, exchanges a file, tries it."""
    scratch = scratch_of(tested, token)
    began = time.monotonic()
    problem = _wait_for_scratch(scratch, began + seconds)
    if problem is not None:
        return _described(path, tested, problem=problem)
    seen_after = time.monotonic() - began
    echo = _exchange(scratch, began + seconds)
    seen = _tried(path, tested, scratch, "node")
    known = {"echo_problem": echo.reason} if isinstance(echo, Unobserved) else {"echo": echo}
    return msgspec.structs.replace(seen, seen_after_seconds=seen_after, **known)


def answer_node(tested: Path, token: str, *, seconds: float) -> None:
    """On the login node, while the node looks: answer its file as soon as it is seen."""
    scratch = scratch_of(tested, token)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        names = list_names(scratch)
        if isinstance(names, tuple) and _FROM_NODE in names:
            answer = _Answer(saw_at=time.time(), wrote_at=time.time())
            write_atomic(scratch / _FROM_LOGIN, msgspec.json.encode(answer))
            return
        time.sleep(POLL_SECONDS)


def sweep(tested: Path, token: str) -> None:
    """Remove the scratch directory with what either machine left in it."""
    scratch = scratch_of(tested, token)
    # A node that still writes can put a file back between the two steps of a removal.
    for _ in range(3):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return
    raise RecordError(f"removing {scratch}", hint="remove it by hand, nothing needs it")


def read_chain(path: Path) -> ChainFacts | None:
    """What `chain.json` asks for; None when the directory has no chain. Raises RecordError when it cannot be read."""
    manifest = read_record(RunDirectory(path).manifest, ChainManifest)
    if isinstance(manifest, Unobserved):
        raise RecordError(manifest.reason)
    if manifest is None:
        return None
    return ChainFacts(
        interpreter=manifest.interpreter,
        python=manifest.launcher.python,
        launcher=manifest.launcher.kind.value,
        tasks=manifest.shape.total,
        tasks_at_once=manifest.shape.throttle,
        chain_depth=manifest.chain_depth,
        gpus_per_node=manifest.shape.gpus_per_node,
    )


def _wait_for_scratch(scratch: Path, deadline: float) -> str | None:
    """None once it is seen. Names that are missing may be so in a cache only, other errors are believed at once."""
    began = time.monotonic()
    while True:
        refresh_names(scratch.parent)
        try:
            os.listdir(scratch)
            return None
        except FileNotFoundError:
            where = f"what the login node wrote in {scratch.parent}" if scratch.parent.is_dir() else str(scratch.parent)
            missing = f"{where} is not there"
        except OSError as error:
            return f"{scratch.parent} cannot be read: {error.strerror}"
        if time.monotonic() > deadline:
            return f"{missing}, also after {time.monotonic() - began:.0f} s"
        time.sleep(POLL_SECONDS)


def _exchange(scratch: Path, deadline: float) -> Echo | Unobserved:
    wrote_at = time.time()
    try:
        write_atomic(scratch / _FROM_NODE, msgspec.json.encode(_Hello(wrote_at=wrote_at)))
    except RecordError as error:
        return Unobserved(str(error))
    while time.monotonic() < deadline:
        # Listing refreshes the names that an NFS client remembers.
        list_names(scratch)
        content = read_bytes(scratch / _FROM_LOGIN)
        if isinstance(content, bytes):
            answer = msgspec.json.decode(content, type=_Answer)
            return Echo(
                node_wrote_at=wrote_at,
                login_saw_at=answer.saw_at,
                login_wrote_at=answer.wrote_at,
                node_saw_at=time.time(),
            )
        time.sleep(POLL_SECONDS)
    return Unobserved("the login node did not answer the node's file in time")


def _tried(path: Path, tested: Path, scratch: Path, who: str) -> Directory:
    times: list[float] = []
    try:
        for number in range(WRITES):
            began = time.monotonic()
            write_atomic(scratch / f"{who}-{number % 2}", b"x" * 512)
            times.append(time.monotonic() - began)
        first, second = (write_first(scratch / f"{who}-first", b"x") for _ in range(2))
    except NvrxError as error:
        return _described(path, tested, problem=str(error), write_seconds=statistics.median(times) if times else None)
    return _described(path, tested, write_seconds=statistics.median(times), first_wins=first and not second)


def _described(
    path: Path,
    tested: Path,
    *,
    problem: str | None = None,
    write_seconds: float | None = None,
    first_wins: bool | None = None,
) -> Directory:
    mount = read_file_system(tested)
    free_bytes = free_files = None
    with contextlib.suppress(OSError):
        status = os.statvfs(tested)
        # Btrfs and some network file systems count no files at all.
        free_bytes, free_files = status.f_frsize * status.f_bavail, status.f_favail if status.f_files else None
    return Directory(
        path=str(path),
        tested=str(tested),
        kind=None if isinstance(mount, Unobserved) else mount.kind,
        mount_point=None if isinstance(mount, Unobserved) else mount.mount_point,
        reach=None if isinstance(mount, Unobserved) else mount.reach.value,
        problem=problem,
        write_seconds=write_seconds,
        first_wins=first_wins,
        free_bytes=free_bytes,
        free_files=free_files,
    )
