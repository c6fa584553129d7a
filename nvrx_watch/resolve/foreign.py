"""A chain that nvrx-chain did not submit: its files by what the user says, else by what its batch script tells.

Touches: a batch script that lies where Slurm says it was submitted from (read only), and what batch_script touches.
"""

from __future__ import annotations

import glob
import logging
import os
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import read_bytes
from nvrx_watch.layout import NvrxLayout
from nvrx_watch.model import Subject
from nvrx_watch.resolve.batch_script import LONGEST_SCRIPT, ScriptFacts, ScriptPaths, read_script_paths
from nvrx_watch.resolve.shell_text import clean
from nvrx_watch.resolve.watched import NVRX_ITERATION, Account, ForeignHints, ReadScript, Watched, cycles_below, shown

log = logging.getLogger(__name__)

_MOST_COMMAND_WORDS = 32


class ForeignJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the job that was named. `command` is Slurm's `Command=`, empty where it shows none.

    `script_ids` are jobs whose batch script may be asked for: all generations of a chain run the same one.
    """

    array_job_id: int | None
    name: str
    user: str
    account: Account | None
    cluster: str | None
    work_directory: str
    command: str
    script_ids: tuple[int, ...]


def watch_foreign(job: ForeignJob, hints: ForeignHints, read_script: ReadScript, here: Path) -> Watched:
    """Whom and what to watch of such a chain. What cannot be found out stays None; nothing is guessed."""
    told = ScriptPaths() if _is_enough(hints) else _read_script(job, read_script)
    cycles = _given_cycles(hints, here) or _script_cycles(told)
    iteration = _given_iteration(hints, here) or _script_iteration(told)
    if cycles is None:
        log.warning(
            "no cycle records are known of chain %s: name them by --work-dir or --cycle-info-glob", shown(job.name)
        )
    work = here / hints.work_directory if hints.work_directory else _path(told.work_directory)
    uid = job.account.uid if job.account is not None else None
    return Watched(
        subject=Subject(
            key=f"{job.cluster or 'slurm'}:{job.user}:{job.name}",
            name=job.name,
            user=job.user,
            uid=uid,
            cluster=job.cluster,
            max_restarts=hints.max_restarts if hints.max_restarts is not None else told.max_restarts,
        ),
        layout=NvrxLayout(cycle_info_glob=cycles, iteration_file=iteration, owner_uid=uid, work_directory=work),
        asked_job_id=job.array_job_id,
    )


def _is_enough(hints: ForeignHints) -> bool:
    has_files = hints.work_directory is not None or (
        hints.cycle_info_glob is not None and hints.iteration_file is not None
    )
    return has_files and hints.max_restarts is not None


def _given_cycles(hints: ForeignHints, here: Path) -> str | None:
    if hints.cycle_info_glob is not None:
        is_absolute = hints.cycle_info_glob.startswith("/")
        return hints.cycle_info_glob if is_absolute else f"{glob.escape(str(here))}/{hints.cycle_info_glob}"
    return cycles_below(str(here / hints.work_directory)) if hints.work_directory is not None else None


def _given_iteration(hints: ForeignHints, here: Path) -> Path | None:
    if hints.iteration_file is not None:
        return here / hints.iteration_file
    return here / hints.work_directory / NVRX_ITERATION if hints.work_directory is not None else None


def _script_cycles(told: ScriptPaths) -> str | None:
    """By the option; by the work directory only when the script does not give it, since then it would win."""
    if told.gives_cycles or told.work_directory is None:
        return told.cycle_info_glob
    return cycles_below(told.work_directory)


def _script_iteration(told: ScriptPaths) -> Path | None:
    if told.gives_iteration or told.work_directory is None:
        return _path(told.iteration_file)
    return Path(told.work_directory) / NVRX_ITERATION


def _path(text: str | None) -> Path | None:
    return Path(text) if text is not None else None


def _read_script(job: ForeignJob, read_script: ReadScript) -> ScriptPaths:
    """What the batch script tells, nothing when it cannot be read: the queue can be watched all the same."""
    path, text = _stored_script(job)
    for job_id in job.script_ids:
        kept = read_script(job_id)
        if isinstance(kept, str) and kept.startswith("#!"):
            # Slurm's own copy is the one that runs, whatever was written over the file since.
            text = kept
            break
        log.info(
            "Slurm shows no batch script job=%s answer=%s", job_id, kept.reason if isinstance(kept, Unobserved) else ""
        )
    if text is None:
        return ScriptPaths()
    facts = ScriptFacts(
        work_directory=clean(job.work_directory) or None,
        job_name=clean(job.name) or None,
        user=clean(job.user) or None,
        uid=job.account.uid if job.account is not None else None,
        home=clean(job.account.home) or None if job.account is not None else None,
        script_path=clean(path) if path is not None else None,
    )
    told = read_script_paths(text, facts)
    if isinstance(told, Unobserved):
        log.warning("the batch script tells nothing of chain %s: %s", shown(job.name), told.reason)
        return ScriptPaths()
    return told


def _stored_script(job: ForeignJob) -> tuple[str | None, str | None]:
    """The path of the script and its text, None where there is none that may be believed.

    22.05 appends the arguments to `Command=` without quotes, and a path may have blanks: the longest beginning that is
    a file is it.
    """
    if not job.command.startswith("/"):
        return None, None
    words = job.command.split(" ")
    for count in range(min(len(words), _MOST_COMMAND_WORDS), 0, -1):
        path = " ".join(words[:count])
        content = _readable(path, job.account)
        if content is not None:
            return path, content
    return words[0] if len(words) == 1 else None, None


def _readable(path: str, account: Account | None) -> str | None:
    if account is None:
        return None
    try:
        content = read_bytes(Path(os.path.realpath(path)), max_bytes=LONGEST_SCRIPT, owner_uid=account.uid)
    except ValueError:
        return None
    return content.decode("utf-8", errors="replace") if isinstance(content, bytes) and content[:2] == b"#!" else None
