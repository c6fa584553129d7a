"""Plays the acts of a scenario on a running cluster: waits, hurts, waits again, and stops when a promise is broken.

Every wait has a deadline. Touches: what the sandbox's faults touch; child processes (the undisturbed run).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nvrx_chain.clock import Clock
from nvrx_chain.demo.evidence import Evidence, FaultDone, find_lives
from nvrx_chain.demo.expectations import Expectation, fail_open, failed, failures
from nvrx_chain.demo.gather import Gatherer
from nvrx_chain.demo.narrate import narrate
from nvrx_chain.demo.reference import ReferenceRun, started_reference
from nvrx_chain.demo.repairs import NAMES
from nvrx_chain.demo.scenario import Act, Await, KillHostNode, KillRank, ReviveNodes, Scenario, StartReference
from nvrx_chain.errors import DemoError
from nvrx_chain.sandbox import FaultKind, FaultReport, Sandbox
from nvrx_chain.slurm.command import TimedOut, reading_environment, run_command
from nvrx_chain.slurm.nodelist import expand_nodes

POLL_SECONDS = 0.3


class View(Protocol):
    """Where a demo is seen."""

    def say(self, line: str) -> None:
        """One more line of the story."""
        ...

    def show(self, evidence: Evidence, waiting_for: str) -> None:
        """How things stand now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curtain:
    """How a play ended: the last evidence, and every promise as it stands then."""

    evidence: Evidence
    rows: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a play is played on. `environ` and `python` are for the undisturbed run, which lies in `place`."""

    sandbox: Sandbox
    gatherer: Gatherer
    clock: Clock
    view: View
    place: Path
    environ: Mapping[str, str]
    python: str


class Play:
    """One performance of a scenario."""

    def __init__(self, scenario: Scenario, stage: Stage) -> None:
        self._scenario = scenario
        self._stage = stage
        self._processes = contextlib.ExitStack()
        self._reference: ReferenceRun | None = None
        self._last: Evidence | None = None
        self._overdue: Await | None = None

    def run(self) -> Curtain:
        """Play all acts, or up to the first broken promise. Raises SandboxError when a fault could not be done."""
        with self._processes:
            for act in self._scenario.acts:
                if not self._do(act):
                    break
            return self._judge_finally()

    def _do(self, act: Act) -> bool:
        """Play one act; False when the play is over before its end."""
        if isinstance(act, Await):
            return self._await(act)
        if isinstance(act, KillRank):
            self._kill_rank(act.rank)
        elif isinstance(act, KillHostNode):
            self._kill_host_node()
        elif isinstance(act, ReviveNodes):
            self._revive_nodes()
        else:
            self._start_reference(act)
        return True

    def _await(self, act: Await) -> bool:
        clock, never = self._stage.clock, threading.Event()
        deadline = clock.monotonic() + act.seconds
        while True:
            evidence = self._look()
            self._stage.view.show(evidence, act.title)
            rows = self._scenario.judge(evidence)
            broken = failures(rows)
            if broken:
                self._stage.view.say(f"FAILED: {', '.join(broken)}")
                return False
            if act.is_over(evidence, rows):
                return True
            if clock.monotonic() > deadline:
                self._overdue = act
                self._stage.view.say(f"FAILED: not within {act.seconds:g} s: {act.title}")
                return False
            clock.wait(never, POLL_SECONDS)

    def _look(self, *, ask_now: bool = False) -> Evidence:
        losses = self._reference.losses() if self._reference else None
        evidence = self._stage.gatherer.read(losses, ask_now=ask_now)
        for line in narrate(self._last, evidence):
            self._stage.view.say(line)
        self._last = evidence
        return evidence

    def _judge_finally(self) -> Curtain:
        evidence = self._look(ask_now=True)
        rows = self._scenario.judge(evidence)
        act = self._overdue
        if act is not None:
            why = f"not within {act.seconds:g} s"
            rows = fail_open(rows, act.rows, why) if act.rows else (*rows, failed(act.title, why))
        return Curtain(evidence=evidence, rows=rows)

    # Faults

    def _kill_rank(self, rank: int) -> None:
        evidence = self._look()
        job = _training_job(evidence)
        lives = [life for life in find_lives(evidence.events) if (life.array_job_id, life.rank) == (job, rank)]
        if not lives:
            raise DemoError(f"killing rank {rank}: it has not said that it trains", part=f"array job {job}")
        self._note(self._stage.sandbox.kill_rank(job, rank), node=lives[-1].host, array_job_id=job)

    def _kill_host_node(self) -> None:
        evidence = self._look(ask_now=True)
        job = _training_job(evidence)
        rows = [task for task in evidence.queue or () if (task.array_job_id, task.array_task_id) == (job, 0)]
        nodes = expand_nodes(rows[0].nodelist) if rows else ()
        if not nodes:
            raise DemoError("killing the node of task 0: Slurm does not say where it runs", part=f"array job {job}")
        self._note(self._stage.sandbox.kill_node(nodes[0]), node=nodes[0], array_job_id=job)

    def _note(self, report: FaultReport, *, node: str, array_job_id: int) -> None:
        clock = self._stage.clock
        # The report has wall time, the ranks' lines have both; a duration is taken from the clock that never jumps.
        age = (clock.now() - report.hit_at).total_seconds()
        fault = FaultDone(
            kind=report.kind,
            target=report.target,
            node=node,
            array_job_id=array_job_id,
            at=clock.monotonic() - age,
            verified=report.verified,
        )
        self._stage.gatherer.add_fault(fault)
        self._stage.view.say(f"FAULT {NAMES[fault.kind]}: {fault.target}: {fault.verified}")

    def _revive_nodes(self) -> None:
        for fault in self._last.faults if self._last else ():
            if fault.kind is FaultKind.KILL_NODE:
                _declare_down(fault.node, {**self._stage.environ, **self._stage.sandbox.environ})
                report = self._stage.sandbox.revive_node(fault.node)
                self._stage.view.say(f"node {fault.node} is powered on again: {report.verified}")

    def _start_reference(self, act: StartReference) -> None:
        stage = self._stage
        run = started_reference(
            stage.python,
            stage.place / "undisturbed",
            stage.environ,
            stage.clock,
            target_iteration=act.target_iteration,
            ranks=act.ranks,
        )
        self._reference = self._processes.enter_context(run)
        stage.view.say(f"beside the cluster the same training starts undisturbed, {act.ranks} ranks")


def _training_job(evidence: Evidence) -> int:
    """The array job of the newest line of a rank. Raises DemoError when there is none."""
    jobs = [event.array_job_id for event in evidence.events if event.array_job_id is not None]
    if not jobs:
        raise DemoError("looking for the generation that trains: no rank has said anything")
    return jobs[-1]


def _declare_down(node: str, environ: Mapping[str, str]) -> None:
    """Without it Slurm goes on trying for a minute to end, on the node that is back, a task that died with it."""
    argv = ("scontrol", "update", f"nodename={node}", "state=down", "reason=power lost")
    done = run_command(argv, reading_environment(environ))
    if isinstance(done, TimedOut) or done.returncode != 0:
        said = f"no answer within {done.seconds:g} s" if isinstance(done, TimedOut) else done.stderr.strip()
        raise DemoError(f"declaring node {node} down", part=said)
