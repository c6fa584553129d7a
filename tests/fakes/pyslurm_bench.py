"""A PySlurm client whose child process imports the stand-in for PySlurm, and what that stand-in shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.pyslurm_process import PySlurmProcess
from nvrx_chain.slurm.pyslurm_worker import Answer, Question

STAND_IN = Path(__file__).parent / "fake_pyslurm"
RECORDED = Path(__file__).parents[1] / "fixtures" / "pyslurm"
WORLD_FILE = "pyslurm world.json"


def recorded(scene: str) -> dict[str, Any]:
    """The objects that a real PySlurm 25.11.2 showed of a real Slurm 25.11.7."""
    world: dict[str, Any] = json.loads((RECORDED / f"{scene}.json").read_text())
    return {"jobs": world["jobs"], "nodes": world["nodes"], "accounting": None}


class StandIn:
    """A PySlurmProcess on the stand-in. `world` is written before every question, so the child always sees it new."""

    def __init__(self, directory: Path, world: Callable[[], dict[str, Any]], **environ: str) -> None:
        self._world = world
        self._file = directory / WORLD_FILE
        self.process = PySlurmProcess({**environ, "FAKE_PYSLURM": str(self._file)}, search_path=(str(STAND_IN),))
        self._write()

    def ask(self, question: Question) -> Answer | Unobserved:
        self._write()
        return self.process.ask(question)

    def close(self) -> None:
        self.process.close()

    def _write(self) -> None:
        self._file.write_text(json.dumps(self._world()))
