"""What an interpreter can import of what a chain needs. Touches: a child process for each interpreter that is asked."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.config import ChainConfig

PROBE_TIMEOUT_SECONDS = 60.0
_AFTER_KILL_SECONDS = 5.0
_FT_LAUNCHER = "nvidia_resiliency_ext"
NEEDS: dict[LauncherKind, tuple[str, ...]] = {
    LauncherKind.FT_LAUNCHER: ("torch", _FT_LAUNCHER),
    LauncherKind.TORCHRUN: ("torch",),
    LauncherKind.COMMAND: (),
}
"""The modules of each launcher; the last one is the launcher itself."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleProbe:
    """What an interpreter can import of what it needs: versions by module name, "unknown" without metadata."""

    interpreter: str
    needed: tuple[str, ...]
    found: dict[str, str]


class RunningProbe:
    """An interpreter that is being asked; `result` waits for its answer."""

    def __init__(self, interpreter: str, needed: tuple[str, ...], *, isolated: bool) -> None:
        self._interpreter = interpreter
        self._needed = needed
        wanted = msgspec.json.encode({module: _DISTRIBUTIONS.get(module, module) for module in needed}).decode()
        argv = [interpreter, *(["-I"] if isolated else []), "-c", _PROBE, wanted]
        self._failure: str | None = None
        try:
            # From the root directory: a package lying in the current one is not there for the job.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
            )
        except OSError as error:
            self._failure = error.strerror or str(error)

    def result(self) -> ModuleProbe | Unobserved:
        """The answer, or why there is none; the process is gone afterwards."""
        if self._failure is not None:
            return Unobserved(f"starting {self._interpreter}: {self._failure}")
        try:
            stdout, stderr = self._process.communicate(timeout=PROBE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=_AFTER_KILL_SECONDS)
            return Unobserved(f"starting {self._interpreter}: no answer after {PROBE_TIMEOUT_SECONDS:.0f} s")
        if self._process.returncode != 0:
            last = stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return Unobserved(f"starting {self._interpreter}: exit code {self._process.returncode}: {last}")
        try:
            found = msgspec.json.decode(stdout, type=dict[str, str])
        except msgspec.DecodeError as error:
            return Unobserved(f"starting {self._interpreter}: no answer of ours: {error}")
        return ModuleProbe(interpreter=self._interpreter, needed=self._needed, found=found)


def start_probes(config: ChainConfig) -> tuple[RunningProbe, ...]:
    """Ask the interpreter of run-task for nvrx-chain, and the one of the launcher, unless an image has it, for that."""
    own = RunningProbe(config.interpreter, ("nvrx_chain",), isolated=True)
    needed = NEEDS[config.launcher.kind]
    if config.workload.built_in:
        needed = tuple(dict.fromkeys((*needed, "torch", "nvrx_chain")))
    if not needed or config.container is not None:
        return (own,)
    return (own, RunningProbe(config.launcher.python, needed, isolated=False))


def probe_interpreters(config: ChainConfig) -> tuple[ModuleProbe | Unobserved, ...]:
    """The answers of all of them."""
    return tuple(probe.result() for probe in start_probes(config))
