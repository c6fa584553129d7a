"""The Slurm client that reads through PySlurm, in a child process, and changes things through Slurm's programs.

What goes to the programs, and why:
- sbatch: PySlurm takes no command line, and the dry run shows ours;
- the configuration, limits of associations and QOS: never recorded, asked once in a submit;
- exclude: `scontrol update`, for which there is no object;
- scancel, hold, release: `pyslurm.Job(id).cancel()` ends the whole array, running tasks too, and takes no task;
- the harmless signal to one task, and the batch script: no object for the one, never recorded for the other;
- partitions: never recorded, asked once in a submit;
- `show job` of what waits: PySlurm says that nothing is a singleton, and shows no excluded nodes.

Touches: Slurm through a child process and through the client for the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command import DEFAULT_TIMEOUT_SECONDS
from nvrx_chain.slurm.model import (
    AccountedTask,
    ClusterConfig,
    JobDetail,
    Node,
    Partition,
    QueueReading,
    SubmitLimits,
    Submitted,
)
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_chain.slurm.parse.replies import is_job_gone, one_line
from nvrx_chain.slurm.pyslurm_cluster import convert_accounting, convert_nodes
from nvrx_chain.slurm.pyslurm_jobs import NOT_SHOWN, convert_details, convert_queue
from nvrx_chain.slurm.pyslurm_worker import Answer, Question

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_SUBMIT_TIME_SLACK = timedelta(seconds=2)


class Asks(Protocol):
    """What a PySlurmProcess does."""

    def ask(self, question: Question) -> Answer | Unobserved:
        """The answer, else why there is none."""
        ...

    def close(self) -> None:
        """End what was started to answer."""
        ...


class PySlurmClient(SlurmClient):
    """Asks Slurm through PySlurm; the contract is in nvrx_chain/slurm/client.py. `commands` does the rest."""

    def __init__(
        self,
        *,
        clock: Clock,
        process: Asks,
        commands: SlurmClient,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._clock = clock
        self._process = process
        self._commands = commands
        self._timeout_seconds = timeout_seconds

    def close(self) -> None:
        """End the child process now. It also ends with this process."""
        self._process.close()

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        records = self._records("jobs", user=user)
        if isinstance(records, Unobserved):
            return records
        converted = convert_queue(records)
        if converted.junk and not converted.tasks:
            return _unreadable(converted.junk)
        _report_junk(converted.junk)
        # Records of which nobody can say whose they are come along.
        tasks = tuple(task for task in converted.tasks if user in (None, task.user))
        return QueueReading(tasks=tasks, read_at=self._clock.now(), unparsed=converted.junk)

    def accounting(self, array_job_ids: Sequence[int], since: datetime) -> tuple[AccountedTask, ...] | Unobserved:
        if not array_job_ids:
            return ()
        records = self._records("accounting", ids=tuple(array_job_ids))
        if isinstance(records, Unobserved):
            return self._without_accounting(records)
        converted = convert_accounting(records)
        if converted.junk and not converted.tasks:
            return _unreadable(converted.junk)
        _report_junk(converted.junk)
        wanted, earliest = set(array_job_ids), since - _SUBMIT_TIME_SLACK
        return tuple(
            task
            for task in converted.tasks
            if task.array_job_id in wanted and (task.submitted_at is None or task.submitted_at >= earliest)
        )

    def _without_accounting(self, unobserved: Unobserved) -> Unobserved:
        """A site without accounting is told from a database that does not answer: PySlurm has one error for both."""
        config = self.config()
        if isinstance(config, Unobserved) or config.accounting:
            return unobserved
        return Unobserved(f"Slurm accounting storage is disabled; {unobserved.reason}")

    def show_job(self, job_id: int) -> tuple[JobDetail, ...] | Unobserved | None:
        answer = self._ask("job", ids=(job_id,))
        if isinstance(answer, Answer) and answer.error is not None and is_job_gone(answer.error):
            return None
        records = _records_of(answer)
        details = records if isinstance(records, Unobserved) else _converted(convert_details, records)
        if isinstance(details, Unobserved):
            return details
        asked = tuple(detail for detail in details if job_id in (detail.job_id, detail.array_job_id))
        if len({detail.user for detail in asked}) != 1:
            return Unobserved(f"PySlurm did not show one owner's records for job {job_id}")
        if any(NOT_SHOWN in detail.dependency for detail in asked):
            return self._commands.show_job(job_id)
        if any(detail.state.is_pending for detail in asked):
            told = self._commands.show_job(job_id)
            # Without the excluded nodes it is still the job.
            return asked if isinstance(told, Unobserved) else told
        return asked

    def batch_script(self, job_id: int) -> str | Unobserved | None:
        return self._commands.batch_script(job_id)

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        try:
            # What is no name would name other nodes to sinfo, and none here.
            fold_nodes(names)
        except ValueError as error:
            return Unobserved(str(error))
        records = self._records("nodes")
        if isinstance(records, Unobserved):
            return records
        converted = convert_nodes(records)
        if converted.junk and not converted.nodes:
            return _unreadable(converted.junk)
        _report_junk(converted.junk)
        return {name: converted.nodes[name] for name in names or converted.nodes if name in converted.nodes}

    def config(self) -> ClusterConfig | Unobserved:
        return self._commands.config()

    def partitions(self) -> tuple[Partition, ...] | Unobserved:
        return self._commands.partitions()

    def submit(self, argv: Sequence[str]) -> Submitted:
        return self._commands.submit(argv)

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        self._commands.cancel(specs, pending_only=pending_only)

    def nudge(self, spec: str) -> None:
        self._commands.nudge(spec)

    def hold(self, specs: Sequence[str]) -> None:
        self._commands.hold(specs)

    def submit_limits(self, user: str) -> SubmitLimits | Unobserved:
        return self._commands.submit_limits(user)

    def exclude(self, spec: str, nodes: Sequence[str]) -> None:
        self._commands.exclude(spec, nodes)

    def release(self, specs: Sequence[str]) -> None:
        self._commands.release(specs)

    def _ask(self, what: str, *, user: str | None = None, ids: tuple[int, ...] = ()) -> Answer | Unobserved:
        return self._process.ask(Question(ask=what, seconds=self._timeout_seconds, user=user, ids=ids))

    def _records(
        self, what: str, *, user: str | None = None, ids: tuple[int, ...] = ()
    ) -> Sequence[object] | Unobserved:
        return _records_of(self._ask(what, user=user, ids=ids))


def _records_of(answer: Answer | Unobserved) -> Sequence[object] | Unobserved:
    if isinstance(answer, Unobserved):
        return answer
    if answer.error is not None:
        return Unobserved(f"PySlurm failed: {one_line(answer.error)}")
    return answer.records


def _converted(convert: Callable[[Sequence[object]], _T], records: Sequence[object]) -> _T | Unobserved:
    try:
        return convert(records)
    except ValueError as error:
        return Unobserved(str(error))


def _unreadable(junk: Sequence[str]) -> Unobserved:
    return Unobserved(f"PySlurm showed {len(junk)} records and none that can be read: {one_line(junk[0], 120)}")


def _report_junk(junk: Sequence[str]) -> None:
    if junk:
        log.warning("PySlurm's records that cannot be read count=%s first=%r", len(junk), junk[0][:120])
