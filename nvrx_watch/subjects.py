"""Which chains a watcher looks at, over its whole life: one that was named, or all of a user.

Touches: Slurm and run directories while a chain is resolved, the state directory when one is first seen.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.errors import NvrxError, Unobserved, UsageError
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.job_name import parse_job_name
from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.config import WatchConfig
from nvrx_watch.discovery import RESOLVE_SECONDS, Discovery
from nvrx_watch.hang_guard import HangGuard, Hangs
from nvrx_watch.resolve.watched import ForeignHints, ReadScript, Watched, find_account
from nvrx_watch.run_pass import Watch
from nvrx_watch.state_store import StateStore

log = logging.getLogger(__name__)


class Subjects:
    """The chains of one watcher. `client` None: no scheduler is asked."""

    def __init__(
        self,
        config: WatchConfig,
        client: SlurmClient | None,
        store: StateStore,
        *,
        read_script: ReadScript,
        here: Path,
        user: str,
        clock: Clock,
        resolve_seconds: float = RESOLVE_SECONDS,
    ) -> None:
        self._config = config
        self._client = client
        self._store = store
        self._read_script = read_script
        self._here = here
        self._user = user
        self._watches: dict[str, Watch] = {}
        self._said_over: set[str] = set()
        self._resolve_seconds = resolve_seconds
        self._resolving = HangGuard("finding the chain")
        self._discovery = Discovery(self._resolve_mine, clock)

    @property
    def asked_for(self) -> str:
        """What was asked for, in one word that is the same for the next run of cron. Touches nothing."""
        config = self._config
        if config.all_mine:
            return f"all-mine/{self._user}"
        if config.run_directory is not None:
            return f"run-dir/{os.path.abspath(config.run_directory)}"
        if config.jobid is not None:
            named = parse_job_name(config.jobid)
            return f"job/{named.job_id if named is not None else config.jobid}"
        return f"foreign/{config.job_name}/{config.work_directory}/{config.cycle_info_glob}"

    def resolve_named(self) -> None:
        """Find the one chain that was named. Raises NvrxError when there is none or it cannot be seen in time."""
        try:
            watched = self._resolving.run(self._find_named, self._resolve_seconds)
        except Hangs as error:
            raise Hangs(error.message, part="it was not seen", hint="does its file system answer?") from None
        self._add(watched)

    def _find_named(self) -> Watched:
        config = self._config
        hints = ForeignHints(
            work_directory=config.work_directory,
            cycle_info_glob=config.cycle_info_glob,
            iteration_file=config.iteration_file,
            job_name=config.job_name,
            user=config.user,
            max_restarts=config.max_restarts,
        )
        if config.run_directory is not None:
            from nvrx_watch.resolve.by_directory import resolve_run_directory

            return resolve_run_directory(config.run_directory)
        if config.jobid is not None and self._client is not None:
            from nvrx_watch.resolve.by_job import resolve_job

            return resolve_job(config.jobid, self._client, hints, read_script=self._read_script, here=self._here)
        from nvrx_watch.resolve.foreign import ForeignJob, watch_foreign

        # No job is named, so there is no script to read: what the user says is all there is.
        if config.work_directory is not None and not config.work_directory.is_dir():
            raise UsageError(f"reading {config.work_directory}: there is no such directory", part="--work-dir")
        place = config.work_directory or Path(config.cycle_info_glob or "")
        job = ForeignJob(
            array_job_id=None,
            name=config.job_name or place.name,
            user=self._user,
            account=find_account(self._user),
            cluster=None,
            work_directory=str(self._here),
            command="",
            script_ids=(),
        )
        return watch_foreign(job, hints, self._read_script, self._here)

    def read_queue(self) -> QueueReading | Unobserved | None:
        """With --all-mine the queue of the user, which the pass then uses too; None when a pass reads its own."""
        if not self._config.all_mine or self._client is None:
            return None
        return self._client.queue(self._user)

    def watches(self, reading: QueueReading | Unobserved | None) -> list[Watch]:
        """The chains of this pass. New chains in `reading`, just ended ones too, are kept until they are over."""
        if isinstance(reading, QueueReading):
            self._discover(reading)
        return list(self._watches.values())

    def follow(self, key: str, successor: str) -> None:
        """The run directory of a chain holds `successor` now: go on with that one where the directory was asked for.

        A job id names one chain, and with --all-mine the queue shows the new one by itself.
        """
        watch = self._watches[key]
        if self._config.all_mine or any(one.subject.chain_id == successor for one in self._watches.values()):
            watch.is_followed = True
        elif self._config.run_directory is not None:
            try:
                self.resolve_named()
            except NvrxError as error:
                log.warning(
                    "the new chain of a run directory is not watched yet chain_id=%s error=%s", successor, error
                )
                return
            watch.is_followed = any(one.subject.chain_id == successor for one in self._watches.values())
        elif key not in self._said_over:
            self._said_over.add(key)
            log.warning("a chain is over, its run directory holds another one chain=%s now=%s", key, successor)

    def leave(self, key: str) -> Watch:
        """Let go of a chain, which is not looked at again unless a live job of it is seen."""
        watch = self._watches.pop(key)
        if watch.subject.chain_id is not None:
            self._discovery.leave(watch.subject.chain_id)
        return watch

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why a chain of the queue is not watched, by chain id (--all-mine only)."""
        return self._discovery.unwatched

    def _discover(self, reading: QueueReading) -> None:
        from nvrx_watch.resolve.all_mine import find_mine

        for watched in self._discovery.find(find_mine(reading, self._user, self._watches)):
            self._add(watched)

    def _resolve_mine(self, array_job_id: int) -> Watched:
        from nvrx_watch.resolve.by_job import resolve_job

        assert self._client is not None
        return resolve_job(
            str(array_job_id), self._client, ForeignHints(), read_script=self._read_script, here=self._here
        )

    def _add(self, watched: Watched) -> None:
        memory, history, notes = self._store.load(watched.subject.key)
        for note in notes:
            log.warning("%s", note)
        self._watches[watched.subject.key] = Watch(
            subject=watched.subject,
            layout=watched.layout,
            asked_job_id=watched.asked_job_id,
            memory=memory,
            history=history,
        )


def uid_of(user: str) -> int | None:
    """The id of a user; None for one that this machine does not know."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
