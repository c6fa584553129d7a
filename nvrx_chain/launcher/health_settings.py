"""What is checked before each round, as values; what a user types becomes one here, or one clear error."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import UsageError

INJECTED_FAILURES = "NVRX_INJECT_GPU_FAILURE"

_INJECTION = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Nothing set checks the GPUs alone, where there are any."""

    storage_paths: tuple[Path, ...] = ()
    storage_seconds: float = 5.0
    """How long one path may take to answer."""
    storage_ttl_seconds: float = 60.0
    """For how long a good answer counts."""
    segment_dir: Path | None = None
    """Where NVRx's segment health files lie."""
    control_dir: Path | None = None
    """`control/` of this generation, for the drain marker of the chain."""
    command: tuple[str, ...] = ()
    """A program that says by its exit code whether the node is healthy."""
    command_seconds: float = 60.0
    command_ttl_seconds: float = 0.0
    """For how long its 0 counts; 0 runs it before each round and never while training."""
    gpu: bool = True
    gpu_seconds: float = 30.0
    """How long NVML may take for all devices; without persistence mode the driver starts them first."""
    gpu_ecc_tolerance: int = 0
    """Uncorrected ECC errors since the last reset that a device may have."""
    injections: frozenset[tuple[int, int]] = frozenset()
    """Rounds and infra ranks in which a node is made to fail."""


def make_health_settings(
    environ: Mapping[str, str],
    *,
    storage_paths: Sequence[str] = (),
    storage_seconds: float = 5.0,
    segment_dir: str | None = None,
    control_dir: str | None = None,
    command: str | None = None,
    command_seconds: float = 60.0,
    command_ttl_seconds: float = 0.0,
    gpu: bool = True,
    gpu_seconds: float = 30.0,
    gpu_ecc_tolerance: int = 0,
) -> HealthSettings:
    """Settings from what a user typed; a path option may hold a comma list. Raises UsageError."""
    positive = {
        "--storage-health-check-seconds": storage_seconds,
        "--health-check-seconds": command_seconds,
        "--gpu-health-check-seconds": gpu_seconds,
    }
    for option, seconds in positive.items():
        # Written so that a NaN is refused too.
        if not 0 < seconds < 86400:
            raise UsageError(f"reading {option}", part=f"{seconds:g}", hint="seconds, more than 0 and under a day")
    if not 0 <= command_ttl_seconds < 86400 or gpu_ecc_tolerance < 0:
        raise UsageError("reading the health checks", hint="--health-check-ttl and --gpu-ecc-tolerance are 0 or more")
    words = [word.strip() for text in storage_paths for word in text.split(",")]
    return HealthSettings(
        storage_paths=tuple(dict.fromkeys(_absolute("--storage-health-check-path", word) for word in words if word)),
        storage_seconds=storage_seconds,
        segment_dir=_absolute("--segment-health-check-dir", segment_dir) if segment_dir else None,
        control_dir=_absolute("--control-dir", control_dir) if control_dir else None,
        command=parse_command(command, environ),
        command_seconds=command_seconds,
        command_ttl_seconds=command_ttl_seconds,
        gpu=gpu,
        gpu_seconds=gpu_seconds,
        gpu_ecc_tolerance=gpu_ecc_tolerance,
        injections=parse_injections(environ.get(INJECTED_FAILURES, "")),
    )


def parse_command(text: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The words of `--health-check`, its program by its path; () for none.

    Raises UsageError for one that cannot be started: found out at a restart, it would cost every node of the job.
    """
    if text is None or not text.strip():
        return ()
    try:
        program, *arguments = shlex.split(text)
    except ValueError as error:
        raise UsageError("reading --health-check", part=text, hint=str(error)) from error
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    if found is None:
        raise UsageError(
            "reading --health-check", part=program, hint="there is no such program, or it may not be executed"
        )
    _require_interpreter(Path(found))
    return (str(Path(found).absolute()), *arguments)


def _require_interpreter(program: Path) -> None:
    try:
        with program.open("rb") as file:
            line = file.readline(256)
    except OSError:
        return  # a program need not be readable
    words = line[2:].split()
    if line.startswith(b"#!") and words and not os.access(words[0], os.X_OK):
        raise UsageError(
            "reading --health-check", part=str(program), hint=f"its first line names {os.fsdecode(words[0])}, not there"
        )


def parse_injections(text: str) -> frozenset[tuple[int, int]]:
    """`cycle:rank,...` of NVRX_INJECT_GPU_FAILURE. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    found = set()
    for word in words:
        match = _INJECTION.fullmatch(word)
        if match is None:
            raise UsageError(f"reading {INJECTED_FAILURES}", part=word, hint="it is cycle:rank, separated by commas")
        found.add((int(match[1]), int(match[2])))
    return frozenset(found)


def _absolute(option: str, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise UsageError(f"reading {option}", part=text, hint="it must be an absolute path")
    return path
