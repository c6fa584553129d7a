"""Everything that one pass asks Slurm, for all chains together: one squeue, one sacct, one sinfo. Touches: Slurm.

Only where more ids are open than one sacct takes are there up to three. A site without accounting costs a scontrol in
sacct's place, which knows what ended within MinJobAge: one for each chain, and no more than three in a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone

import msgspec
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import AccountedTask, JobDetail, Node, QueueReading
from nvrx_watch.model import Unavailable

log = logging.getLogger(__name__)

_NEVER_AVAILABLE = ("accounting storage is disabled", "accounting_storage/none")
MOST_ACCOUNTED = 200
"""Ids in one sacct: slurmdbd pays for every id."""
MOST_CALLS = 3
"""So many sacct (or scontrol in its place) in a pass; the usual pass needs one at most."""
_FROM_THE_BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by array job. `unavailable`: the site has no accounting, and the rows are scontrol's.

    `left_out`: array jobs that were not asked about in this pass, so that to have no rows says nothing.
    """

    rows: Mapping[int, tuple[AccountedTask, ...]] = msgspec.field(default_factory=dict)
    unavailable: str | None = None
    left_out: frozenset[int] = frozenset()


class SlurmFacts:
    """Asks Slurm for a pass, and remembers over the passes what can no longer change."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._settled: dict[int, tuple[AccountedTask, ...]] = {}
        self._no_accounting: str | None = None
        self._questions = 0
        self._shown_at: dict[int, int] = {}
        self._ended: dict[int, tuple[AccountedTask, ...]] = {}

    def queue(self, users: frozenset[str]) -> QueueReading | Unobserved:
        """One squeue: of the one user whose chains are watched, else of everybody."""
        return self._client.queue(next(iter(users)) if len(users) == 1 else None)

    def accounting(
        self, by_chain: Sequence[Sequence[int]], *, live: frozenset[int] = frozenset()
    ) -> Accounting | Unobserved:
        """What became of these array jobs, for each chain the newest last. No question for what is settled.

        `live` are array jobs of which the queue shows a task that has not ended: these never settle.
        """
        wanted = sorted({job for jobs in by_chain for job in jobs})
        open_ids = [job for job in wanted if job not in self._settled]
        known = {job: self._settled[job] for job in wanted if job in self._settled}
        if not open_ids:
            return Accounting(rows=known, unavailable=self._no_accounting)
        if self._no_accounting is None:
            answer = self._from_sacct(open_ids, live)
            if isinstance(answer, Accounting):
                return replace(answer, rows={**known, **answer.rows})
            if not any(text in answer.reason.lower() for text in _NEVER_AVAILABLE):
                return answer
            self._no_accounting = answer.reason
            log.info("this site has no accounting; scontrol and the run directory take its place")
        per_chain = [[job for job in jobs if job not in self._settled] for jobs in by_chain]
        return self._from_scontrol({jobs[-1] for jobs in per_chain if jobs}, known)

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        """The named nodes; no call for none."""
        return self._client.nodes(names) if names else {}

    def forget_all_but(self, array_job_ids: frozenset[int]) -> None:
        """Drop what is settled of jobs that nobody watches any more."""
        self._settled = {job: rows for job, rows in self._settled.items() if job in array_job_ids}
        self._ended = {job: rows for job, rows in self._ended.items() if job in array_job_ids}
        self._shown_at = {job: at for job, at in self._shown_at.items() if job in array_job_ids}

    def _sort(self, answer: Sequence[AccountedTask], live: frozenset[int]) -> dict[int, tuple[AccountedTask, ...]]:
        rows: dict[int, list[AccountedTask]] = {}
        for task in answer:
            rows.setdefault(task.array_job_id, []).append(task)
        for job, tasks in rows.items():
            # An end without a time is an end that is still being written.
            if job not in live and all(task.state.is_terminal and task.ended_at is not None for task in tasks):
                self._settled[job] = tuple(tasks)
        return {job: tuple(tasks) for job, tasks in rows.items()}

    def _from_sacct(self, open_ids: Sequence[int], live: frozenset[int]) -> Accounting | Unobserved:
        """The newest first: they decide. What is left out is asked for when others have settled."""
        rows: dict[int, tuple[AccountedTask, ...]] = {}
        left = list(open_ids)
        for _ in range(MOST_CALLS):
            chunk, left = left[-MOST_ACCOUNTED:], left[:-MOST_ACCOUNTED]
            answer = self._client.accounting(chunk, _FROM_THE_BEGINNING)
            if isinstance(answer, Unobserved):
                return answer
            rows |= self._sort(answer, live)
            if not left:
                break
        return Accounting(rows=rows, left_out=frozenset(left))

    def _from_scontrol(
        self, newest: Collection[int], known: Mapping[int, tuple[AccountedTask, ...]]
    ) -> Accounting | Unobserved:
        """The newest open job of each chain, those first that have waited longest. An end that was seen stays true."""
        rows = dict(known)
        for job in sorted(newest, key=lambda job: (self._shown_at.get(job, 0), -job))[:MOST_CALLS]:
            details = self._client.show_job(job)
            if isinstance(details, Unobserved):
                return details
            self._questions += 1
            self._shown_at[job] = self._questions
            shown = tuple(_as_accounted(one) for one in details or () if one.array_job_id == job)
            if shown:
                rows[job] = shown
                self._ended[job] = tuple(task for task in shown if task.state.is_terminal)
        for job in newest:
            if job not in rows and self._ended.get(job):
                rows[job] = self._ended[job]
        left_out = frozenset(job for job in newest if job not in self._shown_at)
        return Accounting(rows=rows, unavailable=self._no_accounting, left_out=left_out)


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
