"""scontrol: job records, partitions and the configuration, all of them `Key=value` text without quotes. Pure.

Names, comments and paths of a job are free text and may hold ` UserId=root(0)`. The part that Slurm alone writes
begins with one pattern (`_OWNER`); the name ends there. A record in which that pattern stands twice is refused: which
of the two is true cannot be told, and a wrong owner is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nvrx_chain.slurm.array import NO_ARRAY_TASK
from nvrx_chain.slurm.model import ClusterConfig, JobDetail, Partition
from nvrx_chain.slurm.parse.values import (
    parse_duration,
    parse_exit,
    parse_number,
    parse_seconds,
    parse_slurm_time,
    parse_text,
)
from nvrx_chain.slurm.states import JobState, parse_job_state

_RECORD_START = re.compile(r"JobId=\d+ ", re.ASCII)
# Later builds of 26.05 put their own id of the job behind its name.
_HEAD = re.compile(r"(?P<keys>JobId=\d.*?) JobName=(?P<name>.*?)(?: SLUID=\w*)?", re.ASCII | re.DOTALL)
_OWNER = re.compile(r" UserId=(?P<user>[^()=]*)\((?P<uid>\d+)\) GroupId=(?P<group>[^()=]*\(\d+\)) MCS_label=", re.ASCII)
_FIELD_START = re.compile(r"\s(?=[A-Z][\w/:.\[\]-]*=)", re.ASCII)
# The free text after the part that Slurm writes, and the keys that stand between.
_FREE_KEYS = (
    "Command",
    "SubmitLine",
    "WorkDir",
    "AdminComment",
    "SystemComment",
    "Comment",
    "StdErr",
    "StdIn",
    "StdOut",
)
_TAIL_KEYS = (
    *_FREE_KEYS,
    "Power",
    "TresPerJob",
    "TresPerNode",
    "TresPerSocket",
    "TresPerTask",
    "NtasksPerTRES",
    "CpusPerTres",
    "MemPerTres",
    "TresBind",
    "TresFreq",
    "MailUser",
    "MailType",
    "BatchFeatures",
)
_TAIL_START = re.compile(rf"\s(?=(?:{'|'.join(_TAIL_KEYS)})=)")


def parse_jobs(text: str) -> tuple[JobDetail, ...]:
    """The records of `scontrol --oneliner show job`.

    Raises ValueError for text that is no record and for a record whose owner cannot be told from its free text.
    A job that is no array is its own task 0; the waiting rest of an array has array_task_id None. When free text
    after the command looks like another field, every free text but the name is empty in that record.
    """
    return tuple(_parse_job(record) for record in _records(text))


def _records(text: str) -> list[str]:
    """One string per record; a newline in a name or a comment does not begin another one."""
    records: list[str] = []
    for line in text.split("\n"):
        if _RECORD_START.match(line):
            records.append(line)
        elif records and line:
            records[-1] += f"\n{line}"
        elif line.strip():
            raise ValueError(f"read a job record: {line[:80]!r} is none")
    return records


def _parse_job(record: str) -> JobDetail:
    owners = list(_OWNER.finditer(record))
    if len(owners) != 1:
        raise ValueError(f"read a job record: {len(owners)} owners in {record[:80]!r}")
    owner = owners[0]
    head = _HEAD.fullmatch(record[: owner.start()])
    if head is None:
        raise ValueError(f"read a job record: no name in {record[:80]!r}")
    written, tail = _split_tail(record[owner.start() :])
    fields = _first_wins(_FIELD_START.split(head["keys"]))
    fields |= {"JobName": head["name"]} | _first_wins(_FIELD_START.split(written)) | _parse_tail(tail)
    return _detail(fields, name=head["name"], user=owner["user"])


def _split_tail(text: str) -> tuple[str, str]:
    for key in (" Command=", " WorkDir="):
        before, found, after = text.partition(key)
        if found:
            return before, f"{key}{after}"
    return text, ""


def _first_wins(words: Iterable[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in words:
        key, found, value = word.partition("=")
        if found:
            fields.setdefault(key, value.strip())
    return fields


def _parse_tail(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in _TAIL_START.split(text)]
    pairs = [(key, value.strip()) for key, found, value in parts if found]
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    return {key: value for key, value in fields.items() if key not in _FREE_KEYS}


def _detail(fields: dict[str, str], *, name: str, user: str) -> JobDetail:
    def text(key: str) -> str:
        return parse_text(fields.get(key, ""))

    job_id = parse_number(text("JobId"))
    if job_id is None:
        raise ValueError(f"read a job record: no job id: {text('JobId')!r}")
    state = parse_job_state(text("JobState")).state
    is_over = state.is_terminal or state is JobState.COMPLETING
    code, signal = parse_exit(text("ExitCode")) if state.is_terminal else (None, None)
    array_job_id = parse_number(text("ArrayJobId"))
    return JobDetail(
        job_id=job_id,
        array_job_id=job_id if array_job_id is None else array_job_id,
        array_task_id=0 if array_job_id is None else _array_task(text("ArrayTaskId")),
        name=name,
        user=user,
        state=state,
        reason=text("Reason"),
        dependency=text("Dependency"),
        requeue={"0": False, "1": True}.get(text("Requeue")),
        restarts=parse_number(text("Restarts")) or 0,
        exit_code=code,
        exit_signal=signal,
        array_task_throttle=parse_number(text("ArrayTaskThrottle")) or None,
        nodelist=text("NodeList"),
        batch_host=text("BatchHost"),
        comment=text("Comment"),
        work_dir=text("WorkDir"),
        command=text("Command"),
        partition=text("Partition"),
        time_limit_seconds=parse_duration(text("TimeLimit")),
        submitted_at=parse_slurm_time(text("SubmitTime")),
        # Of a pending job these are estimates, and of a running one EndTime is when its time will be up.
        started_at=None if state.is_pending else parse_slurm_time(text("StartTime")),
        ended_at=parse_slurm_time(text("EndTime")) if is_over else None,
        fields=fields,
    )


def _array_task(text: str) -> int | None:
    """None for a list of waiting tasks, and for the number that stands for the cancelled rest of an array."""
    index = parse_number(text)
    return None if index == NO_ARRAY_TASK else index


def parse_config(text: str) -> ClusterConfig:
    """The answer of `scontrol show config`. Raises ValueError when it names neither cluster nor version."""
    fields = _first_wins(text.split("\n"))
    shown = {key.strip(): value for key, value in fields.items()}

    def word(key: str) -> str:
        return parse_text(shown.get(key, ""))

    if not word("ClusterName") and not word("SLURM_VERSION"):
        raise ValueError(f"read the configuration: no cluster name and no version in {text[:80]!r}")
    return ClusterConfig(
        cluster_name=word("ClusterName"),
        version=word("SLURM_VERSION"),
        max_array_size=parse_number(word("MaxArraySize")),
        kill_wait_seconds=parse_seconds(word("KillWait")),
        slurmd_timeout_seconds=parse_seconds(word("SlurmdTimeout")),
        min_job_age_seconds=parse_seconds(word("MinJobAge")),
        preempt_mode=word("PreemptMode"),
        accounting=word("AccountingStorageType") not in ("", "none", "accounting_storage/none"),
        fields=shown,
        max_job_count=parse_number(word("MaxJobCount")),
        enforce=word("AccountingStorageEnforce"),
    )


def parse_partitions(text: str, gpus_by_partition: Mapping[str, int]) -> tuple[Partition, ...]:
    """The records of `scontrol --oneliner show partition`. Raises ValueError for a line that is none."""
    partitions: list[Partition] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        fields = _first_wins(line.split())
        name = fields.get("PartitionName")
        if not name:
            raise ValueError(f"read a partition: {line[:80]!r} is none")
        partitions.append(
            Partition(
                name=name,
                is_default=fields.get("Default") == "YES",
                available=fields.get("State") == "UP",
                max_time_seconds=parse_duration(fields.get("MaxTime", "")),
                node_count=parse_number(fields.get("TotalNodes", "")) or 0,
                gpus_per_node=gpus_by_partition.get(name),
                fields=fields,
                nodelist=parse_text(fields.get("Nodes", "")),
            )
        )
    return tuple(partitions)
