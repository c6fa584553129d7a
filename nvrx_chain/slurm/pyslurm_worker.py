"""The child process that asks Slurm through PySlurm, the only place that imports it: one JSON line in, one line out.

libslurm ends the process that it is in when it cannot read its configuration, also while it is imported, and blocks
for 10 s and more. So none of that happens in a watcher or an operator's command: pyslurm_process.py starts this one,
waits with a deadline, and takes its end for "could not look". An error that is not foreseen here ends it, too.

Touches: Slurm through libslurm, the user database, standard input, output and error.
"""

from __future__ import annotations

import math
import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import msgspec

from nvrx_chain.slurm.pyslurm_fields import (
    ACCOUNTED_FIELDS,
    JOB_FIELDS,
    NODE_FIELDS,
    STEP_FIELDS,
    user_of,
)

# What PySlurm raises for a value of one object that it cannot compute: that costs the value, not all objects.
_NO_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`ask`: jobs (of `user`, None: of everybody), job (`ids`: one), nodes, accounting (`ids`: array jobs)."""

    ask: str
    seconds: float
    user: str | None = None
    ids: tuple[int, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What PySlurm said: records, or the text of its error. The first one, unasked, is its version."""

    records: list[Any] = msgspec.field(default_factory=list)
    error: str | None = None
    version: str = ""


def main() -> None:
    """Serve until standard input ends."""
    replies = _keep_output()
    try:
        import pyslurm
    except ImportError as error:
        _send(replies, Answer(error=f"{error}"))
        return
    _send(replies, Answer(version=str(getattr(pyslurm, "__version__", ""))))
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=Question)
        # The watcher may be gone before libslurm comes back: then nobody else ends this process.
        signal.alarm(math.ceil(question.seconds) + 1)
        _send(replies, answer(pyslurm, question))
        signal.alarm(0)


def _keep_output() -> BinaryIO:
    """The pipe for answers. What libslurm prints goes to standard error, which is read as the reason of an end."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _send(replies: BinaryIO, reply: Answer) -> None:
    replies.write(msgspec.json.encode(reply, enc_hook=str) + b"\n")
    replies.flush()


def answer(pyslurm: Any, question: Question) -> Answer:
    """Ask the module that was handed in."""
    try:
        return Answer(records=_QUESTIONS[question.ask](pyslurm, question))
    except pyslurm.RPCError as error:
        return Answer(error=str(error) or type(error).__name__)


def _jobs(pyslurm: Any, question: Question) -> list[Any]:
    names: dict[object, str] = {}
    jobs = pyslurm.Jobs.load().values()
    return [read(job, JOB_FIELDS) for job in jobs if question.user is None or _is_of(job, question.user, names)]


def _is_of(job: Any, user: str, names: dict[object, str]) -> bool:
    """Whether the job is this user's, or nobody can say whose. Each user is looked up once: directories are slow."""
    number = read(job, ("user_id",)).get("user_id")
    if number not in names:
        names[number] = user_of(read(job, ("user_id", "user_name")))
    return names[number] in (user, "")


def _job(pyslurm: Any, question: Question) -> list[Any]:
    """All records of a job or array job. PySlurm's own question for one job shows one record of an array."""
    (wanted,) = question.ids
    found = [job for job in pyslurm.Jobs.load().values() if wanted in read(job, ("id", "array_id")).values()]
    # That a job is not listed is no proof: Slurm itself has to say that it knows none.
    return [read(job, JOB_FIELDS) for job in found or [pyslurm.Job.load(wanted)]]


def _nodes(pyslurm: Any, _question: Question) -> list[Any]:
    return [read(node, NODE_FIELDS) for node in pyslurm.Nodes.load().values()]


def _accounting(pyslurm: Any, question: Question) -> list[Any]:
    # No start time: a generation that was cancelled while it waited is found by its id and by no window.
    asked = pyslurm.db.JobFilter(ids=list(question.ids))
    return [_accounted(job) for job in pyslurm.db.Jobs.load(asked)]


def _accounted(job: Any) -> dict[str, Any]:
    record = read(job, ACCOUNTED_FIELDS)
    record["cancelled_by"] = _uid(record.get("cancelled_by"))
    steps = read(job, ("steps",)).get("steps")
    record["steps"] = [read(step, STEP_FIELDS) for step in (steps.values() if isinstance(steps, dict) else ())]
    return record


def _uid(name: object) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid if isinstance(name, str) else None
    except KeyError:
        return None


def read(item: Any, fields: Iterable[str]) -> dict[str, Any]:
    """The attributes that can be computed, as JSON can carry them."""
    record: dict[str, Any] = {}
    for field in fields:
        try:
            value = getattr(item, field)
        except _NO_VALUE:
            continue
        # Text in another encoding than UTF-8 must not end the answer.
        record[field] = value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
    return record


_QUESTIONS: dict[str, Callable[[Any, Question], list[Any]]] = {
    "jobs": _jobs,
    "job": _job,
    "nodes": _nodes,
    "accounting": _accounting,
}
