"""The watcher's own eyes: what it could not see, whose clocks it cannot trust, where nothing can be written. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from nvrx_chain.clock import parse_time, render_age
from nvrx_chain.errors import Unobserved
from nvrx_watch.detectors.cycle_facts import cycles_of
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict, has_seen_jobs
from nvrx_watch.detectors.wording import count, safe
from nvrx_watch.memory import QUEUE_EMPTY_NAME
from nvrx_watch.model import Finding, Generation, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_MOST_NOTES = 10
_NEWEST_CYCLES = 3
_MANY_UNREADABLE = 10
"""So many cycle records that cannot be read are no accident of one writer."""


def find_observer(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """What this pass could not see, one finding per source, and what the site does not have."""
    for source, reason in snapshot.sources.unobserved.items():
        yield _blind(snapshot, thresholds, source, reason)
    if snapshot.sources.unavailable:
        yield _reduced(snapshot)
    if _cannot_see(snapshot):
        user = safe(snapshot.subject.user)
        yield _about_sight(
            Severity.WARNING,
            "jobs",
            f"cannot see the jobs of {user}: they may be private",
            (),
            f"run the watcher as {user} or as an operator, or ask for PrivateData without jobs; until then an empty"
            " queue says nothing",
        )
    yield from _skipped_files(snapshot)


def _blind(snapshot: Snapshot, thresholds: WatchThresholds, source: Source, reason: str) -> Finding:
    lasting = _blind_seconds(snapshot) if source is Source.QUEUE else 0.0
    critical = lasting >= thresholds.queue_blind
    since = f" for {render_age(lasting)}" if lasting > 0 else ""
    return _about_sight(
        Severity.CRITICAL if critical else Severity.WARNING,
        source.value,
        f"the {source.value} could not be observed{since}",
        (safe(reason),),
        "nothing is acted on and no heartbeat is sent until it answers again"
        + ("; look at the run by hand: squeue, sacct, the run directory" if critical else ""),
    )


def _blind_seconds(snapshot: Snapshot) -> float:
    """For how long no pass has seen the queue. Where none ever has: for as long as the memory goes back."""
    seen = snapshot.memory.seen
    last = parse_time(seen[QUEUE_EMPTY_NAME].looked_at) if QUEUE_EMPTY_NAME in seen else None
    if last is None:
        times = (parse_time(entry.since) for entry in seen.values())
        last = min((at for at in times if at is not None), default=snapshot.taken_at)
    return max(0.0, (snapshot.taken_at - last).total_seconds())


def _reduced(snapshot: Snapshot) -> Finding:
    missing = snapshot.sources.unavailable
    names = ", ".join(source.value for source in missing)
    return _about_sight(
        Severity.INFO,
        "reduced",
        f"watched without {names}",
        tuple(f"{source.value}: {safe(reason)}" for source, reason in missing.items()),
        "nothing to do; what needs it is left out, and what else is there takes its place where it can",
    )


def _cannot_see(snapshot: Snapshot) -> bool:
    """Whether the chain has jobs and no sign of one was ever visible, by queue, accounting or memory."""
    if isinstance(snapshot.queue, Unobserved) or not snapshot.generations or final_verdict(snapshot) is not None:
        return False
    return not has_seen_jobs(snapshot) and not snapshot.queue.doubtful and not snapshot.queue.foreign


def _skipped_files(snapshot: Snapshot) -> Iterator[Finding]:
    unreadable = sum(max(0, one.unreadable_cycles) for one in snapshot.generations)
    notes = snapshot.sources.notes
    if not unreadable and not notes:
        return
    title = f"{count(unreadable, 'cycle record')} cannot be read" if unreadable else "something was skipped"
    more = (f"and {len(notes) - _MOST_NOTES} more",) if len(notes) > _MOST_NOTES else ()
    yield _about_sight(
        Severity.WARNING if unreadable >= _MANY_UNREADABLE else Severity.INFO,
        "skipped",
        title,
        (*(safe(note) for note in notes[:_MOST_NOTES]), *more),
        "the rest was read; a record is short for a moment while it is written, and damaged when it stays so",
    )


def _about_sight(severity: Severity, scope: str, title: str, details: tuple[str, ...], advice: str) -> Finding:
    return Finding(detector="observer", severity=severity, scope=scope, title=title, details=details, advice=advice)


def find_clock_skew(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """A time that somebody else wrote lies in the future of this machine's clock."""
    ahead = {
        "the newest file of the run directory": snapshot.file_clock_ahead_seconds,
        "the newest cycle records": _cycles_ahead(snapshot),
        "Slurm": _slurm_ahead(snapshot),
    }
    witnesses = {who: by for who, by in ahead.items() if by is not None and by > thresholds.clock_skew}
    if not witnesses:
        return
    yield Finding(
        detector="clock_skew",
        severity=Severity.WARNING,
        scope="clock",
        title=f"clocks differ: times lie up to {render_age(max(witnesses.values()))} in the future of this machine",
        details=tuple(f"{who}: {render_age(by)} ahead" for who, by in witnesses.items()),
        advice="have the clock service (chrony, ntp) looked at, here and there; ages that are shown can be wrong by as"
        " much, and nothing is acted on by a time that lies in the future",
    )


