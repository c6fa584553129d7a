"""A launcher without workers: takes part in a job of launchers by `Job`, joins every round, and leaves with its code.

    python agent.py PORT INDEX DIRECTORY

The host (index 0) judges by the marker in DIRECTORY and keeps the records there. Each round after the first is opened
by agent 1, again and again, as a worker that fails at once would do it. Lines on standard output: `filled N`,
`ended REASON CODE`, `lost the host`, `code CODE`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from nvrx_chain.errors import ExitCode
from nvrx_chain.launcher.coordinator import Limits
from nvrx_chain.launcher.events import Cause, Ended, Filled, Opened
from nvrx_chain.launcher.guest import HostSilent
from nvrx_chain.launcher.job import Job, Meeting, new_agent_id
from nvrx_chain.launcher.judge import JobJudge
from nvrx_chain.launcher.keeping import JobRecords
from nvrx_chain.launcher.members import Member, Spec
from nvrx_chain.launcher.outcome_file import JobOutcome, read_outcome
from nvrx_chain.launcher.progress import ProgressSettings
from nvrx_chain.launcher.verdict import Attendance
from nvrx_chain.records.cycle_info import CycleDirectory, open_cycle_directory

RUN_ID = "run"
HOST_WAITS_SECONDS = 60.0


class _SlowRecords(JobRecords):
    """Says when the end is on disk, and then waits to be killed, or for a file with the name `go`."""

    gate: Path | None = None

    def before(self, event: Filled | Ended, attendance: Attendance) -> None:
        super().before(event, attendance)
        if isinstance(event, Ended) and self.gate is not None:
            print("decided", flush=True)
            with open(self.gate) as fifo:  # no deadline: the test opens it, or kills this process
                fifo.read()


def main() -> int:
    port, index, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    place = open_cycle_directory(directory / "cycle_infos", "8", 0)
    job = _job(port, index)
    settings = ProgressSettings(max_cycles=2, min_cycle_seconds=0.0)
    judge, records = None, None
    if index == 0:
        judge = JobJudge(
            settings,
            by=job.member.agent_id,
            no_restart_exit_code=93,
            marker_file=directory / "marker",
            verdict_file=directory / "order",
        )
        records = _SlowRecords(place, run_id=RUN_ID, judge=judge)
        gate = directory / "gate"
        records.gate = gate if gate.exists() else None
        records.prepare()
        judge.watch(job.end)
    job.connect(judge or (lambda opened, state: None), records)
    code = _take_part(job, index, place, directory)
    print(f"code {code}", flush=True)
    job.leave(host_waits_seconds=HOST_WAITS_SECONDS)
    if records is not None:
        records.close()
    return code


def _job(port: int, index: int) -> Job:
    meeting = Meeting(
        host="localhost",
        port=port,
        run_id=RUN_ID,
        secret="s",
        is_host=index == 0,
        connect_seconds=60.0,
        liveness_seconds=float(os.environ.get("LIVENESS", "5")),
    )
    member = Member(agent_id=new_agent_id(index), infra_rank=index, group=f"t{index}", address=f"node{index}")
    spec = Spec(min_nodes=2, max_nodes=3, first_grace_seconds=60)
    return Job(meeting, spec, Limits(max_restarts=100, no_restart_exit_code=93), member, procs_per_node=1)


def _take_part(job: Job, index: int, place: CycleDirectory, directory: Path) -> int:
    # No deadline: it ends with the job, or with the host.
    while True:
        for news in job.take(1.0):
            if isinstance(news, Opened):
                job.join(job.state.round)
            elif isinstance(news, Filled):
                # Here the workers would start, and read it at their first line.
                record = json.loads(place.record(news.round).read_text())
                assert record["cycle_number"] == news.round, record
                print(f"filled {news.round}", flush=True)
                if index == 1 and (directory / "fail").exists():
                    job.open(Cause(kind="worker", rank=1, exit_code=-9))
            elif isinstance(news, Ended):
                print(f"ended {news.reason.value} {news.exit_code}", flush=True)
                return news.exit_code
            elif isinstance(news, HostSilent):
                print("lost the host", flush=True)
                found = read_outcome(place.outcome, run_id=RUN_ID)
                return found.exit_code if isinstance(found, JobOutcome) else int(ExitCode.HOST_LOST)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The store's threads must not hold up the exit.
    os._exit(code)
