"""The parts of a watcher, built from its settings: the only place that makes real clients, readers and sinks.

What a pass may do without is imported when it is needed: a cron job starts anew for each pass.

Touches: the environment, the state directory; and what the parts touch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.user import user_name
from nvrx_watch.config import WatchConfig
from nvrx_watch.discovery import RESOLVE_SECONDS
from nvrx_watch.gather import LEAST_FILE_SECONDS, Gatherer
from nvrx_watch.layout import OwnLayout
from nvrx_watch.leaving import Leaving
from nvrx_watch.memory import remembered_jobs
from nvrx_watch.reading.worker import RunReader
from nvrx_watch.run_pass import Outlets, PassParts, PassResult, Watch, run_pass
from nvrx_watch.sinks.chain_metrics import ChainMetrics
from nvrx_watch.slurm_facts import MOST_CALLS, SlurmFacts
from nvrx_watch.state_store import StateStore
from nvrx_watch.subjects import Subjects, uid_of

if TYPE_CHECKING:
    from nvrx_chain.slurm.client import SlurmClient
    from nvrx_watch.acting.desk import ActionDesk

log = logging.getLogger(__name__)

FILE_DEADLINE_SECONDS = 20.0
FILE_BUDGET_SECONDS = 60.0
SLURM_SECONDS = 25.0
SINK_SECONDS = 30.0
ACTION_SECONDS = 300.0
SETTLE_SECONDS = 60.0
"""How much of its memory a daemon may lose when it is killed."""

_MANY_CHAINS = 100
_SLURM_CALLS = 1 + MOST_CALLS + 1
_LONGEST_ACTION_SECONDS = 300.0
_SAVING_SECONDS = 20.0

PASS_DEADLINE_SECONDS = (
    RESOLVE_SECONDS
    + FILE_BUDGET_SECONDS
    + _MANY_CHAINS * LEAST_FILE_SECONDS
    + _SLURM_CALLS * SLURM_SECONDS
    + ACTION_SECONDS
    + _LONGEST_ACTION_SECONDS
    + SINK_SECONDS
    + _SAVING_SECONDS
)
"""Every part of a pass has a budget for all chains together; a pass that takes longer than all of them hangs."""

_CYCLE_CACHE = "cycles"
_ACTION_LOG = "actions.jsonl"


class Watcher:
    """One `nvrx-watch`. A context manager: leaving it ends its child process and its servers."""

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self.clock = SystemClock()
        self._uid = os.geteuid()
        self.user = config.user or user_name(self._uid)
        self.sees_queue = True
        self.why_blind = ""
        # First of all: the reader forks, and that is only safe while there is one thread.
        self._reader = RunReader(
            cache_directory=config.state_directory / _CYCLE_CACHE, iteration_pattern=config.iteration_pattern
        )
        self._reader.start()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._reader.close)
        try:
            client = self._client if config.asks_slurm else None
        except NvrxError:
            self._closing.close()
            raise
        # A daemon's memory is in the process; the disk is for its successor and need not be written each pass.
        stays = config.interval_seconds is not None
        self._store = StateStore(config.state_directory, settle_seconds=SETTLE_SECONDS if stays else 0.0)
        self._closing.callback(self._flush)
        self._subjects = Subjects(
            config,
            client,
            self._store,
            read_script=self._read_script,
            here=_here(),
            user=self.user,
            clock=self.clock,
        )
        self._leaving = Leaving(self.clock, dry_seconds=config.leave_after_seconds, disabled=config.disabled)
        self._parts = PassParts(
            gatherer=Gatherer(
                reader=self._reader,
                facts=SlurmFacts(client) if client is not None else None,
                clock=self.clock,
                watcher_uid=self._uid,
                file_deadline_seconds=FILE_DEADLINE_SECONDS,
                file_budget_seconds=FILE_BUDGET_SECONDS,
            ),
            make_desk=lambda: self._desk,
            outlets=self._outlets(),
            store=self._store,
            clock=self.clock,
            thresholds=config.thresholds,
            disabled=config.disabled,
            action_seconds=ACTION_SECONDS,
        )

    @functools.cached_property
    def _client(self) -> SlurmClient:
        from nvrx_chain.slurm.choose import make_client

        kind = self._config.slurm_client
        return make_client(kind, clock=self.clock, environ=os.environ, timeout_seconds=SLURM_SECONDS)

    def _read_script(self, array_job_id: int) -> str | Unobserved | None:
        return self._client.batch_script(array_job_id)

    @functools.cached_property
    def _desk(self) -> ActionDesk:
        from nvrx_watch.acting.chain_command import run_command
        from nvrx_watch.acting.desk import ActionDesk
        from nvrx_watch.action_model import Rights

        config = self._config
        return ActionDesk(
            client=self._client,
            clock=self.clock,
            rights=Rights(
                user=user_name(self._uid),
                uid=self._uid,
                act=config.act,
                allowed=config.allowed,
                as_operator=config.as_operator,
                dry_run=config.dry_run,
            ),
            run_command=run_command,
            host=os.uname().nodename,
            action_log=config.state_directory / _ACTION_LOG,
            keep_queued=config.thresholds.keep_queued,
        )

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def resolve(self) -> None:
        """Find the chain that was named, before the first pass. Raises NvrxError."""
        if not self._config.all_mine:
            self._subjects.resolve_named()

    def run_pass(self) -> tuple[PassResult, ...]:
        """One pass over every chain."""
        reading = self._subjects.read_queue()
        others = self._uid not in (0, uid_of(self.user))
        # Somebody else's empty queue may be one that this user is not shown.
        self.sees_queue = isinstance(reading, QueueReading) and (bool(reading.tasks) or not others)
        self.why_blind = (
            f"the queue could not be read: {reading.reason}"
            if isinstance(reading, Unobserved)
            else f"no job of {self.user} is shown to this user: there is none, or they are private"
        )
        watches = self._subjects.watches(reading)
        results = run_pass(self._parts, watches, reading, sees_all=not self.unwatched)
        for result in results:
            key, successor = result.snapshot.subject.key, result.snapshot.successor
            # A chain that another one follows stays until the sinks have taken the end of what was found of it.
            if result.is_followed and not result.history.refusals:
                self._let_go(key)
            elif successor is not None:
                self._subjects.follow(key, successor)
            elif self._config.all_mine and self._leaving.may_leave(result):
                self._let_go(key)
        return results

    def _let_go(self, key: str) -> None:
        """Forget a chain wherever something is kept of it. SlurmFacts does so by itself, with each pass."""
        log.info("a chain is over and is no longer watched chain=%s", key)
        self._reader.forget(self._subjects.leave(key).layout)
        for note in self._store.forget(key):
            log.warning("%s", note)

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Why a chain that should be watched is not, by chain id: such a pass is degraded."""
        return self._subjects.unwatched

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Whether no other single pass is at work on the same: runs of cron must not pile up. Finds the chain as well.

        First by what was asked for, since finding the chain may hang; then by the chain, which may be asked for in
        several ways.
        """
        with contextlib.ExitStack() as held:
            is_free = self._lock(self._subjects.asked_for, held)
            if is_free and not self._config.all_mine:
                self.resolve()
                is_free = self._lock(self._subjects.watches(None)[0].subject.key, held)
            yield is_free

    def _lock(self, key: str, held: contextlib.ExitStack) -> bool:
        lock = self._store.try_lock(key)
        if lock is None:
            return False
        if lock.note:
            log.warning("%s", lock.note)
        held.enter_context(lock)
        return True

    def _flush(self) -> None:
        for note in self._store.flush():
            log.warning("%s", note)

    def directories(self) -> Sequence[Path]:
        """Where a change is worth a pass at once: control and cycle records of each chain's newest generations."""
        found: list[Path] = []
        for watch in self._subjects.watches(None):
            if isinstance(watch.layout, OwnLayout):
                found += _busy_directories(watch)
        return found

    def _outlets(self) -> Outlets:
        sinks = self._config.sinks
        # A single pass prints its findings; a log of the same beside them would say everything twice.
        logs = self._config.interval_seconds is not None
        if not (logs or sinks.heartbeat_url or sinks.pd_routing_key or sinks.webhook_url or sinks.notify):
            return Outlets(metrics=self._metrics(), deadline_seconds=SINK_SECONDS)
        from nvrx_watch.sinks.build import build_heartbeat, build_sinks

        ping: Callable[[], None] | None = None
        if sinks.heartbeat_url:
            heartbeat = build_heartbeat(sinks.heartbeat_url)
            ping = heartbeat.ping
        return Outlets(
            sinks=build_sinks(
                pd_routing_key=sinks.pd_routing_key,
                pd_url=sinks.pd_url,
                webhook_url=sinks.webhook_url,
                notify=sinks.notify,
                cooldown_seconds=sinks.alert_cooldown_seconds,
                with_log=logs,
            ),
            ping=ping,
            metrics=self._metrics(),
            deadline_seconds=SINK_SECONDS,
        )

    def _metrics(self) -> list[Callable[[Sequence[ChainMetrics]], None]]:
        found: list[Callable[[Sequence[ChainMetrics]], None]] = []
        sinks = self._config.sinks
        if sinks.metrics_port is None and sinks.textfile_directory is None:
            return found
        from nvrx_watch.sinks.prometheus import MetricsServer, Textfile, textfile_name

        if sinks.metrics_port is not None:
            server = MetricsServer(sinks.metrics_port, sinks.metrics_address)
            self._closing.callback(server.close)
            log.warning("serving /metrics address=%s port=%s", sinks.metrics_address, server.port)
            found.append(server.publish)
        if sinks.textfile_directory is not None:
            # One file per watcher: two that share it would take turns.
            named = self._config.jobid or str(self._config.run_directory or self._config.job_name or self.user)
            found.append(Textfile(sinks.textfile_directory, textfile_name(named)).publish)
        return found


def _here() -> Path:
    """Where the user is. A directory that was removed since (a job's scratch) must not keep a named chain from view."""
    try:
        return Path.cwd()
    except OSError as error:
        log.warning("the current directory is not known, / is taken for it error=%s", error)
        return Path("/")


def _busy_directories(watch: Watch) -> list[Path]:
    layout = watch.layout
    assert isinstance(layout, OwnLayout)
    found = [layout.run_directory, layout.run_directory / "submissions", layout.run_directory / "generations"]
    for job in sorted(remembered_jobs(watch.memory))[-2:]:
        below = layout.run_directory / "generations" / str(job)
        found += [below / "control", below / "cycle_infos"]
    return found
