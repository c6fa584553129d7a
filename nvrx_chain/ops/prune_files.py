"""The files that a prune may remove: found by name and owner below a run directory, and removed there.

Every directory is opened relative to the one before it and never through a link; only names that nvrx-chain and the
launchers make are known, and nothing of another user goes. Touches: those files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvrx_chain.records.layout import SEGMENT_HEALTH

log = logging.getLogger(__name__)

_PARTS: dict[str, re.Pattern[str]] = {
    "control": re.compile(
        rf"\.?[a-z_]+(?:\.[\w.-]+)?\.json(?:\.\d+\.[0-9a-f]+\.tmp)?|{SEGMENT_HEALTH}\.\d+\.\d+", re.ASCII
    ),
    "logs": re.compile(r"(?:task|launcher|app)(?:_[\w.-]+)?\.log(?:\.\d+)?", re.ASCII),
    "cycle_infos": re.compile(r"\.?(?:cycle_info|cycle_facts|outcome)\.[\w.-]*", re.ASCII),
    "timeline": re.compile(r"marks\.[\w.-]+\.jsonl", re.ASCII),
}
_OF_HISTORY = re.compile(r"\.?(?:chain|chain_outcome|hold|ending|excluded|\d{4,9}(?:\.id)?)\.json", re.ASCII)
_SUBMISSIONS = "submissions"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """One file that goes: its generation (None: of history/), its directory below the run directory, name and size."""

    job: int | None
    directory: tuple[str, ...]
    name: str
    size: int


@contextlib.contextmanager
def open_below(root: int | os.PathLike[str], parts: Sequence[str]) -> Iterator[int | None]:
    """A descriptor of a directory, reached without a link below `root`; None when it is not there."""
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(root, int):
                descriptor = os.dup(root)
            else:
                descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            for part in parts:
                descriptor = os.open(part, _DIRECTORY, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
        except OSError as error:
            log.debug("not opened parts=%s error=%s", parts, error)
            yield None
            return
        yield descriptor


def list_started(root: int) -> list[int]:
    """The array jobs of the generations that have begun, oldest first."""
    with open_below(root, ("generations",)) as directory:
        names = os.listdir(directory) if directory is not None else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def find_of_generation(root: int, job: int, owner: int, left_alone: dict[str, str]) -> Iterator[Doomed]:
    """What of one generation may go; `left_alone` gets the others with the reason."""
    for part, known in _PARTS.items():
        yield from _list(root, ("generations", str(job), part), known, owner, left_alone, job=job)
    batch_output = re.compile(rf"slurm-{job}_\d{{1,9}}\.log", re.ASCII)
    # The directory of all generations: the others' are no news.
    yield from _list(root, ("logs",), batch_output, owner, {}, job=job)


def find_of_history(root: int, owner: int, left_alone: dict[str, str]) -> Iterator[Doomed]:
    """What of older chains' records may go; `left_alone` gets the others with the reason."""
    with open_below(root, ("history",)) as directory:
        names = sorted(os.listdir(directory)) if directory is not None else []
    for name in names:
        for parts in (("history", name), ("history", name, _SUBMISSIONS)):
            yield from _list(root, parts, _OF_HISTORY, owner, left_alone, job=None)


def _list(
    root: int,
    parts: tuple[str, ...],
    known: re.Pattern[str],
    owner: int,
    left_alone: dict[str, str],
    *,
    job: int | None,
) -> Iterator[Doomed]:
    with open_below(root, parts) as directory:
        if directory is None:
            return
        for name in sorted(os.listdir(directory)):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if name == _SUBMISSIONS and stat.S_ISDIR(status.st_mode):
                continue
            why = _why_not(name, status, known, owner)
            if why is None:
                yield Doomed(job=job, directory=parts, name=name, size=status.st_size)
            else:
                left_alone["/".join((*parts, name))] = why


def _why_not(name: str, status: os.stat_result, known: re.Pattern[str], owner: int) -> str | None:
    """Why a file stays; None when it may go. A link goes as itself; what it points to is never looked at."""
    if status.st_uid != owner:
        return f"it belongs to uid {status.st_uid}"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return "it is no file"
    return None if known.fullmatch(name) else "nvrx-chain does not know it"


def remove_file(root: int, one: Doomed, owner: int) -> str | None:
    """Remove one file. None when it is gone, else why it stays."""
    with open_below(root, one.directory) as directory:
        if directory is None:
            return None
        try:
            status = os.stat(one.name, dir_fd=directory, follow_symlinks=False)
            if status.st_uid != owner or stat.S_ISDIR(status.st_mode):
                return "it is another one now"
            os.unlink(one.name, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be removed: {error.strerror}"
    return None


def remove_empty(root: int, directories: set[tuple[str, ...]]) -> None:
    """Remove directories that are empty now, the deepest first; logs/ of the run directory stays: Slurm makes none."""
    wanted = {parts for parts in directories if len(parts) > 1}
    wanted |= {parts[:-1] for parts in wanted if parts[-1] == _SUBMISSIONS}
    for parts in sorted(wanted, key=len, reverse=True):
        with open_below(root, parts[:-1]) as parent:
            if parent is not None:
                # Not empty: something that is not ours to remove lies there.
                with contextlib.suppress(OSError):
                    os.rmdir(parts[-1], dir_fd=parent)