def _cycles_ahead(snapshot: Snapshot) -> float | None:
    current = snapshot.current()
    cycles = cycles_of(current)[-_NEWEST_CYCLES:] if current is not None else ()
    times = [at for cycle in cycles for at in (cycle.started_at, cycle.ended_at)]
    return _furthest_ahead(times, snapshot.taken_at)


def _slurm_ahead(snapshot: Snapshot) -> float | None:
    """By the rows of the present generation. The start of a pending task is Slurm's guess, and always ahead."""
    current: Generation | None = snapshot.current()
    if current is None:
        return None
    job = current.array_job_id
    times: list[datetime | None] = []
    if not isinstance(snapshot.queue, Unobserved):
        rows = snapshot.queue.rows(job)
        times += [row.submitted_at for row in rows]
        times += [row.started_at for row in rows if not row.state.is_pending]
    if not isinstance(snapshot.accounting, Unobserved):
        times += [row.ended_at for row in snapshot.accounting.get(job, ())]
    return _furthest_ahead(times, snapshot.taken_at)


def _furthest_ahead(times: list[datetime | None], now: datetime) -> float | None:
    return max(((at - now).total_seconds() for at in times if at is not None and at.tzinfo is not None), default=None)


def find_run_dir_trouble(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """The run directory cannot be written, or its file system is nearly full."""
    free = snapshot.free_bytes
    is_full = free is not None and free < thresholds.free_bytes
    if snapshot.can_write_run_directory is not False and not is_full:
        return
    path = snapshot.subject.run_directory
    what = "cannot be written" if snapshot.can_write_run_directory is False else "is nearly full"
    yield Finding(
        detector="run_dir_unwritable_or_full",
        severity=Severity.CRITICAL,
        scope="run-directory",
        title=f"the run directory {what}",
        details=(
            *((f"directory: {safe(str(path))}",) if path is not None else ()),
            *((f"free: {max(0, free) / (1 << 20):.0f} MiB",) if free is not None else ()),
        ),
        advice="leases, verdicts and checkpoints are written there: without them tasks stop themselves. Free space or"
        " quota, or have the file system mounted for writing again",
    )


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="observer",
        severity=Severity.CRITICAL,
        needs=frozenset(),
        fires="a source could not be observed (a warning; critical when the queue was not seen for long); the jobs of"
        " the user cannot be seen at all; cycle records or other files had to be skipped; the site has no such source"
        " (information)",
        quiet="everything answered",
        todo="find out why the source is silent; until it answers, its detectors are skipped, nothing is acted on and"
        " no heartbeat is sent. What a site does not have is said once and needs nothing",
        check=find_observer,
    ),
    Detector(
        name="clock_skew",
        severity=Severity.WARNING,
        needs=frozenset(),
        fires="a file, a cycle record or a time of Slurm lies further than the limit in the future of this machine",
        quiet="times lie in the past, however far: that is no skew; the start that Slurm expects of a pending task",
        todo="have the clock service of this machine and of the one that wrote looked at",
        check=find_clock_skew,
    ),
    Detector(
        name="run_dir_unwritable_or_full",
        severity=Severity.CRITICAL,
        needs=frozenset({Source.RECORDS}),
        fires="the run directory cannot be written although it should, or has less free space than the limit",
        quiet="it is not known whether it can be written, as for a reader who may not; there is space",
        todo="free space or quota below the run directory, or have the file system mounted for writing again",
        check=find_run_dir_trouble,
    ),
)
