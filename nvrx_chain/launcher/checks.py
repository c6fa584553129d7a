"""The health checks, each a small class; `make_checks` has the list. What a check cannot tell is not sickness.

Touches: NVML through `GpuLibrary`, processes, storage paths through a process each, files of `control/`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nvrx_chain.errors import Unobserved
from nvrx_chain.launcher.bounded import BoundedProgram
from nvrx_chain.launcher.gpu_facts import GpuLibrary, GpuState, NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.health_settings import INJECTED_FAILURES, HealthSettings
from nvrx_chain.launcher.place import Place
from nvrx_chain.masking import mask_text
from nvrx_chain.records.control import Drained, Rendezvous
from nvrx_chain.records.drained import Reader, find_doubt, name_drained
from nvrx_chain.records.files import read_record, refresh_names
from nvrx_chain.records.layout import GenerationDirectory

log = logging.getLogger(__name__)

DRAIN_EVERY_SECONDS = 30.0
FILE_PATIENCE_SECONDS = 2.0
"""For markers that let the node take part in doubt: a run directory that stalls must not hold up every restart."""

_LONGEST_SEGMENT_BYTES = 4096
_TOUCH = """
import os, sys
path = sys.argv[1]
try:
    os.stat(path)
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            next(entries, None)
    elif not os.access(path, os.R_OK):
        raise PermissionError(13, os.strerror(13))
except OSError as error:
    sys.exit(error.strerror)
