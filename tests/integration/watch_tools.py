"""What the tests of the watcher share: `nvrx-watch` as a person types it, and bare chains of NVRx's kind.

    watch = Watcher(cluster, tmp_path / "state", thresholds={"orphan_grace": 5})
    seen = watch.look("123", "--act")        # Seen: exit code, the objects of --json, standard error
    seen.finding("orphaned_generation")      # or None

Touches: the cluster, directories of the test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.cluster import Cluster, wait_for

WATCH = (sys.executable, "-m", "nvrx_watch")
OTHER_USER = "nobody"
# He may read every file, as a second member of the project could, and is nobody to Slurm.
AS_OTHER_USER = (
    "setpriv",
    f"--reuid={OTHER_USER}",
    "--regid=nogroup",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)
# As the launcher of NVRx's example does: a chain that nvrx-chain did not submit is known as one by its cycle records.
PLAIN_TASK = """\
if [ "$SLURM_ARRAY_TASK_ID" = 0 ]; then
  mkdir -p "nvrx/$SLURM_ARRAY_JOB_ID/cycle_infos"
  cat >"nvrx/$SLURM_ARRAY_JOB_ID/cycle_infos/cycle_info.$SLURM_ARRAY_JOB_ID.0.0" <<JSON
{{"job_id": "$SLURM_ARRAY_JOB_ID", "attempt_index": 0, "cycle_number": 0, "active_nodes": "$SLURMD_NODENAME",
 "cycle_start_time": "$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)", "cycle_end_time": ""}}
JSON
fi
touch "up.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID"
case "$SLURM_ARRAY_TASK_ID" in
  0) {task_zero} ;;
  *) sleep 600 ;;
esac
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one call said. `passes` has one object per pass and chain."""

    code: int
    passes: tuple[dict[str, Any], ...]
    stderr: str

    @property
    def only(self) -> dict[str, Any]:
        """The object of the only pass."""
        assert len(self.passes) == 1, (self.passes, self.stderr)
        return self.passes[0]

    def finding(self, detector: str) -> dict[str, Any] | None:
        """The finding of a detector, None when it did not fire."""
        found = [one for one in self.only["findings"] if one["detector"] == detector]
        return found[0] if found else None

    def detectors(self, *severities: str) -> set[str]:
        """The detectors that fired, of these severities (all)."""
        return {one["detector"] for one in self.only["findings"] if not severities or one["severity"] in severities}

    def action(self, kind: str) -> dict[str, Any] | None:
        """What came of an action."""
        found = [one for one in self.only["actions"] if one["kind"] == kind]
        return found[0] if found else None


@dataclass(slots=True)
class Watcher:
    """`nvrx-watch` with a state directory of its own."""

    cluster: Cluster
    state: Path
    thresholds: Mapping[str, float] = field(default_factory=dict)
    options: Sequence[str] = ()
    as_other_user: bool = False

    def argv(self, *words: str) -> list[str]:
        """The command, without its environment."""
        self.state.mkdir(parents=True, exist_ok=True)
        if self.as_other_user:
            shutil.chown(self.state, OTHER_USER)
        config = self.state.parent / f"{self.state.name}.toml"
        config.write_text("[thresholds]\n" + "".join(f"{name} = {value}\n" for name, value in self.thresholds.items()))
        prefix = AS_OTHER_USER if self.as_other_user else ()
        return [*prefix, *WATCH, f"--config={config}", f"--state-dir={self.state}", *self.options, *words]

    def look(self, *words: str) -> Seen:
        """One pass."""
        done = self.cluster.run(self.argv("--json", *words), cwd=self.state.parent, check=False)
        assert done.returncode in (0, 1, 2), (done.returncode, done.stdout, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Seen(code=done.returncode, passes=tuple(lines), stderr=done.stderr)

    def look_until(self, detector: str, *words: str, seconds: float) -> Seen:
        """Passes until a detector fires."""

        def find() -> Seen | None:
            seen = self.look(*words)
            return seen if seen.finding(detector) is not None else None

        return wait_for(find, seconds, f"{detector} to fire")

    @contextmanager
    def staying(self, *words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A daemon while the block runs; it is asked to end by SIGTERM, and has to within 30 s."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.argv(*words),
                env={**os.environ, **self.cluster.environ},
                cwd=self.state.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
                assert process.poll() is None, f"the daemon ended with {process.returncode}: {log.read_text()[-3000:]}"
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
                    raise
        assert process.returncode == 0, log.read_text()[-3000:]


def submit_plain(
    cluster: Cluster, directory: Path, *, task_zero: str = "sleep 600", name: str = "plain", depth: int = 2
) -> tuple[int, ...]:
    """A chain as a site's own script makes one: arrays of 5, three at once, one name, singleton. Their job ids."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "chain.sbatch"
    script.write_text("#!/bin/bash\n" + PLAIN_TASK.format(task_zero=task_zero))
    argv = ["sbatch", "--parsable", f"--job-name={name}", "--array=0-4%3", "--dependency=singleton", "--no-requeue"]
    argv += ["--exclusive", "--time=30", "--output=/dev/null", f"--chdir={directory}", str(script)]
    return tuple(int(cluster.run(argv).stdout.split(";")[0]) for _ in range(depth))


def wait_until_up(cluster: Cluster, directory: Path, job: int, seconds: float = 60.0) -> None:
    """Until the first three tasks of a plain array run their scripts: RUNNING comes before there is a shell."""
    up = [directory / f"up.{job}.{task}" for task in range(3)]
    wait_for(lambda: all(path.exists() for path in up), seconds, f"three tasks of {job} to be up")
    wait_for_states(cluster, job, "RUNNING", 3, seconds)


def wait_for_states(cluster: Cluster, job: int, state: str, count: int, seconds: float = 60.0) -> None:
    """Until so many tasks of an array job are in a state."""
    wait_for(
        lambda: sum(row.job == job and row.state == state for row in cluster.queue()) >= count,
        seconds,
        f"{count} tasks of {job} to be {state}",
    )


def tasks_in(cluster: Cluster, job: int, *states: str) -> set[int | None]:
    """The array task ids of a job in these states."""
    return {row.task for row in cluster.queue() if row.job == job and row.state in states}
