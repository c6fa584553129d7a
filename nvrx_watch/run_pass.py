"""One pass over the watched chains: snapshot, detectors, actions, notices, heartbeat, state.

The order is fixed: nothing is acted on before every source was read, and the heartbeat is pinged last, only when every
source of every chain was seen, no chain was missed and no detector broke. Touches: what its parts touch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from nvrx_chain.clock import Clock
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import QueueReading
from nvrx_watch.action_model import ActionReport
from nvrx_watch.detectors.registry import ALL, DetectorRun, run_detectors
from nvrx_watch.gather import Gatherer, Target
from nvrx_watch.history import due_notices, end_all, history_notes, mark_good_pass, update_history
from nvrx_watch.history_model import History
from nvrx_watch.layout import Layout
from nvrx_watch.memory import Memory
from nvrx_watch.model import Finding, Severity, Snapshot, Subject
from nvrx_watch.notify import send_all
from nvrx_watch.sinks.chain_metrics import ChainMetrics, measure
from nvrx_watch.sinks.sink import LOG_NAME, Sink, SinkError
from nvrx_watch.state_store import StateStore
from nvrx_watch.thresholds import WatchThresholds

if TYPE_CHECKING:
    from nvrx_watch.acting.desk import ActionDesk

log = logging.getLogger(__name__)

OBSERVER = "observer"

LONG_ACTIONS_SECONDS = 1.0
LEAST_SINK_SECONDS = 1.0

CLEAN, DEGRADED, CRITICAL = 0, 1, 2
"""The exit codes of a pass; 64 (bad usage) is the command line's."""


class Watch(msgspec.Struct):
    """A chain that is watched, and what is known of it from earlier passes.

    `is_followed`: its run directory holds another chain meanwhile, which is watched too.
    """

    subject: Subject
    layout: Layout
    asked_job_id: int | None = None
    memory: Memory = msgspec.field(default_factory=Memory)
    history: History = msgspec.field(default_factory=History)
    is_followed: bool = False
    acted_at: float = 0.0
    """When actions for it last took long, on the clock of durations: such a chain comes after the others."""


class PassResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass made of one chain."""

    snapshot: Snapshot
    run: DetectorRun
    reports: tuple[ActionReport, ...]
    history: History
    notes: tuple[str, ...]
    seconds: float
    is_followed: bool = False

    @property
    def is_degraded(self) -> bool:
        """Whether something could not be seen: then no heartbeat is sent. A source that a site lacks is none."""
        return not self.is_followed and bool(self.snapshot.sources.unobserved or self.run.broken)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 degraded, 2 at least one critical finding."""
        if any(finding.severity is Severity.CRITICAL for finding in self.run.findings):
            return CRITICAL
        return DEGRADED if self.is_degraded else CLEAN


class Outlets(msgspec.Struct, frozen=True, kw_only=True):
    """Where the results of a pass go besides the screen. `ping` is the heartbeat, None without one."""

    sinks: Sequence[Sink] = ()
    ping: Callable[[], None] | None = None
    metrics: Sequence[Callable[[Sequence[ChainMetrics]], None]] = ()
    deadline_seconds: float = 30.0
    """For the notices of all chains of a pass together."""


class PassParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass is made of. The desk is made when the first action is asked for: most passes ask for none."""

    gatherer: Gatherer
    make_desk: Callable[[], ActionDesk]
    outlets: Outlets
    store: StateStore
    clock: Clock
    thresholds: WatchThresholds
    disabled: frozenset[str] = frozenset()
    action_seconds: float = 300.0
    """No action begins later than this after the first one of a pass could have."""


def run_pass(
    parts: PassParts,
    watches: Sequence[Watch],
    queue: QueueReading | Unobserved | None = None,
    *,
    sees_all: bool = True,
) -> tuple[PassResult, ...]:
    """Look at every chain once, act where that was allowed, tell who has to know. Updates the watches.

    `sees_all` False: there are chains that should be among the watches and could not be found.
    """
    began = parts.clock.monotonic()
    targets = [
        Target(subject=one.subject, layout=one.layout, asked_job_id=one.asked_job_id, memory=one.memory)
        for one in watches
    ]
    snapshots = parts.gatherer.gather(targets, queue)
    results = _judge_all(parts, watches, snapshots, began)
    # Notices come after the actions: a sink that hangs must not delay the release of a node.
    results = _tell_all(parts, watches, results)
    _publish_metrics(parts, results)
    unheard = any(_is_untold(result, parts.outlets.sinks) for result in results)
    if sees_all and results and not unheard and not any(result.is_degraded for result in results):
        _ping(parts.outlets)
    return tuple(results)


def _is_untold(result: PassResult, sinks: Sequence[Sink]) -> bool:
    """Whether a critical finding has reached nobody yet: then the heartbeat that stays away is the last word left.

    The log is no sink that wakes anybody.
    """
    pagers = frozenset(sink.policy.name for sink in sinks) - {LOG_NAME}
    critical = [finding.key for finding in result.run.findings if finding.severity is Severity.CRITICAL]
    incidents = [result.history.incidents[key] for key in critical if key in result.history.incidents]
    return bool(pagers) and any(pagers.isdisjoint(incident.sent) for incident in incidents)


def exit_code_of(results: Sequence[PassResult], *, sees_all: bool = True) -> int:
    """The worst of all chains: critical before degraded before clean. `sees_all` is that of the pass."""
    return max([CLEAN if sees_all else DEGRADED, *(result.exit_code for result in results)])


def _judge_all(
    parts: PassParts, watches: Sequence[Watch], snapshots: Sequence[Snapshot], began: float
) -> list[PassResult]:
    found: dict[int, PassResult] = {}
    at_first = parts.clock.monotonic()
    for at in sorted(range(len(watches)), key=lambda at: watches[at].acted_at):
        before = parts.clock.monotonic()
        found[at] = _judge(parts, watches[at], snapshots[at], began, act_until=at_first + parts.action_seconds)
        if parts.clock.monotonic() - before >= LONG_ACTIONS_SECONDS:
            watches[at].acted_at = parts.clock.monotonic()
    return [found[at] for at in range(len(watches))]


def _tell_all(parts: PassParts, watches: Sequence[Watch], results: Sequence[PassResult]) -> list[PassResult]:
    """Send what is due, the critical chains first. What finds no time any more is due again with the next pass."""
    found: dict[int, PassResult] = {}
    until = parts.clock.monotonic() + parts.outlets.deadline_seconds
    for at in sorted(range(len(results)), key=lambda at: -results[at].exit_code):
        found[at] = _tell(parts, watches[at], results[at], until - parts.clock.monotonic())
    return [found[at] for at in range(len(results))]


def _judge(parts: PassParts, watch: Watch, snapshot: Snapshot, began: float, *, act_until: float) -> PassResult:
    if snapshot.successor is not None:
        return _end(parts, watch, snapshot, began)
    run = run_detectors(snapshot, parts.thresholds, parts.disabled)
    for name, text in run.broken.items():
        log.error("a detector broke, the others ran detector=%s chain=%s error=%s", name, snapshot.subject.name, text)
    reports = _perform(parts, snapshot, run.findings, act_until)
    now = parts.clock.now()
    history = update_history(watch.history, run.findings, blind=_blind(snapshot, run, parts.disabled), now=now)
    result = PassResult(
        snapshot=snapshot,
        run=run,
        reports=reports,
        history=history,
        notes=history_notes(history),
        seconds=parts.clock.monotonic() - began,
    )
    if not result.is_degraded:
        result = replace(result, history=mark_good_pass(history, now))
    watch.subject, watch.memory = snapshot.subject, snapshot.memory
    return result


def _end(parts: PassParts, watch: Watch, snapshot: Snapshot, began: float) -> PassResult:
    """Nothing is left of a chain whose directory another one has taken over: what was found of it ends."""
    watch.memory = snapshot.memory
    return PassResult(
        snapshot=snapshot,
        run=DetectorRun(findings=(), skipped={}, broken={}),
        reports=(),
        history=end_all(watch.history),
        notes=(),
        seconds=parts.clock.monotonic() - began,
        is_followed=watch.is_followed,
    )


def _perform(
    parts: PassParts, snapshot: Snapshot, findings: Sequence[Finding], until: float
) -> tuple[ActionReport, ...]:
    if not any(finding.action for finding in findings):
        return ()
    from nvrx_watch.acting.perform import perform

    return perform(findings, snapshot, parts.make_desk(), until=until)


def _blind(snapshot: Snapshot, run: DetectorRun, disabled: frozenset[str]) -> frozenset[str]:
    """The detectors whose silence says nothing in this pass.

    While any source is blind that is all of them but the observer: a detector may do with less than it would look at.
    """
    if snapshot.sources.unobserved:
        return frozenset(detector.name for detector in ALL) - {OBSERVER} - disabled
    return (frozenset(run.skipped) | frozenset(run.broken)) - disabled


def _tell(parts: PassParts, watch: Watch, result: PassResult, seconds: float) -> PassResult:
    subject, now = result.snapshot.subject, parts.clock.now()
    policies = [sink.policy for sink in parts.outlets.sinks]
    due = due_notices(result.history, result.run.findings, subject, policies, now)
    notes: list[str] = []
    if due and seconds < LEAST_SINK_SECONDS:
        # A deadline of next to nothing would count as a refusal, and the sink would be left alone for it.
        notes.append(f"{len(due)} messages wait for the next pass: those of other chains took all the time")
        due = ()
    history, failures = send_all(result.history, due, parts.outlets.sinks, parts.clock, deadline_seconds=seconds)
    notes += [f"{name} did not take a message: {why}" for name, why in failures.items()]
    watch.history = history
    # Saved after the sending: what was not accepted is sent again, if need be after a restart.
    notes += parts.store.save(subject.key, watch.memory, history)
    return replace(result, history=history, notes=(*result.notes, *notes))


def _publish_metrics(parts: PassParts, results: Sequence[PassResult]) -> None:
    if not parts.outlets.metrics:
        return
    now = parts.clock.now()
    states = [
        measure(result.snapshot, result.run.findings, result.seconds, result.history.last_good_pass_at, now)
        for result in results
    ]
    for publish in parts.outlets.metrics:
        try:
            publish(states)
        except (OSError, SinkError) as error:
            log.warning("the metrics were not published error=%s", error)


def _ping(outlets: Outlets) -> None:
    if outlets.ping is None:
        return
    try:
        outlets.ping()
    except SinkError as error:
        log.warning("the heartbeat was not accepted error=%s", error)
