"""What an interpreter can import of what a chain needs. Touches: a child process for each interpreter that is asked."""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.children import AskedChild
from nvrx_chain.submit.config import ChainConfig

PROBE_TIMEOUT_SECONDS = 60.0
_FT_LAUNCHER = "nvidia_resiliency_ext"
NEEDS: dict[LauncherKind, tuple[str, ...]] = {
    LauncherKind.NVRX: ("torch", "nvrx_chain"),
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
        self._child = AskedChild([interpreter, *(["-I"] if isolated else []), "-c", _PROBE, wanted], os.environ)

    def result(self) -> ModuleProbe | Unobserved:
        """The answer, or why there is none."""
        stdout = self._child.answer(seconds=PROBE_TIMEOUT_SECONDS)
        if isinstance(stdout, Unobserved):
            return Unobserved(f"asking {self._interpreter}: {stdout.reason}")
        try:
            found = msgspec.json.decode(stdout, type=dict[str, str])
        except msgspec.DecodeError as error:
            return Unobserved(f"asking {self._interpreter}: no answer of ours: {error}")
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
