"""Making, filling and clearing a run directory for a submit.

Touches: the run directory. Slurm makes no directories itself: without logs/ a job's output is lost and the job fails.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from nvrx_chain.errors import RecordError
from nvrx_chain.records.files import encode_record, list_names, write_atomic, write_first
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.submit.plan import SubmitPlan

_MODE = 0o755


def make_directories(run: RunDirectory, uid: int) -> None:
    """The run directory and what must be there before a job starts. Raises RecordError for one that is not ours."""
    try:
        run.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"making {run.path.parent}: {error.strerror}", hint="choose a --run-dir in which you may write"
        ) from error
    for directory in (run.path, run.slurm_logs, run.generations, run.submissions, run.history):
        try:
            directory.mkdir(mode=_MODE, exist_ok=True)
            status = directory.stat() if directory == run.path else directory.lstat()
        except OSError as error:
            raise RecordError(
                f"making {directory}: {error.strerror}", hint="choose a --run-dir in which you may write"
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid:
            raise RecordError(
                f"making {directory}: it is there and is no directory of ours", hint="choose another --run-dir"
            )


def claim_directory(plan: SubmitPlan) -> None:
    """Write chain.json, which makes the directory this chain's, then the script.

    Raises RecordError when another submit was first, or when the file system has no hard links: both before any job
    is queued.
    """
    if not write_first(plan.run.manifest, encode_record(plan.manifest)):
        raise RecordError(
            f"creating {plan.run.manifest}: another submit was faster",
            hint="run the same command again to see its chain",
        )
    write_script(plan)


def write_script(plan: SubmitPlan) -> None:
    """The script as submitted. Jobs in the queue have their own copy, so replacing it changes none of them."""
    write_atomic(plan.run.script, plan.script.encode(), mode=_MODE)
    if plan.prologue is not None:
        # It may hold keys.
        write_atomic(plan.run.prologue, plan.prologue.encode(), mode=0o600)
    if plan.private is not None:
        write_atomic(plan.run.private, encode_record(plan.private), mode=0o600)
    if plan.manifest.faults is not None and plan.manifest.faults.no_restart_demo:
        # Above zero: a launcher that reads zero counts no progress and no lack of it.
        write_atomic(plan.run.still_iteration, b"1\n")


def move_to_history(run: RunDirectory, label: str) -> Path | None:
    """Clear the directory of a chain that is over: its records go to history/<label>, or <label>.2 and so on.

    None when there was nothing to move. Checkpoints, generations and logs stay. chain.json goes first: without it
    the rest is of no chain, and whatever an interrupted call left behind is moved by the next.
    """
    present = [
        path for path in (run.manifest, run.outcome, run.hold, run.ending, run.excluded) if os.path.lexists(path)
    ]
    _remove_private(run)
    if list_names(run.submissions):
        present.append(run.submissions)
    if not present:
        return None
    target = _new_directory(run.history, label)
    _move(present, target)
    return target


def _remove_private(run: RunDirectory) -> None:
    """The values of a chain that is over are of no use to anybody who means well."""
    try:
        run.private.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"removing {run.private}: {error.strerror}", hint="remove it by hand, and repeat the command"
        ) from error


def move_submissions(run: RunDirectory, sequences: Sequence[int], label: str) -> None:
    """Take single submissions of a living chain off its record, ids first: an intent alone is looked into again."""
    paths = [*(run.submission_id(seq) for seq in sequences), *(run.intent(seq) for seq in sequences)]
    present = [path for path in paths if os.path.lexists(path)]
    if present:
        _move(present, _new_directory(run.history, label))


def _move(paths: Sequence[Path], target: Path) -> None:
    for path in paths:
        try:
            os.rename(path, target / path.name)
        except OSError as error:
            raise RecordError(
                f"moving {path} to {target}: {error.strerror}",
                hint="make both directories writable, and repeat the command",
            ) from error


def _new_directory(parent: Path, label: str) -> Path:
    for number in range(1, 1000):
        directory = parent / (label if number == 1 else f"{label}.{number}")
        try:
            directory.mkdir(mode=_MODE, parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RecordError(
                f"making {directory}: {error.strerror}",
                hint="make the directory above it writable, and repeat the command",
            ) from error
        return directory
    raise RecordError(f"making {parent / label}: 999 of that name are there", hint="remove or move some")
