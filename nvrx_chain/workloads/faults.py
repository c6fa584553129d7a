"""Faults on order: which rank fails when and how, and that a restart does not fail again.

Touches: `<checkpoint-dir>/faults/<fault id>.fired`, created before a fault fires (first one wins, so a restarted rank
sees that it has had its fault). How a rank fails is in `failing`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.records.files import write_first

_KEYS = frozenset({"rank", "iteration", "delay", "kind", "repeat"})


class FaultKind(str, enum.Enum):
    """How the rank fails. From WORKLOAD_EXC on the words are those of NVRx's fault injector."""

    EXCEPTION = "exception"
    SIGKILL = "sigkill"
    HANG = "hang"
    EXIT = "exit"
    WORKLOAD_EXC = "workload_exc"
    ASYNC_EXC = "async_exc"
    SIGNAL_EXC = "signal_exc"
    OS_ABORT = "os_abort"
    LOCK_GIL = "lock_gil"
    SEGFAULT = "segfault"
    SIGINT = "sigint"
    SIGTERM = "sigterm"
    SIGSTOP = "sigstop"


KINDS = "|".join("exit:CODE" if kind is FaultKind.EXIT else kind.value for kind in FaultKind)
_FORM = f"rank=R,iteration=N|delay=SECONDS,kind={KINDS}[,repeat=once|always]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one rank: just before `iteration` is trained, or `delay_seconds` after this life began to train.

    Exactly one of the two is set; `exit_code` is set for FaultKind.EXIT only.
    """

    rank: int
    kind: FaultKind
    iteration: int | None
    delay_seconds: float | None
    exit_code: int | None
    repeats: bool

    @property
    def fault_id(self) -> str:
        """A name that is the same in every life, fit for a file name."""
        when = f"iteration{self.iteration}" if self.iteration is not None else f"delay{self.delay_seconds:g}"
        return f"rank{self.rank}-{when}-{self.kind.value}{'' if self.exit_code is None else self.exit_code}"


def parse_fault(text: str) -> Fault:
    """`rank=1,iteration=20,kind=sigkill` as a Fault. Raises UsageError that names the faulty part."""
    fields = _parse_pairs(text)
    if ("iteration" in fields) == ("delay" in fields):
        raise _usage(text, "exactly one of iteration and delay says when")
    kind, exit_code = parse_kind(text, fields["kind"])
    repeat = fields.get("repeat", "once")
    if repeat not in ("once", "always"):
        raise _usage(text, f"repeat={repeat} is neither once nor always")
    return Fault(
        rank=_parse_whole(text, fields, "rank", least=0),
        kind=kind,
        iteration=_parse_whole(text, fields, "iteration", least=1) if "iteration" in fields else None,
        delay_seconds=_parse_delay(text, fields["delay"]) if "delay" in fields else None,
        exit_code=exit_code,
        repeats=repeat == "always",
    )


def parse_kind(text: str, value: str) -> tuple[FaultKind, int | None]:
    """`sigkill` or `exit:93` as a kind and an exit code. Raises UsageError, which quotes `text`."""
    name, colon, code = value.partition(":")
    if name not in {kind.value for kind in FaultKind}:
        raise _usage(text, f"kind={value} is none of {', '.join(kind.value for kind in FaultKind)}")
    kind = FaultKind(name)
    if kind is not FaultKind.EXIT:
        if colon:
            raise _usage(text, f"kind={name} takes no code")
        return kind, None
    if not (code.isascii() and code.isdigit() and int(code) <= 255):
        raise _usage(text, f"kind={value} has no exit code from 0 to 255")
    return kind, int(code)


class FaultPlan:
    """The faults of one rank that are still to come in this life."""

    def __init__(self, faults: Sequence[Fault], rank: int, marker_directory: Path) -> None:
        self._pending = [fault for fault in faults if fault.rank == rank]
        self._marker_directory = marker_directory

    def take_due(self, iteration: int, elapsed_seconds: float) -> Fault | None:
        """The next fault whose time has come; it is not given again. The caller claims it, then fires it."""
        for fault in self._pending:
            by_iteration = fault.iteration is not None and fault.iteration == iteration
            by_delay = fault.delay_seconds is not None and fault.delay_seconds <= elapsed_seconds
            if by_iteration or by_delay:
                self._pending.remove(fault)
                return fault
        return None

    def seconds_to_next_delay(self, elapsed_seconds: float) -> float | None:
        """How long until a delayed fault is due; None when none is left."""
        delays = [fault.delay_seconds for fault in self._pending if fault.delay_seconds is not None]
        return max(0.0, min(delays) - elapsed_seconds) if delays else None

    def claim(self, fault: Fault, life: dict[str, str | int | None]) -> bool:
        """Whether this life may fire the fault: always for a repeating one, else the first to leave the marker.

        `life` is written into the marker. Raises RecordError when the marker cannot be written.
        """
        if fault.repeats:
            return True
        try:
            self._marker_directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"creating {self._marker_directory}: {error.strerror}",
                hint="make the directory above it writable for the user of the job",
            ) from error
        content = json.dumps({"fault": fault.fault_id, **life}).encode() + b"\n"
        return write_first(self._marker_directory / f"{fault.fault_id}.fired", content)


def _parse_pairs(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in _KEYS:
            raise _usage(text, f"{part!r} is none of {', '.join(sorted(_KEYS))} with a value")
        if key in fields:
            raise _usage(text, f"{key} is there twice")
        fields[key] = value
    for key in ("rank", "kind"):
        if key not in fields:
            raise _usage(text, f"{key} is missing")
    return fields


def _parse_whole(text: str, fields: dict[str, str], key: str, *, least: int) -> int:
    value = fields[key]
    if not (value.isascii() and value.isdigit() and int(value) >= least):
        raise _usage(text, f"{key}={value} is not a whole number of {least} or more")
    return int(value)


def _parse_delay(text: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise _usage(text, f"delay={value} is not a number of seconds")
    return seconds


def _usage(text: str, problem: str) -> UsageError:
    return UsageError(f"reading the fault {text!r}: {problem}", hint=f"the form is {_FORM}")
