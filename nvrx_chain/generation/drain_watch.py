"""Task 0 looks from time to time whether Slurm is asked to free nodes of this generation, and publishes what it saw.

One question to Slurm a poll, whatever the size, in the background and with jitter; one that fails leaves the last
answer, which says how old it is and is withdrawn when that is too old. What a spare can replace is judged at every
tick, from memory: a spare that goes takes the exclusion with it before the next poll.

Touches: Slurm (one sinfo a poll), `control/drained.<k>.json`, `control/segment_health_check.<array>.<k>`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from nvrx_chain.clock import format_time
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.drain import choose_excluded, find_drained
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.liveness import lease_is_stale
from nvrx_chain.records.control import Drained, DrainedNode
from nvrx_chain.records.drained import name_drained, stale_after_seconds
from nvrx_chain.records.manifest import OnDrain

log = logging.getLogger(__name__)

SHORTEST_WAIT = 0.2
"""Of the poll time, before the first poll: generations that start together do not ask together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What Slurm said last: the nodes of each task that was asked about, and the drained ones."""

    tasks: Mapping[int, tuple[str, ...]]
    drained: Mapping[int, tuple[DrainedNode, ...]]
    asked_at: float


class DrainWatch:
    """Owned by task 0's life. `tick` is called by its loops and reads memory only."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._poll_seconds = context.thresholds.drain_poll
        self._question: Background[_Answer | Unobserved] = Background(context.spawn, "drain poll")
        self._publication: Background[frozenset[int]] = Background(context.spawn, "drain markers")
        self._nodes: dict[int, tuple[str, ...]] = {}
        self._answer: _Answer | None = None
        self._polls = 0
        self._failures = 0
        # As they were decided last. Of the unwritten ones the disk may show that, or what was before, or a part of it.
        self._markers: dict[int, Drained] = {}
        self._unwritten: frozenset[int] = frozenset()
        # Whom launchers may find excluded: also after a write of which only the answer was lost.
        self._kept_out: set[int] = set()
        self._publish_again_at = 0.0
        self._due_at = context.clock.monotonic() + self._poll_seconds * random.uniform(SHORTEST_WAIT, 1.0)

    def clear_leftovers(self) -> None:
        """Empty what an earlier job of the same id left behind, before any launcher can read it."""
        board = self._context.board
        for task in board.excluded_tasks():
            log.warning("withdrawing the exclusion of an earlier job of this id task=%s", task)
            try:
                board.exclude(task, ())
            except RecordError as error:
                # A task fewer, where a spare may help: no reason to start nobody.
                log.error("%s", error)

    def tick(self, snapshot: Snapshot) -> None:
        """Take an answer, ask when it is time, publish what has changed."""
        if self._poll_seconds <= 0:
            return
        self._take_answer()
        self._ask_when_due(snapshot)
        self._publish(snapshot)

    def excluded(self) -> frozenset[int]:
        """The tasks that are published as taking no part."""
        return frozenset(task for task, marker in self._markers.items() if marker.is_active and marker.excluded)

    def _take_answer(self) -> None:
        done = self._question.take()
        if done is None:
            return
        self._polls += 1
        if isinstance(done.value, Unobserved):
            if not self._failures:
                log.warning("drained nodes are not known, the last answer is kept reason=%s", done.value.reason)
            self._failures += 1
            return
        if self._failures:
            log.info("drained nodes are known again after failed_polls=%s", self._failures)
        self._failures = 0
        self._answer = done.value

    def _ask_when_due(self, snapshot: Snapshot) -> None:
        now = self._context.clock.monotonic()
        if self._question.busy or now < self._due_at:
            return
        self._due_at = now + self._poll_seconds * random.uniform(0.8, 1.2)
        tasks = tuple(task for task in snapshot.joined if task not in snapshot.left)
        self._question.start(lambda: self._ask(tasks))

    def _ask(self, tasks: tuple[int, ...]) -> _Answer | Unobserved:
        """In the background. The nodes of a task never change: a task does not start twice in one generation."""
        asked_at = self._context.clock.monotonic()
        for task in tasks:
            if task not in self._nodes:
                joined = self._context.board.joined_nodes(task)
                if joined:
                    self._nodes[task] = joined
        known = {task: self._nodes[task] for task in tasks if task in self._nodes}
        names = sorted({name for nodes in known.values() for name in nodes})
        if not names:
            return Unobserved("no task's nodes can be read")
        nodes = self._context.client.nodes(names)
        if isinstance(nodes, Unobserved):
            return nodes
        return _Answer(tasks=known, drained=find_drained(known, nodes), asked_at=asked_at)

    def _publish(self, snapshot: Snapshot) -> None:
        now = self._context.clock.monotonic()
        done = self._publication.take()
        if done is not None:
            self._unwritten -= frozenset() if isinstance(done.value, Unobserved) else done.value
            if self._unwritten:
                # A full file system would otherwise be tried at every tick.
                self._publish_again_at = now + self._poll_seconds
        if self._publication.busy or now < self._publish_again_at:
            return
        # Of a task whose launcher has ended the marker stays: it says why.
        over = {*snapshot.left, *(found.array_task_id for found in snapshot.launcher_exits)}
        wanted = self._wanted(snapshot, now)
        changed = {
            task: marker
            for task, marker in sorted(wanted.items())
            if task not in over and (task in self._unwritten or marker != self._markers.get(task))
        }
        if not changed:
            return
        for task, marker in changed.items():
            _say(marker, self._markers.get(task))
        self._kept_out |= {task for task, marker in changed.items() if marker.excluded}
        self._markers |= changed
        self._unwritten |= frozenset(changed)
        self._publication.start(lambda: self._write(tuple(changed.values())))

    def _wanted(self, snapshot: Snapshot, now: float) -> dict[int, Drained]:
        """The marker of each task that has or had one."""
        answer = self._answer
        if answer is None or now - answer.asked_at > stale_after_seconds(self._poll_seconds):
            return {task: self._returned(marker) for task, marker in self._markers.items()}
        gone = {task: self._returned(marker) for task, marker in self._markers.items() if task not in answer.drained}
        excluded = self._choose(answer, snapshot)
        age = self._context.clock.monotonic() - answer.asked_at if self._failures else 0.0
        return gone | {task: self._marker(task, answer, excluded=task in excluded, age=age) for task in answer.drained}

    def _choose(self, answer: _Answer, snapshot: Snapshot) -> frozenset[int]:
        manifest = self._context.manifest
        if manifest.on_drain is OnDrain.REPORT or not answer.drained:
            return frozenset()
        timeout = self._context.thresholds.lease_timeout
        silent = {
            task
            for task, lease in snapshot.leases.items()
            if lease_is_stale(lease.still_seconds, lease.interval_seconds, timeout)
        }
        ended = {found.array_task_id for found in snapshot.launcher_exits}
        live = [task for task in snapshot.joined if task not in snapshot.left and task not in silent | ended]
        return choose_excluded(live, answer.drained, manifest.shape.train_tasks)

    def _marker(self, task: int, answer: _Answer, *, excluded: bool, age: float) -> Drained:
        before = self._markers.get(task)
        # The age is that of the poll, not of this moment: the same marker is not written at every tick.
        same_poll = before is not None and before.is_active and before.poll == self._polls
        return Drained(
            task=task,
            task_nodes=answer.tasks[task],
            drained_nodes=answer.drained[task],
            is_active=True,
            excluded=excluded,
            seen_at=before.seen_at if before is not None and before.is_active else self._now(),
            returned_at=None,
            poll=self._polls,
            poll_seconds=self._poll_seconds,
            answer_age_seconds=before.answer_age_seconds if before is not None and same_poll else round(age, 3),
            **self._context.identity.stamp(),
        )

    def _returned(self, marker: Drained) -> Drained:
        if not marker.is_active:
            return marker
        return msgspec.structs.replace(marker, is_active=False, excluded=False, returned_at=self._now())

    def _write(self, markers: tuple[Drained, ...]) -> frozenset[int]:
        """In the background. Returns whose marker was written; one that was not is tried again."""
        written = set()
        for marker in markers:
            try:
                self._write_one(marker)
            except RecordError as error:
                log.warning("a drain marker was not written task=%s error=%s", marker.task, error)
                continue
            written.add(marker.task)
        return frozenset(written)

    def _write_one(self, marker: Drained) -> None:
        board, task = self._context.board, marker.task
        if not marker.excluded and task in self._kept_out:
            # First what launchers read: they have no other witness.
            board.exclude(task, ())
            self._kept_out.discard(task)
        board.write_drained(marker)
        if marker.excluded:
            board.exclude(task, tuple(node.node for node in marker.drained_nodes))

    def _now(self) -> str:
        return format_time(self._context.clock.now())


def _say(marker: Drained, before: Drained | None) -> None:
    """Once for each change that a person would want to know."""
    was = (before.is_active, before.excluded) if before is not None else (False, False)
    if was == (marker.is_active, marker.excluded):
        return
    nodes = name_drained(marker.drained_nodes)
    if not marker.is_active:
        log.info("not known to be drained any more task=%s nodes=%s", marker.task, nodes)
    elif marker.excluded:
        log.warning("drained, a spare can take its place task=%s nodes=%s", marker.task, nodes)
    elif marker.task == 0:
        log.warning("drained, it stays for it hosts the rendezvous task=0 nodes=%s", nodes)
    else:
        log.warning("drained, it stays task=%s nodes=%s", marker.task, nodes)
