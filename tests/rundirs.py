"""Writes run directories of any size for tests and benchmarks: generations x cycles, big node lists, both layouts.

`python -m tests.rundirs DIR --generations 100 --cycles 200 --nodes 64 [--layout nvrx]`
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record
from nvrx_chain.records.layout import GenerationDirectory, RunDirectory
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
    SubmissionId,
    SubmissionIntent,
)
from nvrx_chain.records.outcome import Outcome
from nvrx_watch.layout import NvrxLayout, OwnLayout

CHAIN_ID = "chain-of-tests"
FIRST_ID = 1000
BEGAN_AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)
_CYCLE = timedelta(minutes=11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to write. `queued` generations come on top and have no directory; `live`: the last one still runs."""

    generations: int = 3
    cycles: int = 4
    nodes: int = 4
    queued: int = 1
    cold_spares: int = 1
    live: bool = True
    control: bool = True

    @property
    def shape(self) -> Shape:
        per_task = 8 if self.nodes % 8 == 0 else 1
        return Shape(
            train_tasks=self.nodes // per_task,
            hot_spares=1,
            cold_spares=self.cold_spares,
            nodes_per_task=per_task,
            gpus_per_node=8,
            procs_per_node=8,
        )


def stamp(array_job_id: int, array_task_id: int = 0) -> dict[str, Any]:
    """The fields that every control file carries."""
    return {
        "array_job_id": array_job_id,
        "array_task_id": array_task_id,
        "restart_count": 0,
        "host": "n001",
        "boot_id": "b",
        "pid": 10,
        "pid_started_at": 20,
    }


def write_own(directory: Path, size: Size) -> OwnLayout:
    """A run directory of nvrx-chain, as a chain leaves it that has reached its last generation but `queued`."""
    run = RunDirectory(directory)
    for path in (run.submissions, run.generations, run.slurm_logs, run.default_iteration_file.parent):
        path.mkdir(parents=True, exist_ok=True)
    _write(run.manifest, manifest(directory, size))
    run.default_iteration_file.write_text(f"{size.generations * size.cycles * 100}\n")
    for position in range(size.generations + size.queued):
        write_submission(run, position, FIRST_ID + position)
    for position in range(size.generations):
        is_live = size.live and position == size.generations - 1
        _write_generation(run.generation(FIRST_ID + position), position, size, is_live)
    return OwnLayout(run_directory=directory, chain_id=CHAIN_ID, owner_uid=os.getuid())


