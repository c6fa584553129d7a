"""Everything that one pass asks Slurm, for all chains together: one squeue, one sacct, one sinfo. Touches: Slurm.

How many calls a pass makes does not depend on the number of chains, generations or tasks. A site without accounting
costs one scontrol in sacct's place, which knows what ended within MinJobAge.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import AccountedTask, JobDetail, Node, QueueReading
from nvrx_watch.model import Unavailable

log = logging.getLogger(__name__)

_NEVER_AVAILABLE = ("accounting storage is disabled", "accounting_storage/none")
# Ids in one sacct: a chain's newest generations decide, and slurmdbd pays for every id.
MOST_ACCOUNTED = 200
MOST_CALLS = 3
"""So many sacct (or scontrol in its place) in a pass; the usual pass needs one at most."""
_FROM_THE_BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by array job. `unavailable`: the site has no accounting, and the rows are scontrol's."""

    rows: Mapping[int, tuple[AccountedTask, ...]] = msgspec.field(default_factory=dict)
    unavailable: str | None = None


class SlurmFacts:
    """Asks Slurm for a pass, and remembers over the passes what can no longer change."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._settled: dict[int, tuple[AccountedTask, ...]] = {}
        self._no_accounting: str | None = None

    def queue(self, users: frozenset[str]) -> QueueReading | Unobserved:
        """One squeue: of the one user whose chains are watched, else of everybody."""
        return self._client.queue(next(iter(users)) if len(users) == 1 else None)

    def accounting(
        self, array_job_ids: Sequence[int], *, live: frozenset[int] = frozenset()
    ) -> Accounting | Unobserved:
        """What became of these array jobs, the newest last. At most one sacct, none for what is settled.

        `live` are array jobs of which the queue shows a task that has not ended: these never settle.
        """
        wanted = list(array_job_ids)[-MOST_ACCOUNTED:]
        open_ids = [job for job in wanted if job not in self._settled]
        known = {job: self._settled[job] for job in wanted if job in self._settled}
        if not open_ids:
            return Accounting(rows=known, unavailable=self._no_accounting)
        if self._no_accounting is not None:
            return self._from_scontrol(open_ids[-1], known)
        answer = self._client.accounting(open_ids, _FROM_THE_BEGINNING)
        if isinstance(answer, Unobserved):
            if any(text in answer.reason.lower() for text in _NEVER_AVAILABLE):
                self._no_accounting = answer.reason
                log.info("this site has no accounting; scontrol and the run directory take its place")
                return self._from_scontrol(open_ids[-1], known)
            return answer
        return Accounting(rows=known | self._sort(answer, live))

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        """The named nodes; no call for none."""
        return self._client.nodes(names) if names else {}

    def forget_all_but(self, array_job_ids: frozenset[int]) -> None:
        """Drop what is settled of jobs that nobody watches any more."""
        self._settled = {job: rows for job, rows in self._settled.items() if job in array_job_ids}

    def _sort(self, answer: Sequence[AccountedTask], live: frozenset[int]) -> dict[int, tuple[AccountedTask, ...]]:
        rows: dict[int, list[AccountedTask]] = {}
        for task in answer:
            rows.setdefault(task.array_job_id, []).append(task)
        for job, tasks in rows.items():
            # An end without a time is an end that is still being written.
            if job not in live and all(task.state.is_terminal and task.ended_at is not None for task in tasks):
                self._settled[job] = tuple(tasks)
        return {job: tuple(tasks) for job, tasks in rows.items()}

    def _from_scontrol(self, job: int, known: Mapping[int, tuple[AccountedTask, ...]]) -> Accounting | Unobserved:
        details = self._client.show_job(job)
        if isinstance(details, Unobserved):
            return details
        rows = {job: tuple(_as_accounted(one) for one in details if one.array_job_id == job)} if details else {}
        return Accounting(rows=dict(known) | rows, unavailable=self._no_accounting)


def unavailable_or_unobserved(accounting: Accounting | Unobserved) -> Unobserved | None:
    """Why sacct did not answer: `Unavailable` on a site that has none, None when it did."""
    if isinstance(accounting, Unobserved):
        return accounting
    return Unavailable(accounting.unavailable) if accounting.unavailable is not None else None


def _as_accounted(detail: JobDetail) -> AccountedTask:
    """A record of scontrol in sacct's shape. The exit code of an ended task is true here: scontrol cuts no bit off."""
    ended = detail.state.is_terminal
    return AccountedTask(
        job_id=detail.job_id,
        array_job_id=detail.array_job_id,
        array_task_id=detail.array_task_id,
        state=detail.state,
        raw_state=detail.state.value,
        cancelled_by=None,
        exit_code=detail.exit_code if ended else None,
        exit_signal=detail.exit_signal if ended else None,
        step_exit_codes=(),
        submitted_at=detail.submitted_at,
        started_at=detail.started_at,
        ended_at=detail.ended_at if ended else None,
        nodelist=detail.nodelist,
        user=detail.user,
        name=detail.name,
    )