"""
STORAGE_PROBE = (sys.executable, "-I", "-S", "-c", _TOUCH)
"""Touches the path in its last argument. In a process: a dead mount holds whoever asks, and cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look came to: reasons why the node is sick, and what could not be observed."""

    sick: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()


class Check(Protocol):
    """One check. `look` may take long and must not raise what it expects to happen."""

    @property
    def name(self) -> str: ...

    @property
    def ttl_seconds(self) -> float:
        """For how long a good result counts at a join; 0 looks anew."""
        ...

    @property
    def every_seconds(self) -> float:
        """How often to look in between; 0 is never."""
        ...

    @property
    def patience_seconds(self) -> float:
        """How long a join waits for it, if its deadline allows."""
        ...

    @property
    def silence_is_sick(self) -> bool:
        """What it means when no result came in time: a sick node, or nothing observed."""
        ...

    def look(self, round_number: int) -> Seen: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """When a check looks; see `Check`."""

    ttl_seconds: float = 0.0
    every_seconds: float = 0.0
    patience_seconds: float = math.inf
    silence_is_sick: bool = True


class _Paced:
    """A check with a name and a pace."""

    def __init__(self, name: str, pace: Pace) -> None:
        self.name = name
        self.ttl_seconds = pace.ttl_seconds
        self.every_seconds = pace.every_seconds
        self.patience_seconds = pace.patience_seconds
        self.silence_is_sick = pace.silence_is_sick


class GpuCheck(_Paced):
    """Each of our GPUs can be reached, has no uncorrected memory errors, and needs no recovery."""

    def __init__(self, gpus: GpuLibrary, seconds: float, ecc_tolerance: int) -> None:
        super().__init__("gpu", Pace())
        self._gpus = gpus
        self._seconds = seconds
        self._tolerance = ecc_tolerance
        self._names: frozenset[str] = frozenset()

    def look(self, round_number: int) -> Seen:
        try:
            states = self._gpus.states(self._seconds)
        except NvmlAbsent as error:
            # The same on every node: to call them all sick would end the job, and the next one too.
            return Seen(unobserved=(f"{error}",))
        except NvmlUnreachable as error:
            return Seen(sick=(f"{error}",))
        if not states and not self._names:
            return Seen(unobserved=("NVML shows no device, though this machine has some",))
        return Seen(
            sick=tuple(reason for state in states for reason in judge_gpu(state, self._tolerance))
            or self._find_vanished(states),
            unobserved=summarize_unobserved(states),
        )

    def _find_vanished(self, states: Sequence[GpuState]) -> tuple[str, ...]:
        """Devices that were here before: one that fell off its bus is not counted any more after a while."""
        names = frozenset(state.name for state in states)
        vanished = sorted(self._names - names)
        self._names |= names
        return tuple(f"{name} has vanished" for name in vanished)


def judge_gpu(state: GpuState, ecc_tolerance: int) -> Iterator[str]:
    """Why a device is sick. What was not observed says nothing."""
    if state.error is not None:
        yield f"{state.name} cannot be reached: {state.error}"
        return
    if state.uncorrected_errors is not None and state.uncorrected_errors > ecc_tolerance:
        yield f"{state.name} has {state.uncorrected_errors} uncorrected ECC errors since its last reset"
    if state.remap_failed:
        yield f"{state.name} could not replace a broken row of its memory"
    if state.recovery_action not in (None, "none"):
        yield f"{state.name} needs a recovery action: {state.recovery_action}"


def summarize_unobserved(states: Sequence[GpuState]) -> tuple[str, ...]:
    """What could not be observed, each once: an old driver does not know it of any device."""
    names: dict[str, list[str]] = {}
    for state in states:
        for what in state.unobserved:
            names.setdefault(what, []).append(state.name)
    return tuple(
        f"{what} (of {known[0] if len(known) == 1 else f'{len(known)} GPUs'})" for what, known in names.items()
    )


class StorageCheck(_Paced):
    """One path is there and answers."""

    def __init__(
        self,
        path: Path,
        environ: Mapping[str, str],
        seconds: float,
        ttl_seconds: float,
        probe: Sequence[str] = STORAGE_PROBE,
    ) -> None:
        super().__init__("storage", Pace(ttl_seconds=ttl_seconds, every_seconds=ttl_seconds / 2))
        self._path = path
        # All of it: a Python of a module tree does not start without its LD_LIBRARY_PATH.
        self._environ = dict(environ)
        self._seconds = seconds
        self._program = BoundedProgram([*probe, str(path)])

    def look(self, round_number: int) -> Seen:
        ran = self._program.run(self._environ, self._seconds)
        if ran.start_error is not None:
            return Seen(unobserved=(f"{self._path}: the probe could not be started: {ran.start_error}",))
        if ran.exit_code is None:
            return Seen(sick=(f"{self._path} does not answer within {self._seconds:g} s",))
        if ran.exit_code != 0:
            return Seen(sick=(f"{self._path}: {ran.last_line or f'the probe ended with {ran.exit_code}'}",))
        return Seen()


class CommandCheck(_Paced):
    """A program of the user ends with 0."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], seconds: float, ttl_seconds: float) -> None:
        super().__init__("command", Pace(ttl_seconds=ttl_seconds, every_seconds=ttl_seconds / 2))
        self._environ = dict(environ)
        self._seconds = seconds
        self._program = BoundedProgram(command)

    def look(self, round_number: int) -> Seen:
        program = self._program.argv[0]
        ran = self._program.run(self._environ | {"NVRX_CHAIN_ROUND": str(round_number)}, self._seconds)
        said = mask_text(ran.last_line)
        if ran.start_error is not None:
            # It could be started at the beginning. A program that went away is no sick GPU.
            return Seen(unobserved=(f"{program} cannot be started any more: {ran.start_error}",))
        if ran.exit_code is None:
            return Seen(sick=(f"{program} did not end within {self._seconds:g} s{_quote(said)}",))
        if ran.exit_code != 0:
            return Seen(sick=(f"{program} ended with {ran.exit_code}{_quote(said)}",))
        return Seen()


def _quote(said: str) -> str:
    return f": {said}" if said else ""


