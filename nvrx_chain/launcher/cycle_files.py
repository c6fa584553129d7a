"""Writes the cycle records of a job on its rendezvous host: one file a cycle, and a link to the newest.

Files come into being whole (temporary name, fsync, link or rename), and never replace one of another run. All of it
happens in a thread of its own. Touches: the directory of the cycle records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.launcher.writing import WriterThread, Written
from nvrx_chain.records.cycle_info import CycleDirectory, CycleFacts, CycleInfo
from nvrx_chain.records.files import encode_record, list_names, sync_directory, write_atomic, write_first
from nvrx_chain.slurm.nodelist import expand_nodes, fold_nodes

log = logging.getLogger(__name__)

CURRENT_CYCLE_INFO = "NVRX_CURRENT_CYCLE_INFO"
"""Tells a worker the path of the record of its own cycle: not of the link, which moves on to the next cycle."""
FLUSH_SECONDS = 5.0


def identify_job(environ: Mapping[str, str]) -> tuple[str, int]:
    """Job id and attempt as NVRx takes them from Slurm; ("", 0) outside."""
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID") or ""
    attempt = environ.get("SLURM_RESTART_COUNT") or "0"
    if not (attempt.isascii() and attempt.isdigit()):
        log.warning("an attempt that is no number counts as 0 SLURM_RESTART_COUNT=%s", attempt)
        return job, 0
    return job, int(attempt)


@dataclass(slots=True)
class _Open:
    """The cycle that runs."""

    info: CycleInfo
    started_at: datetime


class CycleFiles:
    """The records of one job and attempt. Nothing here waits for the file system unless it says so."""

    def __init__(self, place: CycleDirectory) -> None:
        self.place = place
        self._writer = WriterThread("cycle records")
        self._open: _Open | None = None
        self._ours: set[int] = set()

    def prepare(self, within_seconds: float) -> None:
        """Make the directory and see that this job and attempt have no records in it.

        Raises RecordError for one that has, or that cannot be used. A file system that does not answer in time is
        no reason not to train.
        """
        written = self._writer.hand_over("the directory", self._prepare)
        if written.wait(within_seconds):
            return
        if written.error is None:
            log.error("the directory of the cycle records does not answer path=%s", self.place.path)
            return
        raise RecordError(
            "preparing the cycle records",
            part=written.error,
            hint="every run needs a directory of its own: name another one, or move the old records away",
        )

    def _prepare(self) -> None:
        path = self.place.path
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        names = list_names(path)
        if isinstance(names, Unobserved):
            raise RecordError(names.reason)
        found = next((name for name in names or () if self.place.owns(name)), None)
        if found is not None:
            raise RecordError(f"{path} has records of this job and attempt already", part=found)

    def start(
        self, cycle: int, at: datetime, *, active: Sequence[str], standby: Sequence[str], log_file: str = ""
    ) -> Written:
        """A cycle begins: its nodes by group rank (a node may have several), and those that wait. Ends the one before.

        Wait for the answer, with a bound, before workers start: then they find their record at their first line.
        """
        self.end(at)
        info = describe_cycle(self.place, cycle, at, active=active, standby=standby, log_file=log_file)
        self._open = _Open(info, at)
        return self._writer.hand_over(f"the start of cycle {cycle}", lambda: self._create(info))

    def end(self, at: datetime) -> Written | None:
        """The running cycle is over, as far as anybody knows; None when none runs."""
        running, self._open = self._open, None
        if running is None:
            return None
        counter = str(int(running.info.write_generation) + 1)
        ended_at = format_time(max(at, running.started_at))
        info = msgspec.structs.replace(running.info, cycle_end_time=ended_at, write_generation=counter)
        return self._writer.hand_over(f"the end of cycle {info.cycle_number}", lambda: self._replace(info))

    def keep_facts(self, facts: CycleFacts) -> Written:
        """Write what NVRx's format has no field for, or write it anew."""
        path = self.place.facts(facts.cycle_number)
        return self._writer.hand_over(
            f"the facts of cycle {facts.cycle_number}", lambda: write_atomic(path, encode_record(facts))
        )

    def do(self, what: str, work: Callable[[], None]) -> Written:
        """Other work on the same files, in its turn."""
        return self._writer.hand_over(what, work)

    def close(self, at: datetime, seconds: float = FLUSH_SECONDS) -> bool:
        """The end of everything: end the running cycle and wait, so long at most, until all is written."""
        self.end(at)
        return self._writer.close(seconds)

    def _create(self, info: CycleInfo) -> None:
        path, content = self.place.record(info.cycle_number), encode_cycle(info)
        if info.cycle_number in self._ours:
            write_atomic(path, content)
        elif not write_first(path, content):
            raise RecordError(f"writing {path}: another run has written it", hint="give every run a directory")
        self._ours.add(info.cycle_number)
        _point(self.place.current, path.name)

    def _replace(self, info: CycleInfo) -> None:
        # One that could not be created is no file of ours.
        if info.cycle_number in self._ours:
            write_atomic(self.place.record(info.cycle_number), encode_cycle(info))


def describe_cycle(
    place: CycleDirectory, cycle: int, at: datetime, *, active: Sequence[str], standby: Sequence[str], log_file: str
) -> CycleInfo:
    """The record of a cycle that begins."""
    return CycleInfo(
        job_id=place.job_id,
        attempt_index=place.attempt,
        cycle_number=cycle,
        cycle_start_time=format_time(at),
        cycle_log_file=log_file,
        active_nodes=fold_names(active),
        standby_nodes=fold_names(standby),
        active_ranks=fold_ranks(active),
    )


def encode_cycle(info: CycleInfo) -> bytes:
    """As NVRx writes it: two spaces, no newline at the end."""
    return msgspec.json.format(msgspec.json.encode(info), indent=2)


def fold_names(names: Sequence[str]) -> str:
    """A node list for these names. Any that is no node name (an address of IPv6, say) stands at its end as it is."""
    good, others = _sort_names(names)
    return ",".join([*([fold_nodes(good)] if good else []), *others])


def fold_ranks(active: Sequence[str]) -> str:
    """The places in `active`, node after node as its node list expands, in runs: `0-3,6`."""
    good, others = _sort_names(active)
    order = (*(expand_nodes(fold_nodes(good)) if good else ()), *others)
    ranks = [rank for name in order for rank, found in enumerate(active) if found == name]
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _sort_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    good, others = [], []
    for name in dict.fromkeys(names):
        try:
            fold_nodes([name])
        except ValueError:
            others.append(name)
        else:
            good.append(name)
    return good, others


def _point(link: Path, name: str) -> None:
    """Have the link name a record, in one step."""
    temporary = link.parent / f".{link.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        os.symlink(name, temporary)
        os.replace(temporary, link)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RecordError(f"moving the link {link}: {error.strerror or error}", part=link.name) from error
    sync_directory(link.parent)
