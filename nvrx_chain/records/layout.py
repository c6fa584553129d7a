"""Every path under a run directory, in one place. Pure: nothing is read or created here. See docs/protocol.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_INDEXED = re.compile(r"(joined|left|lease|drained|silence)\.(\d{1,9})\.json", re.ASCII)
SEGMENT_HEALTH = "segment_health_check"

_SEGMENT_HEALTH = re.compile(rf"{SEGMENT_HEALTH}\.(\d{{1,18}})\.(\d{{1,9}})", re.ASCII)
_SUBMISSION = re.compile(r"(\d{4,9})(\.id)?\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class GenerationDirectory:
    """`<run_dir>/generations/<array_job_id>`: all that one generation wrote."""

    path: Path
    array_job_id: int

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def cycle_infos(self) -> Path:
        return self.path / "cycle_infos"

    @property
    def timeline(self) -> Path:
        """Marks of recoveries, one file per launcher."""
        return self.path / "timeline"

    @property
    def rendezvous(self) -> Path:
        return self.control / "rendezvous.json"

    @property
    def no_restart(self) -> Path:
        return self.control / "no_restart.json"

    @property
    def closed(self) -> Path:
        return self.control / "closed.json"

    @property
    def walltime(self) -> Path:
        return self.control / "walltime.json"

    @property
    def inquiry(self) -> Path:
        return self.control / "inquiry.json"

    @property
    def cleared(self) -> Path:
        return self.control / "cleared.json"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    def lease(self, array_task_id: int) -> Path:
        return self.control / f"lease.{array_task_id}.json"

    def joined(self, array_task_id: int) -> Path:
        return self.control / f"joined.{array_task_id}.json"

    def left(self, array_task_id: int) -> Path:
        return self.control / f"left.{array_task_id}.json"

    def drained(self, array_task_id: int) -> Path:
        return self.control / f"drained.{array_task_id}.json"

    def segment_health(self, array_task_id: int) -> Path:
        """The file by which NVRx's launcher knows whether its array task may join: not when it has any content."""
        return self.control / f"{SEGMENT_HEALTH}.{self.array_job_id}.{array_task_id}"

    def silence(self, array_task_id: int) -> Path:
        return self.control / f"silence.{array_task_id}.json"

    def launcher_exit(self, array_task_id: int, node: str) -> Path:
        return self.control / f"launcher_exit.{array_task_id}.{node}.json"

    def task_log(self, array_task_id: int) -> Path:
        return self.logs / f"task_{array_task_id}.log"

    def launcher_log(self, array_task_id: int) -> Path:
        return self.logs / f"launcher_{array_task_id}.log"

    @property
    def application_log(self) -> Path:
        """The prefix that a launcher turns into `app_cycle<N>.log`."""
        return self.logs / "app.log"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one chain, on a file system that every node sees."""

    path: Path

    @property
    def manifest(self) -> Path:
        return self.path / "chain.json"

    @property
    def script(self) -> Path:
        return self.path / "generation.sbatch"

    @property
    def prologue(self) -> Path:
        """The shell script that each node sources before its launcher."""
        return self.path / "prologue.sh"

    @property
    def private(self) -> Path:
        """What only the owner may read: the values of --export, and the workload's words with secrets in them."""
        return self.path / "environment.json"

    @property
    def still_iteration(self) -> Path:
        """An iteration that never grows, for the demonstration of a no-restart verdict."""
        return self.path / "still_iteration.txt"

    @property
    def outcome(self) -> Path:
        return self.path / "chain_outcome.json"

    @property
    def hold(self) -> Path:
        return self.path / "hold.json"

    @property
    def ending(self) -> Path:
        return self.path / "ending.json"

    @property
    def excluded(self) -> Path:
        return self.path / "excluded.json"

    @property
    def history(self) -> Path:
        return self.path / "history"

    @property
    def submissions(self) -> Path:
        return self.path / "submissions"

    @property
    def generations(self) -> Path:
        return self.path / "generations"

    @property
    def slurm_logs(self) -> Path:
        """Where Slurm writes the standard output of the batch scripts. Made at submit: Slurm makes no directory."""
        return self.path / "logs"

    @property
    def default_iteration_file(self) -> Path:
        return self.path / "checkpoints" / "latest_checkpointed_iteration.txt"

    def intent(self, sequence: int) -> Path:
        return self.submissions / f"{sequence:04d}.json"

    def submission_id(self, sequence: int) -> Path:
        return self.submissions / f"{sequence:04d}.id.json"

    def generation(self, array_job_id: int) -> GenerationDirectory:
        return GenerationDirectory(self.generations / str(array_job_id), array_job_id)


def parse_indexed_name(name: str) -> tuple[str, int] | None:
    """`lease.12.json` -> ("lease", 12); None for any other name, temporary files included."""
    match = _INDEXED.fullmatch(name)
    return (match.group(1), int(match.group(2))) if match else None


def parse_segment_health_name(name: str) -> tuple[int, int] | None:
    """`segment_health_check.123.4` -> (123, 4), array job and task; None for any other name."""
    match = _SEGMENT_HEALTH.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def is_launcher_exit(name: str) -> bool:
    """Whether a name in control/ is that of a launcher's exit."""
    return name.startswith("launcher_exit.") and name.endswith(".json")


def is_task_log(name: str) -> bool:
    """Whether a name in logs/ is that of what a run-task logs about itself."""
    return name.startswith("task_")


def parse_submission_name(name: str) -> tuple[int, bool] | None:
    """`0003.json` -> (3, False), `0003.id.json` -> (3, True); None for any other name."""
    match = _SUBMISSION.fullmatch(name)
    return (int(match.group(1)), match.group(2) is not None) if match else None
