"""The established fault knobs: which ranks fail how after how long in each cycle, and which node in which cycle. Pure.

The words and their meaning are those of Megatron-LM's fault injector and of NVRx: the delay counts from the start of
training in a cycle, so a restart fails again; all named ranks fail in the same way. Where several ways are given they
take turns by cycle (Megatron-LM draws one).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.faults import KINDS, Fault, parse_kind

NVRX_TYPES = (
    "gpu_error",
    "gpu_sleep",
    "workload_exc",
    "async_exc",
    "signal_exc",
    "os_abort",
    "lock_gil",
    "segfault",
    "sigint",
    "sigkill",
    "sigterm",
    "sigstop",
)
"""NVRx's Fault by name; Megatron-LM takes them in either case."""

_FAILURE = re.compile(r"(\d{1,6}):(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """A node that fails in a cycle. Nodes count through the array: task x nodes per task + node of the task."""

    cycle: int
    node: int

    def __str__(self) -> str:
        return f"{self.cycle}:{self.node}"


def parse_ranks(text: str) -> tuple[int, ...]:
    """`0,3` as ranks. Raises UsageError."""
    ranks = []
    for part in _parts(text):
        if not (part.isascii() and part.isdigit() and len(part) <= 9):
            raise UsageError(f"reading the ranks of a fault: {part!r} is not a rank", hint="the form is 0,3")
        ranks.append(int(part))
    if len(set(ranks)) < len(ranks):
        raise UsageError("reading the ranks of a fault: a rank is there twice", part=text, hint="name each rank once")
    return tuple(ranks)


def parse_types(text: str) -> tuple[str, ...]:
    """`SIGKILL,exit:93` in lower case. Raises UsageError for a word that is neither NVRx's nor mock-gpt's."""
    types = tuple(part.lower() for part in _parts(text))
    for name in types:
        if name not in NVRX_TYPES and not _is_kind(name):
            raise UsageError(
                f"reading the types of a fault: {name!r} is none of {', '.join(NVRX_TYPES)}",
                hint=f"mock-gpt has {KINDS}",
            )
    return types


def check_mock_gpt_types(types: tuple[str, ...]) -> None:
    """Raise UsageError for one that mock-gpt cannot do."""
    for name in types:
        if not _is_kind(name):
            raise UsageError(
                f"reading the types of a fault: {name} needs a GPU, mock-gpt cannot do it", hint=f"it has {KINDS}"
            )


def parse_failures(text: str) -> tuple[NodeFailure, ...]:
    """`1:0,2:0` as failures of nodes. Raises UsageError: NVRx itself would log an error and inject nothing."""
    failures = []
    for part in _parts(text):
        match = _FAILURE.fullmatch(part)
        if match is None:
            raise UsageError(
                f"reading the failures of nodes: {part!r} is not CYCLE:NODE", hint="the form is 1:0,2:0; cycles from 0"
            )
        failures.append(NodeFailure(cycle=int(match[1]), node=int(match[2])))
    return tuple(failures)


def faults_of_cycle(
    ranks: tuple[int, ...], delay_seconds: float, types: tuple[str, ...], cycle: int
) -> tuple[Fault, ...]:
    """What the named ranks do in this cycle; nothing without ranks."""
    if not ranks:
        return ()
    name = types[cycle % len(types)]
    kind, exit_code = parse_kind(name, name)
    return tuple(
        Fault(rank=rank, kind=kind, iteration=None, delay_seconds=delay_seconds, exit_code=exit_code, repeats=True)
        for rank in ranks
    )


def node_fails(failures: tuple[NodeFailure, ...], *, cycle: int, node: int | None) -> bool:
    """Whether this node is to fail in this cycle. Outside an array there is no node to name."""
    return any(failure.cycle == cycle and failure.node == node for failure in failures)


def _is_kind(name: str) -> bool:
    try:
        parse_kind(name, name)
    except UsageError:
        return False
    return True


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
