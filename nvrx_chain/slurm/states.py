"""Slurm's words for the states of jobs and nodes, and how printed text becomes one of them. Pure.

A word that is not listed here is UNKNOWN and counts as alive: a new Slurm release adds states, and nothing may
be cancelled or fenced because a word was not understood.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TypeVar

_E = TypeVar("_E", bound=enum.Enum)

# Shorter cuts than any column of Slurm makes; a one-letter guess could turn a live job into an ended one.
_SHORTEST_CUT = 4
_CANCELLED_BY = re.compile(r"\bby\s+(\d{1,10})\b", re.ASCII)


class JobState(enum.Enum):
    """Base states and the flags that squeue prints in their place (man squeue, "JOB STATE CODES")."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"

    @property
    def is_terminal(self) -> bool:
        """Slurm has ended it for good. COMPLETING is not terminal: its processes can still write."""
        return self in _TERMINAL

    @property
    def is_pending(self) -> bool:
        """It waits in the queue and holds no node."""
        return self in _PENDING


_TERMINAL = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.TIMEOUT,
    }
)

_PENDING = frozenset(
    {
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESV_DEL_HOLD,
        JobState.SPECIAL_EXIT,
    }
)

_JOB_CODES = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING,
    "DL": JobState.DEADLINE,
    "EX": JobState.EXPEDITING,
    "F": JobState.FAILED,
    "LF": JobState.LAUNCH_FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "PU": JobState.POWER_UP_NODE,
    "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD,
    "RF": JobState.REQUEUE_FED,
    "RH": JobState.REQUEUE_HOLD,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "SE": JobState.SPECIAL_EXIT,
    "SI": JobState.SIGNALING,
    "SO": JobState.STAGE_OUT,
    "ST": JobState.STOPPED,
    "TO": JobState.TIMEOUT,
    "UD": JobState.UPDATE_DB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedState:
    """A state and the text it was read from. `cancelled_by` is the uid of `CANCELLED by 1001`; 0 is root."""

    state: JobState
    raw: str
    cancelled_by: int | None


def parse_job_state(text: str) -> ParsedState:
    """Read a job state: long, compact (`NF`), cut (`OUT_OF_ME+`) or with a tail (`CANCELLED by 1001`)."""
    raw = text.strip()
    words = raw.split()
    state = _match(words[0], JobState, _JOB_CODES, JobState.UNKNOWN) if words else JobState.UNKNOWN
    by = _CANCELLED_BY.search(raw) if state is JobState.CANCELLED else None
    return ParsedState(state=state, raw=raw, cancelled_by=int(by.group(1)) if by else None)


class NodeState(enum.Enum):
    """States of a node as sinfo and scontrol print them (man sinfo, "NODE STATE CODES")."""

    ALLOCATED = "ALLOCATED"
    BLOCKED = "BLOCKED"
    CLOUD = "CLOUD"
    COMPLETING = "COMPLETING"
    DOWN = "DOWN"
    DRAIN = "DRAIN"
    DRAINED = "DRAINED"
    DRAINING = "DRAINING"
    ERROR = "ERROR"
    EXTERNAL = "EXTERNAL"
    FAIL = "FAIL"
    FAILING = "FAILING"
    FUTURE = "FUTURE"
    IDLE = "IDLE"
    INVAL = "INVAL"
    MAINT = "MAINT"
    MIXED = "MIXED"
    PERFCTRS = "PERFCTRS"
    PLANNED = "PLANNED"
    POWERED_DOWN = "POWERED_DOWN"
    POWERING_DOWN = "POWERING_DOWN"
    POWERING_UP = "POWERING_UP"
    POWER_DOWN = "POWER_DOWN"
    POWER_UP = "POWER_UP"
    REBOOT = "REBOOT"
    REBOOT_ISSUED = "REBOOT_ISSUED"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    RESERVED = "RESERVED"
    RESUME = "RESUME"
    UNKNOWN = "UNKNOWN"

    @property
    def is_down(self) -> bool:
        """Slurm has given the node up. Drained, failing, powered-down nodes are not in this closed list."""
        return self is NodeState.DOWN

    @property
    def is_drained(self) -> bool:
        """Somebody asked for the node: what runs there may end, and nothing new starts. sinfo calls a node that is
        down and drained `drained`; one that is only down, or silent, nobody asked for.
        """
        return self in _DRAINED

    @property
    def is_out_of_service(self) -> bool:
        """Nothing new starts there until somebody mends or resumes it."""
        return self in _OUT_OF_SERVICE


_DRAINED = frozenset({NodeState.DRAIN, NodeState.DRAINED, NodeState.DRAINING, NodeState.FAIL, NodeState.FAILING})
_OUT_OF_SERVICE = _DRAINED | {NodeState.DOWN, NodeState.ERROR, NodeState.INVAL}

_NODE_CODES = {
    "ALLOC": NodeState.ALLOCATED,
    "BLOCK": NodeState.BLOCKED,
    "BOOT": NodeState.REBOOT,
    "COMP": NodeState.COMPLETING,
    "DRNG": NodeState.DRAINING,
    "FAILG": NodeState.FAILING,
    "FUTR": NodeState.FUTURE,
    "MIX": NodeState.MIXED,
    "NPC": NodeState.PERFCTRS,
    "PLND": NodeState.PLANNED,
    "POW_DN": NodeState.POWERING_DOWN,
    "POW_UP": NodeState.POWERING_UP,
    "RESV": NodeState.RESERVED,
    "UNK": NodeState.UNKNOWN,
}

# man sinfo: * not responding, ~ powered off, # powering up, ! power down pending, % powering down,
# $ maintenance reservation, @ reboot pending, ^ reboot issued, - planned by backfill.
_NODE_SUFFIXES = "*~#!%$@^-"


def parse_node_state(text: str) -> tuple[NodeState, bool]:
    """Read a printed node state as (state, responding): `allocated*` is (ALLOCATED, False).

    Of the flags that scontrol joins with `+` (`DOWN*+DRAIN`) only NOT_RESPONDING is read.
    """
    words = text.split()
    if not words:
        return NodeState.UNKNOWN, True
    base, *flags = words[0].upper().split("+")
    responding = "*" not in words[0] and "NOT_RESPONDING" not in flags
    return _match(base.rstrip(_NODE_SUFFIXES), NodeState, _NODE_CODES, NodeState.UNKNOWN), responding


def _match(word: str, listed: type[_E], codes: dict[str, _E], unknown: _E) -> _E:
    """An exact word or code, else the only listed word that starts with it."""
    wanted = word.rstrip("+").upper()
    if wanted in codes:
        return codes[wanted]
    if wanted in listed.__members__:
        return listed[wanted]
    if len(wanted) < _SHORTEST_CUT:
        return unknown
    starts = [member for name, member in listed.__members__.items() if name.startswith(wanted)]
    return starts[0] if len(starts) == 1 else unknown
