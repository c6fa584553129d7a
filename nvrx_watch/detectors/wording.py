"""How detectors put things: ages, lists, texts of others made safe, and the command that a person types. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from nvrx_chain.slurm.array import render_array_spec
from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.model import Subject
from nvrx_watch.plain_text import plain

LONGEST = 200
MOST_LISTED = 8


def safe(text: str, longest: int = LONGEST) -> str:
    """The text on one line, everything unprintable spelled out, and cut: it may come from anybody's file."""
    return plain(text, longest)


def count(number: int, noun: str) -> str:
    """`1 task`, `3 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(words: Iterable[object], most: int = MOST_LISTED) -> str:
    """The first words of a list, and how many more there are."""
    given = [safe(str(word)) for word in words]
    shown = ", ".join(given[:most])
    return shown if len(given) <= most else f"{shown} and {len(given) - most} more"


def specs(rows: Sequence[QueuedTask]) -> tuple[str, ...]:
    """The task specs that name exactly these rows, e.g. `11_3`. A row that stands for several tasks has none."""
    named = {row.array_task_id: row.spec for row in rows if row.array_task_id is not None}
    return tuple(named[task] for task in sorted(named))


def cancel_command(rows: Sequence[QueuedTask]) -> str:
    """What cancels exactly these tasks of one array job, by id. Empty when none of them can be named."""
    named = specs(rows)
    if len(named) <= MOST_LISTED:
        return " ".join(("scancel", *named)) if named else ""
    job = rows[0].array_job_id
    indices = render_array_spec(row.array_task_id for row in rows if row.array_task_id is not None)
    # Quoted: to a shell the brackets are a pattern.
    return f"scancel '{job}_[{indices}]'"


def chain_command(subject: Subject, verb: str) -> str:
    """An `nvrx-chain` command about this chain; empty for a chain that nvrx-chain did not submit."""
    if not subject.is_ours or subject.run_directory is None:
        return ""
    return f"nvrx-chain {verb} --run-dir {safe(shlex.quote(str(subject.run_directory)), 4096)}"


def resume_command(subject: Subject) -> str:
    """How one goes on after a final verdict: a new chain in the same directory."""
    command = chain_command(subject, "submit --resume")
    return f"{command} and the options of the first submit" if command else "submit the batch script again"
