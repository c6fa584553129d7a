"""What the preflight looks at, gathered once. Touches: Slurm (reads only), /proc/self/mountinfo, the run directory,
and for a real submit one child process that looks for the launcher.

Slurm is asked one thing at a time and not again once it did not answer: with a dead controller each call costs its
whole time-out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import ClusterConfig, Partition, QueueReading
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState, read_directory
from nvrx_chain.submit.mounts import FileSystem, read_file_system

PROBE_TIMEOUT_SECONDS = 60.0
_FT_LAUNCHER = "nvidia_resiliency_ext"
_NEEDS: dict[LauncherKind, tuple[str, ...]] = {
    LauncherKind.FT_LAUNCHER: ("torch", _FT_LAUNCHER),
    LauncherKind.TORCHRUN: ("torch",),
    LauncherKind.COMMAND: (),
}
_DISTRIBUTIONS = {_FT_LAUNCHER: "nvidia-resiliency-ext", "nvrx_chain": "nvrx-chain"}
# Looks for top-level packages only, which imports none of them.
_PROBE = """
import importlib.metadata, importlib.util, json, sys
found = {}
for module, distribution in json.loads(sys.argv[1]).items():
    if importlib.util.find_spec(module) is not None:
        try:
            found[module] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[module] = "unknown"
print(json.dumps(found))
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleProbe:
    """What an interpreter can import of what it needs: versions by module name, "unknown" without metadata."""

    interpreter: str
    needed: tuple[str, ...]
    found: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitFacts:
    """Everything that a preflight may know. `probes` is None when nobody looked, as in a dry run."""

    user: str
    uid: int
    cluster: ClusterConfig | Unobserved
    partitions: tuple[Partition, ...] | Unobserved
    queue: QueueReading | Unobserved
    file_system: FileSystem | Unobserved
    directory: DirectoryState
    program_exists: bool | None
    probes: tuple[ModuleProbe | Unobserved, ...] | None


def gather_facts(config: ChainConfig, client: SlurmClient, *, user: str, uid: int, probe: bool) -> SubmitFacts:
    """Look at everything once. Raises RecordError when the run directory holds a record that cannot be read."""
    directory = read_directory(config.run, owner_uid=uid)
    cluster = client.config()
    partitions = _unless(cluster, client.partitions)
    queue = _unless(cluster, lambda: client.queue(user))
    program = config.workload.program
    return SubmitFacts(
        user=user,
        uid=uid,
        cluster=cluster,
        partitions=partitions,
        queue=queue,
        file_system=read_file_system(config.run_directory),
        directory=directory,
        program_exists=os.path.isfile(program) if program else None,
        probes=probe_interpreters(config) if probe else None,
    )


def _unless(earlier: object, ask: Callable[[], T | Unobserved]) -> T | Unobserved:
    return earlier if isinstance(earlier, Unobserved) else ask()


def probe_interpreters(config: ChainConfig) -> tuple[ModuleProbe | Unobserved, ...]:
    """Look for the launcher in the interpreter that runs it, and for nvrx-chain in the one that runs run-task."""
    needed = _NEEDS[config.launcher.kind]
    if config.workload.built_in:
        needed = tuple(dict.fromkeys((*needed, "torch", "nvrx_chain")))
    isolated = _probe(config.interpreter, ("nvrx_chain",), isolated=True)
    if not needed:
        return (isolated,)
    return (isolated, _probe(config.launcher.python, needed, isolated=False))


def _probe(interpreter: str, needed: tuple[str, ...], *, isolated: bool) -> ModuleProbe | Unobserved:
    wanted = msgspec.json.encode({module: _DISTRIBUTIONS.get(module, module) for module in needed}).decode()
    argv = [interpreter, *(["-I"] if isolated else []), "-c", _PROBE, wanted]
    try:
        # From the root directory: a package lying in the current one is not there for the job.
        done = subprocess.run(
            argv, capture_output=True, timeout=PROBE_TIMEOUT_SECONDS, cwd="/", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        return Unobserved(f"starting {interpreter}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Unobserved(f"starting {interpreter}: no answer after {PROBE_TIMEOUT_SECONDS:.0f} s")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return Unobserved(f"starting {interpreter}: exit code {done.returncode}: {last}")
    try:
        found = msgspec.json.decode(done.stdout, type=dict[str, str])
    except msgspec.DecodeError as error:
        return Unobserved(f"starting {interpreter}: no answer of ours: {error}")
    return ModuleProbe(interpreter=interpreter, needed=needed, found=found)


def launcher_version(facts: SubmitFacts, kind: LauncherKind) -> str | None:
    """The launcher's version where a probe saw it."""
    module = _NEEDS[kind][-1] if _NEEDS[kind] else None
    for probe in facts.probes or ():
        if isinstance(probe, ModuleProbe) and module in probe.found and module in probe.needed:
            return probe.found[module]
    return None
