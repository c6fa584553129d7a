"""Wiring of `nvrx-chain doctor`: gathers the evidence, lets every check judge it. Touches: what its parts touch."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.doctor.checks import CHECKS
from nvrx_chain.doctor.facts import ChainFacts, Directory, Place
from nvrx_chain.doctor.model import LOGIN, Evidence, Grade, Line, NodeVisit, Report, SlurmFacts, warn, worst
from nvrx_chain.doctor.probe import ALL, CHAIN, LOGIN_SECONDS, MARK, SWEEP, ProbeRequest, probe_argv, read_place
from nvrx_chain.doctor.site import read_site
from nvrx_chain.doctor.visit import Visitor, VisitRequest
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.submit.children import ask_child

CHAIN_SECONDS = 3.0
SWEEP_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What is to be examined. `look_at_node` with `node` None means any node."""

    run_directory: Path
    is_chain: bool
    interpreter: str
    python: str | None
    launcher: str | None
    look_at_node: bool
    node: str | None
    partition: str | None
    sbatch_args: tuple[str, ...]
    wait_seconds: float


def examine(request: DoctorRequest, visitor: Visitor, quick: SlurmClient) -> Report:
    """The whole examination; `quick` is a client that gives a controller up soon. Only an interrupt ends it early."""
    began, read_at = visitor.clock.monotonic(), visitor.clock.now()
    chain = _read_chain(request, visitor.environ)
    probe = _probe_request(request, chain)
    login: Place | None = None
    visit: NodeVisit | None = None
    swept: tuple[Line, ...] = ()
    try:
        site, login = _look_here(probe, visitor, quick)
        if request.look_at_node:
            visit = _look_there(request, site, chain, probe, login, visitor)
    finally:
        if login is None or not isinstance(login.directory, Unobserved):
            swept = _sweep(request.interpreter, probe, visitor.environ)
    evidence = Evidence(
        run_directory=request.run_directory,
        slurm=site,
        login=login,
        visit=visit,
        chain=chain,
        launcher=probe.launcher,
        partition=request.partition,
    )
    lines = tuple(line for check in CHECKS for line in check(evidence)) + swept
    return Report(
        read_at=format_time(read_at),
        host=socket.gethostname(),
        node=visit.node if visit else None,
        run_directory=str(request.run_directory),
        grade=worst(lines),
        counts={grade.value: sum(line.grade is grade for line in lines) for grade in Grade},
        seconds=round(visitor.clock.monotonic() - began, 3),
        lines=lines,
    )


def _read_chain(request: DoctorRequest, environ: Mapping[str, str]) -> ChainFacts | Unobserved | None:
    """What the chain in the run directory asks for; None where there is none."""
    if not request.is_chain:
        return None
    probe = ProbeRequest(part=CHAIN, directory=str(request.run_directory), token="", python="")
    answer = ask_child(probe_argv(request.interpreter, probe), environ, seconds=CHAIN_SECONDS)
    if isinstance(answer, Unobserved):
        return answer
    try:
        return msgspec.json.decode(answer.partition(MARK)[2], type=ChainFacts | None)
    except msgspec.DecodeError as error:
        return Unobserved(f"chain.json: {error}")


def _probe_request(request: DoctorRequest, chain: ChainFacts | Unobserved | None) -> ProbeRequest:
    known = chain if isinstance(chain, ChainFacts) else None
    launcher = request.launcher or (known.launcher if known else None)
    return ProbeRequest(
        part=ALL,
        directory=str(request.run_directory),
        token=secrets.token_hex(6),
        python=request.python or (known.python if known else request.interpreter),
        launcher=launcher,
    )


def _look_here(probe: ProbeRequest, visitor: Visitor, quick: SlurmClient) -> tuple[SlurmFacts, Place]:
    visitor.say("looking at this machine and at Slurm")
    with ThreadPoolExecutor(1) as pool:
        site = pool.submit(read_site, quick, visitor.clock)
        login = read_place(probe, visitor.environ, LOGIN_SECONDS)
        return site.result(), login


def _look_there(
    request: DoctorRequest,
    site: SlurmFacts,
    chain: ChainFacts | Unobserved | None,
    probe: ProbeRequest,
    login: Place,
    visitor: Visitor,
) -> NodeVisit:
    if isinstance(site.config, Unobserved):
        return NodeVisit(place=Unobserved("the controller does not answer, no job was submitted"))
    tested = login.directory.tested if isinstance(login.directory, Directory) else str(request.run_directory)
    return visitor.visit(
        VisitRequest(
            node=request.node,
            partition=request.partition,
            sbatch_args=request.sbatch_args,
            wait_seconds=request.wait_seconds,
            interpreter=chain.interpreter if isinstance(chain, ChainFacts) else request.interpreter,
            probe=msgspec.structs.replace(probe, tested=tested),
        )
    )


def _sweep(interpreter: str, probe: ProbeRequest, environ: Mapping[str, str]) -> tuple[Line, ...]:
    """Remove what was written for the examination. Not called for a directory that hangs, it would only hang again."""
    sweep = msgspec.structs.replace(probe, part=SWEEP)
    answer = ask_child(probe_argv(interpreter, sweep), environ, seconds=SWEEP_SECONDS)
    if not isinstance(answer, Unobserved):
        return ()
    mend = "the doctor's own scratch directory may be left, remove it: .nvrx-doctor-" + probe.token
    return (warn("directory", LOGIN, f"the run directory could not be tidied up: {answer.reason}", mend),)
