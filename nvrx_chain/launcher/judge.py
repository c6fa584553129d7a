"""Whether a job goes on: asked at each restart, and, for an order from outside, looked for while it trains.

Touches: the checkpoint iteration marker and the verdict file (reads, each with a time limit), a thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.launcher.events import Ended, JobState, Opened
from nvrx_chain.launcher.outcome_file import Bounded
from nvrx_chain.launcher.progress import CheckpointIntervals, Cycle, Marker, Progress, ProgressSettings, minimum_seconds
from nvrx_chain.launcher.reasons import Reason, exit_code
from nvrx_chain.launcher.verdict import Exclusion
from nvrx_chain.records.files import read_bytes, refresh_names
from nvrx_chain.records.progress import read_iteration

log = logging.getLogger(__name__)

READ_SECONDS = 2.0
"""A marker that cannot be read in that time is unknown: a file system that hangs must not hold up a restart."""
LOOK_SECONDS = 1.0
"""How often the verdict file is looked for while the job trains: inotify does not see what other nodes write."""
MARKER_LOOK_SECONDS = 5.0
"""How often the marker is read while the job trains, to learn how often it changes."""
MAX_VERDICT_BYTES = 4096
MAX_WHY = 500

_NOBODY_FAILED = frozenset({"start", "manual"})

Post = Callable[[Reason, str], None]
"""Takes the reason and the detail of an end of the job: `Job.end`, `CoordinatorHost.end`, a mailbox."""


def parse_verdict(content: bytes) -> str:
    """Why somebody outside wants the job to end: `reason` of a JSON object, else the first line of the text."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if isinstance(found, dict):
        reason, detail = found.get("reason"), found.get("detail")
        text = ": ".join(str(part) for part in (reason, detail) if part)
    else:
        text = next(iter(content.decode(errors="replace").split("\n")), "")
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text[:MAX_WHY] or "no reason given"


class VerdictFile:
    """A file whose existence ends the job. Empty ones are looked at twice: it may be about to be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_empty = False
        self._warned = False
        self._ask = Bounded(self._read)

    def look(self) -> str | None:
        """Why the job has to end; None while there is no such file, or none that can be read as one."""
        content = self._ask.ask(READ_SECONDS)
        if isinstance(content, Unobserved):
            if not self._warned:
                log.warning("the verdict file cannot be read, the job goes on reason=%s", content.reason)
            self._warned = True
            return None
        if content is None:
            self._was_empty = False
            return None
        if not content.strip() and not self._was_empty:
            self._was_empty = True
            return None
        return f"{parse_verdict(content)} ({self._path})"

    def _read(self) -> bytes | None | Unobserved:
        refresh_names(self._path.parent)
        return read_bytes(self._path, max_bytes=MAX_VERDICT_BYTES)


class JobJudge:
    """The verdict about a job, on its host. Calls may come from any thread."""

    def __init__(
        self,
        settings: ProgressSettings,
        *,
        by: str,
        no_restart_exit_code: int,
        marker_file: Path | None = None,
        verdict_file: Path | None = None,
    ) -> None:
        """`marker_file` None: progress is not looked at. `by`: the agent id of the host."""
        self._settings = settings
        self._by = by
        self._no_restart_exit_code = no_restart_exit_code
        self._verdict_file = None if verdict_file is None else VerdictFile(verdict_file)
        self._marker_file = marker_file
        self._marker = None if marker_file is None else Bounded(lambda: read_iteration(marker_file))
        self._lock = threading.Lock()
        self._progress = Progress.begin(self._read_marker())
        self._intervals = CheckpointIntervals()
        self._filled: tuple[int, float] | None = None
        self._has_excluded = False
        self._stop = threading.Event()

    @property
    def progress(self) -> Progress:
        """How it stands."""
        return self._progress

    @property
    def observed_interval(self) -> float | None:
        """Seconds from one checkpoint to the next, as far as it was seen; None for not yet."""
        return self._intervals.interval

    def began(self, cycle: int, at: float | None = None) -> None:
        """Workers start in this cycle; `at` on the monotonic clock, None for now."""
        with self._lock:
            self._filled = cycle, time.monotonic() if at is None else at

    def watch(self, post: Post) -> None:
        """Look at the two files from now on, until an order from outside was posted, or `close`."""
        if self._verdict_file is not None or self._marker is not None:
            threading.Thread(target=self._watch, args=(post,), name="verdict", daemon=True).start()

    def close(self) -> None:
        """End the watching."""
        self._stop.set()

    def __call__(self, opened: Opened, state: JobState) -> Ended | Exclusion | None:
        """The verdict at a restart; see `Judge`."""
        order = None if self._verdict_file is None else self._verdict_file.look()
        if order is not None:
            return self._end(Reason.EXTERNAL_STOP, order)
        if self._marker is None or self._settings.max_cycles == 0:
            return None
        now = time.monotonic()
        marker = self._read_marker()
        with self._lock:
            return self._judge_progress(opened, marker, now)

    def _judge_progress(self, opened: Opened, marker: Marker, now: float) -> Ended | Exclusion | None:
        filled, self._filled = self._filled, None
        if filled is None:
            return None  # the round before was never filled: nothing ran
        agent = "" if opened.cause.kind in _NOBODY_FAILED else opened.cause.agent_id
        cycle = Cycle(number=filled[0], ran_seconds=now - filled[1], failed_agent=agent)
        self._progress = self._progress.after(cycle, marker, self._settings, self._intervals.interval)
        log.info("progress of cycle %s: %s", cycle.number, self._progress.why)
        if not self._progress.is_spent(self._settings):
            return None
        end = self._end(Reason.NO_PROGRESS, self._describe_no_progress())
        if self._has_excluded or not self._progress.failed_agents:
            return end
        self._has_excluded = True
        why = f"it failed first in cycles without progress; {self._progress.why}"
        exclusion = Exclusion(agent_ids=self._progress.failed_agents, why=why, otherwise=end)
        # Without the suspect the job gets its cycles once more, or the next failure would end it all the same.
        self._progress = Progress(baseline=self._progress.baseline, why="an array task was excluded, counted anew")
        return exclusion

    def _describe_no_progress(self) -> str:
        needed = minimum_seconds(self._settings, self._intervals.interval)
        return f"{self._progress.why}, each of {needed:g} s or more ({self._marker_file})"

    def _end(self, reason: Reason, detail: str) -> Ended:
        code = exit_code(reason, self._no_restart_exit_code)
        return Ended(reason=reason, exit_code=code, by=self._by, detail=detail, at=time.time())

    def _read_marker(self) -> Marker:
        return None if self._marker is None else self._marker.ask(READ_SECONDS)

    def _watch(self, post: Post) -> None:
        marker_at = time.monotonic()
        while not self._stop.wait(LOOK_SECONDS):
            order = None if self._verdict_file is None else self._verdict_file.look()
            if order is not None:
                post(Reason.EXTERNAL_STOP, order)
                return
            if time.monotonic() >= marker_at:
                marker_at = time.monotonic() + MARKER_LOOK_SECONDS
                self._observe_marker()

    def _observe_marker(self) -> None:
        marker = self._read_marker()
        with self._lock:
            if self._filled is not None:
                self._intervals = self._intervals.seen(self._filled[0], marker, time.monotonic())
