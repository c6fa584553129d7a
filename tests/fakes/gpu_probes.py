"""A GPU process with a fake pynvml in it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from nvrx_chain.launcher.gpu_probe import ProbedGpus

ROOT = Path(__file__).parents[2]
HEALTHY = "module = FakePynvml(eight())"


def command(setup: str) -> tuple[str, ...]:
    """A probe whose pynvml is the fake that `setup` names `module`."""
    program = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from nvrx_chain.launcher import gpu_probe
        from tests.fakes.fake_pynvml import *
        {setup}
        sys.modules["pynvml"] = module
        gpu_probe.IDLE_SECONDS = 0.05
        gpu_probe.main()
    """
    return (sys.executable, "-I", "-c", textwrap.dedent(program))


class Probes:
    """Starts probes and ends them with the test."""

    def __init__(self) -> None:
        self.started: list[ProbedGpus] = []

    def start(self, setup: str, visible: tuple[str, ...] | None = None) -> ProbedGpus:
        self.started.append(ProbedGpus(visible, command(setup)))
        return self.started[-1]
