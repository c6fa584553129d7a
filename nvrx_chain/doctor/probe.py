"""The parts of a machine's answer, each in a process with a deadline. Runs on the login node and, by srun, on a node.

`python -I -m nvrx_chain doctor-probe REQUEST` is one part, or all of them. Touches: processes, standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from nvrx_chain.clock import SystemClock
from nvrx_chain.doctor.facts import PART_KINDS, Place, pack_place
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.user import user_name
from nvrx_chain.submit.children import ask_child

ALL = "all"
CHAIN, ANSWER, SWEEP = "chain", "answer", "sweep"
MARK = b"nvrx-doctor:"
"""Begins the line with the answer: a site's prolog may print before it."""
LOGIN_SECONDS = {"host": 5.0, "slurm": 5.5, "directory": 5.5, "launcher": 6.0, "gpus": 5.0}
NODE_SECONDS = {"host": 15.0, "slurm": 15.0, "directory": 40.0, "launcher": 60.0, "gpus": 30.0}
EXCHANGE_SECONDS = 20.0
"""For names that an NFS client remembers as missing; the exchange opens the directory anew each time."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is to look at. `tested` is the directory that the login node tried; None on the login node."""

    part: str
    directory: str
    token: str
    python: str
    launcher: str | None = None
    tested: str | None = None
    seconds: float = 0.0


def probe_argv(interpreter: str, request: ProbeRequest) -> tuple[str, ...]:
    """Isolated, as the batch script starts run-task."""
    return (interpreter, "-I", "-m", "nvrx_chain", "doctor-probe", msgspec.json.encode(request).decode())


def read_place(request: ProbeRequest, environ: Mapping[str, str], seconds: Mapping[str, float]) -> Place:
    """All parts at once, each with its own deadline."""

    def ask(part: str) -> msgspec.Struct | Unobserved:
        limit = seconds[part]
        one = msgspec.structs.replace(request, part=part, seconds=limit)
        if part == "launcher":
            # Not through our own interpreter: the launcher has one of its own.
            from nvrx_chain.doctor.launcher import read_launcher

            return read_launcher(request.python, request.launcher, environ, seconds=limit)
        answer = ask_child(probe_argv(sys.executable, one), environ, seconds=limit)
        return answer if isinstance(answer, Unobserved) else decode_answer(answer, PART_KINDS[part])

    with ThreadPoolExecutor(len(PART_KINDS)) as pool:
        asked = {part: pool.submit(ask, part) for part in PART_KINDS}
        return Place(**{part: future.result() for part, future in asked.items()})  # type: ignore[arg-type]


def decode_answer(text: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct | Unobserved:
    """The record in a probe's output, found by its mark."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        return Unobserved("it printed no answer")
    try:
        return msgspec.json.decode(line[len(MARK) :], type=kind)
    except msgspec.DecodeError as error:
        return Unobserved(f"its answer cannot be read: {error}")


def run_probe(text: str) -> bytes:
    """What the hidden command prints. Raises msgspec.DecodeError for a request that is none."""
    request = msgspec.json.decode(text, type=ProbeRequest)
    if request.part == ALL:
        return MARK + pack_place(read_place(request, os.environ, NODE_SECONDS))
    answer = _read_part(request)
    return MARK + msgspec.json.encode(answer)


def _read_part(request: ProbeRequest) -> object:
    """Each part imports what it needs and no more: the directory must not wait for Slurm's modules."""
    if request.part == "host":
        from nvrx_chain.doctor.host import read_host

        return read_host()
    if request.part == "slurm":
        from nvrx_chain.doctor.programs import read_programs

        return read_programs(os.environ, SystemClock(), own_name())
    if request.part == "gpus":
        from nvrx_chain.doctor.gpus import read_gpus

        return read_gpus()
    return _read_directory_part(request)


def _read_directory_part(request: ProbeRequest) -> object:
    from nvrx_chain.doctor import directory

    path = Path(request.directory)
    tested = Path(request.tested) if request.tested else directory.nearest(path)
    if request.part == CHAIN:
        return directory.read_chain(path)
    if request.part == ANSWER:
        directory.answer_node(tested, request.token, seconds=request.seconds)
        return None
    if request.part == SWEEP:
        directory.sweep(tested, request.token)
        return None
    if request.tested is None:
        return directory.read_login_directory(path, request.token)
    return directory.read_node_directory(path, tested, request.token, seconds=EXCHANGE_SECONDS)


def own_name() -> str:
    """The user's name, or the number where there is none."""
    return user_name(os.geteuid())