def write_nvrx(directory: Path, size: Size) -> NvrxLayout:
    """The directories of NVRx's own example."""
    for position in range(size.generations):
        place = directory / "nvrx" / str(FIRST_ID + position)
        for path in (place / "cycle_infos", place / "control", place / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        is_live = size.live and position == size.generations - 1
        _write_cycles(place / "cycle_infos", place / "logs", position, size, is_live)
        (place / "control" / "rdzv_host").write_text("n001\n")
    iteration_file = directory / "checkpoints" / "latest_checkpointed_iteration.txt"
    iteration_file.parent.mkdir(exist_ok=True)
    iteration_file.write_text(f"{size.generations * size.cycles * 100}\n")
    return NvrxLayout(
        cycle_info_glob=f"{directory}/nvrx/*/cycle_infos/cycle_info.*",
        iteration_file=iteration_file,
        owner_uid=os.getuid(),
        work_directory=directory,
    )


def manifest(directory: Path, size: Size) -> ChainManifest:
    """chain.json of such a chain."""
    return ChainManifest(
        chain_id=CHAIN_ID,
        job_name="train",
        user="alice",
        uid=os.getuid(),
        cluster="c",
        run_directory=str(directory),
        submitted_at=format_time(BEGAN_AT),
        package_version="0.1.0",
        interpreter="/usr/bin/python3",
        shape=size.shape,
        chain_depth=size.generations + size.queued,
        time_limit_seconds=3600,
        launcher=Launcher(kind=LauncherKind.FT_LAUNCHER, python="python3", max_restarts=10),
        workload=("train.py",),
        checkpoint_iteration_file=str(RunDirectory(directory).default_iteration_file),
        completion=Completion(kind=CompletionKind.TWO_QUIET_EXITS),
    )


def write_submission(run: RunDirectory, sequence: int, array_job_id: int | None) -> None:
    """The intent of one generation, and its id unless that is not known."""
    intent = SubmissionIntent(
        chain_id=CHAIN_ID,
        sequence=sequence,
        stamp=f"nvrx-chain:{CHAIN_ID}:{sequence}",
        argv=("sbatch",),
        intended_at=format_time(BEGAN_AT),
    )
    _write(run.intent(sequence), intent)
    if array_job_id is not None:
        record = SubmissionId(
            chain_id=CHAIN_ID,
            sequence=sequence,
            array_job_id=array_job_id,
            cluster="c",
            submitted_at=format_time(BEGAN_AT),
            adopted=False,
            recorded_at=format_time(BEGAN_AT),
        )
        _write(run.submission_id(sequence), record)


def write_closed(directory: GenerationDirectory, at: datetime, outcome: Outcome = Outcome.FAILED) -> None:
    """closed.json and the record of a generation that ended."""
    directory.control.mkdir(parents=True, exist_ok=True)
    closed = control.Closed(
        outcome=outcome,
        exit_code=1,
        closed_by="task 0",
        closed_at=format_time(at),
        evidence=("the launcher ended",),
        **stamp(directory.array_job_id),
    )
    _write(directory.closed, closed)
    _write(directory.record, record(directory.array_job_id, at, outcome))


def record(array_job_id: int, ended_at: datetime | None, outcome: Outcome | None) -> control.GenerationRecord:
    """record.json of one generation."""
    return control.GenerationRecord(
        chain_id=CHAIN_ID,
        started_at=format_time(BEGAN_AT),
        launched_at=format_time(BEGAN_AT),
        ended_at=format_time(ended_at) if ended_at is not None else None,
        outcome=outcome,
        exit_code=1 if ended_at is not None else None,
        signalled=False,
        near_wall=False,
        iteration_at_start=0,
        iteration_at_end=100 if ended_at is not None else None,
        cycles=None,
        run_seconds=None,
        **stamp(array_job_id),
    )


def cycle_record(
    array_job_id: int,
    number: int,
    *,
    attempt: int = 0,
    ended: bool = True,
    log_file: str = "",
    started_at: datetime = BEGAN_AT,
    active: str = "n[001-004]",
    standby: str = "n[005]",
) -> dict[str, Any]:
    """One cycle record with all ten fields, in NVRx's order."""
    return {
        "job_id": str(array_job_id),
        "cycle_number": number,
        "cycle_start_time": format_time(started_at),
        "cycle_end_time": format_time(started_at + timedelta(minutes=10)) if ended else "",
        "cycle_log_file": log_file,
        "active_nodes": active,
        "standby_nodes": standby,
        "generation": "1" if ended else "0",
        "active_ranks": "0-3",
        "attempt_index": attempt,
    }


def write_cycle(directory: Path, fields: dict[str, Any]) -> Path:
    """One record under the name that its fields give it."""
    name = f"cycle_info.{fields['job_id']}.{fields['attempt_index']}.{fields['cycle_number']}"
    path = directory / name
    temporary = directory / f"{name}.tmp"
    temporary.write_text(json.dumps(fields, indent=2))
    temporary.rename(path)
    return path


def age(directory: Path, seconds: float = 3600.0) -> None:
    """Make every directory below look as if it had last changed so long ago: a fresh one is listed in each pass."""
    for place, _, _ in os.walk(directory):
        at = os.stat(place).st_mtime - seconds
        os.utime(place, (at, at))


def _write_generation(directory: GenerationDirectory, position: int, size: Size, is_live: bool) -> None:
    for path in (directory.control, directory.logs, directory.cycle_infos):
        path.mkdir(parents=True, exist_ok=True)
    ends_at = BEGAN_AT + _CYCLE * size.cycles * (position + 1)
    if size.control:
        for array_task_id in range(size.shape.throttle):
            _write_task(directory, array_task_id, is_live)
        _write(directory.rendezvous, _rendezvous(directory.array_job_id, size), mode=0o600)
    if is_live:
        _write(directory.record, record(directory.array_job_id, None, None))
    else:
        write_closed(directory, ends_at)
    _write_cycles(directory.cycle_infos, directory.logs, position, size, is_live)
    (directory.logs / "task_0.log").write_text("task 0 begins\n")


def _write_task(directory: GenerationDirectory, array_task_id: int, is_live: bool) -> None:
    of_task = stamp(directory.array_job_id, array_task_id)
    lease = control.Lease(counter=7, interval_seconds=5.0, phase="training", **of_task)
    _write(directory.lease(array_task_id), lease)
    joined = control.Joined(nodes=("n001",), joined_at=format_time(BEGAN_AT), **of_task)
    _write(directory.joined(array_task_id), joined)
    if not is_live:
        left = control.Left(left_at=format_time(BEGAN_AT), evidence="no rank is left", **of_task)
        _write(directory.left(array_task_id), left)


def _rendezvous(array_job_id: int, size: Size) -> control.Rendezvous:
    return control.Rendezvous(
        rendezvous_host="n001",
        rendezvous_port=29500,
        nonce="x",
        secret="s" * 32,
        published_at=format_time(BEGAN_AT),
        started_at=format_time(BEGAN_AT),
        members=tuple(range(size.shape.train_tasks)),
        present=tuple(range(size.shape.throttle)),
        **stamp(array_job_id),
    )


def _write_cycles(directory: Path, logs: Path, position: int, size: Size, is_live: bool) -> None:
    array_job_id = FIRST_ID + position
    for number, (active, standby) in zip(range(size.cycles), _node_lists(position, size), strict=False):
        log_file = logs / f"app_cycle{number}.log"
        fields = cycle_record(
            array_job_id,
            number,
            ended=not (is_live and number == size.cycles - 1),
            log_file=str(log_file),
            started_at=BEGAN_AT + _CYCLE * (position * size.cycles + number),
            active=active,
            standby=standby,
        )
        path = directory / f"cycle_info.{array_job_id}.0.{number}"
        path.write_text(json.dumps(fields, indent=2))
        if is_live and number >= size.cycles - 10:
            log_file.write_text("".join(_log_lines(number)))
    if size.cycles:
        link = directory / f"cycle_info.{array_job_id}.current"
        link.symlink_to(f"cycle_info.{array_job_id}.0.{size.cycles - 1}")


def _node_lists(position: int, size: Size) -> Iterator[tuple[str, str]]:
    """Each allocation lies elsewhere; in one, every fourth failure is a node's, and the spare takes over."""
    first = 1 + 7 * position
    number = 0
    while True:
        spare = first + number // 4 % (size.nodes + 1)
        last = first + size.nodes
        ranges = [(first, spare - 1), (spare + 1, last)]
        text = ",".join(f"{low:04d}-{high:04d}" if low < high else f"{low:04d}" for low, high in ranges if low <= high)
        yield f"node[{text}]", f"node[{spare:04d}]"
        number += 1


def _log_lines(number: int) -> Iterator[str]:
    for step in range(200):
        iteration = number * 100 + step // 2
        yield (
            f"7:  [2026-03-01 12:00:00] iteration {iteration:8d}/  500000 | consumed samples: {iteration * 512:12d} | "
            "elapsed time per iteration (ms): 412.5 | learning rate: 3.0E-04 | lm loss: 2.1E+00 |\n"
        )


def _write(path: Path, content: msgspec.Struct, mode: int = 0o644) -> None:
    path.write_bytes(encode_record(content))
    path.chmod(mode)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--queued", type=int, default=1)
    parser.add_argument("--ended", action="store_true", help="the last generation is over, too")
    parser.add_argument("--layout", choices=("own", "nvrx"), default="own")
    options = parser.parse_args()
    size = Size(
        generations=options.generations,
        cycles=options.cycles,
        nodes=options.nodes,
        queued=options.queued,
        live=not options.ended,
    )
    options.directory.mkdir(parents=True, exist_ok=True)
    write = write_own if options.layout == "own" else write_nvrx
    print(write(options.directory.resolve(), size))
    age(options.directory)


if __name__ == "__main__":
    main()
