"""Not PySlurm: its documented attributes, with its recorded traps, over what scontrol prints of a real Slurm.

PySlurm cannot be built for the Slurm of the sandbox. With this in its place the contract of the PySlurm client runs
from end to end against a real controller: the child process, the conversion over a job's whole life, and what goes to
Slurm's programs. It proves nothing of PySlurm itself. Job records are split by the parser of the other client.
"""

from __future__ import annotations

import os
import subprocess
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.slurm.parse.scontrol import parse_config, parse_jobs
from nvrx_chain.slurm.parse.values import parse_duration, parse_number, parse_slurm_time

_SECONDS = 20
_NO_ARRAY_TASK = 4294967294


class RPCError(Exception):
    pass


def _scontrol(*words: str) -> str:
    argv = ["scontrol", "--all", *words]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RPCError(done.stderr.strip())
    return done.stdout


def _epoch(text: str) -> int | None:
    instant: datetime | None = parse_slurm_time(text)
    return None if instant is None else int(instant.timestamp())


def _job(detail: JobDetail) -> SimpleNamespace:
    fields = {key: (None if value in ("", "(null)") else value) for key, value in detail.fields.items()}
    index = fields.get("ArrayTaskId")
    number = parse_number(index or "")
    limit = parse_duration(fields["TimeLimit"] or "")
    code, _, signal = (fields["ExitCode"] or "").partition(":")
    depends = {kind: [] for kind in ("after", "afterany", "afternotok", "afterok")} | {"singleton": False}
    return SimpleNamespace(
        id=detail.job_id,
        array_id=parse_number(fields.get("ArrayJobId") or ""),
        # 0 is read as "not set".
        array_task_id=(number or None) if number != _NO_ARRAY_TASK else None,
        array_tasks_waiting=index.partition("%")[0] if index and number is None else None,
        array_tasks_parallel=parse_number(fields.get("ArrayTaskThrottle") or ""),
        name=fields["JobName"],
        user_name=detail.user,
        user_id=int((fields["UserId"] or "").partition("(")[2].rstrip(")")),
        state=fields["JobState"],
        state_reason=fields["Reason"],
        dependencies=depends if fields["Dependency"] else None,
        allocated_nodes=fields.get("NodeList"),
        batch_host=fields.get("BatchHost"),
        partition=fields["Partition"],
        comment=fields.get("Comment"),
        working_directory=fields.get("WorkDir"),
        command=fields.get("Command"),
        time_limit=None if limit is None else limit // 60,
        submit_time=_epoch(fields["SubmitTime"] or ""),
        start_time=_epoch(fields["StartTime"] or ""),
        end_time=_epoch(fields["EndTime"] or ""),
        exit_code=int(code),
        exit_code_signal=int(signal),
        is_requeueable=fields["Requeue"] == "1",
        requeue_count=int(fields["Restarts"] or ""),
    )


def _jobs(*words: str) -> dict[int, SimpleNamespace]:
    text = _scontrol("--details", "--oneliner", "show", "job", *words)
    if text.startswith("No jobs in the system"):
        return {}
    return {detail.job_id: _job(detail) for detail in parse_jobs(text)}


class Jobs:
    @staticmethod
    def load() -> dict[int, SimpleNamespace]:
        return _jobs()


class Job:
    @staticmethod
    def load(job_id: int) -> SimpleNamespace:
        return next(iter(_jobs(str(job_id)).values()))


class Nodes:
    @staticmethod
    def load() -> dict[str, SimpleNamespace]:
        nodes: dict[str, SimpleNamespace] = {}
        for line in _scontrol("--oneliner", "show", "node").splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            state = words["State"].replace("*", "+NOT_RESPONDING")
            nodes[words["NodeName"]] = SimpleNamespace(name=words["NodeName"], state=state, reason=words.get("Reason"))
        return nodes


class _Config:
    @staticmethod
    def load() -> SimpleNamespace:
        seen = parse_config(_scontrol("show", "config"))
        return SimpleNamespace(
            cluster_name=seen.cluster_name,
            version=seen.version,
            max_array_size=seen.max_array_size,
            kill_wait_time=seen.kill_wait_seconds,
            slurmd_timeout=seen.slurmd_timeout_seconds,
            min_job_age=seen.min_job_age_seconds,
            preempt_mode=seen.preempt_mode,
            accounting_storage_type="accounting_storage/slurmdbd" if seen.accounting else None,
        )


class _DbJobs:
    @staticmethod
    def load(_asked: Any) -> Any:
        raise RPCError("Failed to open a connection to slurmdbd")


slurmctld = SimpleNamespace(Config=_Config)
db = SimpleNamespace(Jobs=_DbJobs, JobFilter=SimpleNamespace)