class DrainCheck(_Paced):
    """The chain wants this task's nodes back, and a spare can take its place. In doubt the task takes part."""

    def __init__(self, control: Path, array_job_id: int, task: int, nodes: tuple[str, ...]) -> None:
        super().__init__(
            "drain",
            Pace(every_seconds=DRAIN_EVERY_SECONDS, patience_seconds=FILE_PATIENCE_SECONDS, silence_is_sick=False),
        )
        self._directory = GenerationDirectory(control.parent, array_job_id)
        self._task = task
        self._nodes = nodes
        self._uid = os.geteuid()
        self._poll: int | None = None
        self._poll_seen_at = 0.0

    def look(self, round_number: int) -> Seen:
        refresh_names(self._directory.control)
        marker = read_record(self._directory.drained(self._task), Drained, owner_uid=self._uid)
        if isinstance(marker, Unobserved):
            return Seen(unobserved=(marker.reason,))
        if marker is None:
            return Seen()
        now = time.monotonic()
        if marker.poll != self._poll:
            self._poll, self._poll_seen_at = marker.poll, now
        if marker.array_job_id != self._directory.array_job_id or not (marker.is_active and marker.excluded):
            return Seen()
        doubt = find_doubt(marker, self._reader(), now - self._poll_seen_at)
        if doubt is not None:
            return Seen(unobserved=(f"a drain marker is not believed: {doubt.value}",))
        return Seen(sick=(f"drained: {name_drained(marker.drained_nodes)}",))

    def _reader(self) -> Reader:
        found = read_record(self._directory.rendezvous, Rendezvous, owner_uid=self._uid)
        if not isinstance(found, Rendezvous) or found.array_job_id != self._directory.array_job_id:
            found = None
        return Reader(task=self._task, nodes=self._nodes, rendezvous=found)


class SegmentFileCheck(_Paced):
    """NVRx's segment health file: a regular file with any content takes the task out, anything else does not."""

    def __init__(self, directory: Path, job_id: str, task_id: str) -> None:
        super().__init__("segment_file", Pace(patience_seconds=FILE_PATIENCE_SECONDS, silence_is_sick=False))
        self._path = directory / f"segment_health_check.{job_id}.{task_id}"

    def look(self, round_number: int) -> Seen:
        refresh_names(self._path.parent)
        content = b""
        # Missing or unreadable is healthy: that is the contract.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    content = os.read(descriptor, _LONGEST_SEGMENT_BYTES)
            finally:
                os.close(descriptor)
        if not content:
            return Seen()
        first = next(iter(content.decode(errors="backslashreplace").split("\n")))[:200]
        said = "".join(letter if letter.isprintable() else "?" for letter in first)
        return Seen(sick=(f"{self._path}: {said}",))


class InjectedFailure(_Paced):
    """A failure on demand, for drills. Rounds are those of the whole job, so it also meets spares and replacements."""

    def __init__(self, injections: frozenset[tuple[int, int]], rank: int) -> None:
        super().__init__("injected", Pace())
        self._injections = injections
        self._rank = rank

    def look(self, round_number: int) -> Seen:
        if (round_number, self._rank) in self._injections:
            return Seen(sick=(f"{INJECTED_FAILURES} names {round_number}:{self._rank}",))
        return Seen()


def make_checks(
    settings: HealthSettings, place: Place, environ: Mapping[str, str], gpus: GpuLibrary | None
) -> tuple[Check, ...]:
    """The checks of this node, in the order in which their findings are told. `gpus` is None where there are none."""
    checks: list[Check] = []
    if place.job_id and settings.segment_dir is not None and place.procid in (None, 0):
        checks.append(SegmentFileCheck(settings.segment_dir, place.job_id, place.task_id))
    if settings.control_dir is not None and place.array_task is not None:
        checks.append(DrainCheck(settings.control_dir, int(place.job_id), place.array_task, place.nodes))
    if settings.gpu and gpus is not None:
        checks.append(GpuCheck(gpus, settings.gpu_seconds, settings.gpu_ecc_tolerance))
    for path in settings.storage_paths:
        checks.append(StorageCheck(path, environ, settings.storage_seconds, settings.storage_ttl_seconds))
    if settings.command:
        checks.append(CommandCheck(settings.command, environ, settings.command_seconds, settings.command_ttl_seconds))
    if settings.injections:
        checks.append(InjectedFailure(settings.injections, place.injection_rank))
    return tuple(checks)
