"""A stand-in for PySlurm, imported by the child process of its client: objects of the recorded shape.

The environment variable FAKE_PYSLURM names a JSON file, read at every question: `jobs`, `nodes` (as in
tests/fixtures/pyslurm), `config`, `accounting` (null: there is no slurmdbd), and `faults`: what happens at `import` or
at the question `jobs`, `job`, `nodes`, `config`, `accounting`: `exit` (as libslurm's fatal() does), `hang` (makes a
file `.hangs` beside that one), `crash`, `fail` (an error that nobody foresees), `talk` (prints on standard output),
else the text of an RPCError.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

__version__ = os.environ.get("FAKE_PYSLURM_VERSION", "25.11.2")


class RPCError(Exception):
    pass


def _world(question: str) -> dict[str, Any]:
    with open(os.environ["FAKE_PYSLURM"]) as file:
        world: dict[str, Any] = json.load(file)
    fault = world.get("faults", {}).get(question)
    if fault == "exit":
        print("fatal: Unable to process configuration file", file=sys.stderr, flush=True)
        os._exit(1)
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        with open(f"{os.environ['FAKE_PYSLURM']}.hangs", "w"):
            time.sleep(600)
    if fault == "fail":
        raise RuntimeError("something that nobody foresees")
    if fault == "talk":
        print("slurm_load_jobs: debug", flush=True)
    elif fault is not None:
        raise ImportError(fault) if question == "import" else RPCError(fault)
    return world


class _Shown:
    """An object with the attributes of a record; an attribute in `raises` cannot be computed."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._record:
            raise AttributeError(name)
        if name in self._record.get("raises", ()):
            raise IndexError(f"cannot compute {name}")
        return self._record[name]


class Job(_Shown):
    @staticmethod
    def load(job_id: int) -> Job:
        for job in Jobs(_world("job")["jobs"]).values():
            if job_id in (job.id, job.array_id):
                return job
        raise RPCError("Invalid job id specified")


class Jobs(dict[int, Job]):
    def __init__(self, records: dict[str, Any]) -> None:
        super().__init__({int(key): Job(record) for key, record in records.items()})

    @staticmethod
    def load() -> Jobs:
        return Jobs(_world("jobs")["jobs"])


class Nodes(dict[str, _Shown]):
    @staticmethod
    def load() -> Nodes:
        return Nodes({name: _Shown(record) for name, record in _world("nodes")["nodes"].items()})


class _JobFilter:
    def __init__(self, *, ids: list[int]) -> None:
        self.ids = ids


class _DbJobs(list[Any]):
    @staticmethod
    def load(asked: _JobFilter) -> list[_Shown]:
        rows = _world("accounting")["accounting"]
        if rows is None:
            raise RPCError("Failed to open a connection to slurmdbd")
        found = [row for row in rows if (row["array_id"] or row["id"]) in asked.ids]
        return [
            _Shown({**row, "steps": {key: _Shown(step) for key, step in row.get("steps", {}).items()}}) for row in found
        ]


db = SimpleNamespace(Jobs=_DbJobs, JobFilter=_JobFilter)

_world("import")
