"""The runs that the golden frames and reports show: one function each, the healthy chain of build.py changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.history_model import History, Incident, IncidentState
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import ActionKind, ActionRequest, Finding, LogActivity, Severity, Snapshot, Source
from nvrx_watch.ui.screen_model import ScreenModel, build_screen
from tests.unit.watch import build


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One pass and what came of it."""

    snapshot: Snapshot
    findings: Sequence[Finding] = ()
    history: History = field(default_factory=History)
    reports: Sequence[ActionReport] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)

    def screen(self, now: datetime = build.NOW) -> ScreenModel:
        return build_screen(
            self.snapshot,
            self.findings,
            self.history,
            self.reports,
            now=now,
            skipped=self.skipped,
            broken=self.broken,
        )


def finding(detector: str, severity: Severity, title: str, **overrides: object) -> Finding:
    values: dict[str, object] = {"scope": "chain", "advice": "", "details": ()}
    return Finding(detector=detector, severity=severity, title=title, **{**values, **overrides})  # type: ignore[arg-type]


def incident(one: Finding, since: float, seen: float = 0, state: IncidentState = IncidentState.FIRING) -> Incident:
    """The memory of a finding that was first seen `since` and last seen `seen` seconds ago."""
    return Incident(
        key=one.key,
        detector=one.detector,
        severity=one.severity,
        title=one.title,
        state=state,
        first_seen_at=build.ago_text(since),
        last_seen_at=build.ago_text(seen),
    )


def history(*incidents: Incident) -> History:
    return History(incidents={one.key: one for one in incidents})


def request(**overrides: object) -> ActionRequest:
    values: dict[str, object] = {
        "kind": ActionKind.CANCEL_PENDING,
        "array_job_id": 11,
        "why": "task 0 has ended",
        "command": "scancel 11_3 11_4",
    }
    return ActionRequest(**{**values, **overrides})  # type: ignore[arg-type]


def report(state: ActionState, **overrides: object) -> ActionReport:
    values: dict[str, object] = {"detector": "orphaned_generation", "request": request(), "state": state}
    return ActionReport(**{**values, **overrides})  # type: ignore[arg-type]


def healthy() -> Scene:
    cycles = (
        build.cycle(0, started=45_000, ended=44_400),
        build.cycle(1, started=44_380, ended=20_000),
        build.cycle(2, started=19_950, ended=19_905),
        build.cycle(3, started=19_900, ended=None),
    )
    log = LogActivity(bytes=9_000, newest="app_cycle3.log", iteration=48_210, iterations_per_second=2.13)
    one = build.running_generation(11, cycles=cycles, log=log)
    rows = build.running_rows(11, started_at=build.ago(45_100)) + build.queued_rows(12) + build.queued_rows(13)
    return Scene(
        snapshot=build.snapshot(
            generations=build.generations(g11=one),
            queue=build.queue(*rows),
            iteration=48_000,
            memory=build.remember({ITERATION_NAME: (48_000, 95)}, changes=9),
        )
    )


def restart_storm() -> Scene:
    spans = [(1500 - 75 * number, 1500 - 75 * number - 60) for number in range(20)]
    cycles = [build.cycle(number, started=began, ended=ended) for number, (began, ended) in enumerate(spans)]
    cycles.append(build.cycle(20, started=12, ended=None))
    log = LogActivity(bytes=9_000, newest="app_cycle20.log", iteration=402, iterations_per_second=0.04)
    one = build.running_generation(11, cycles=tuple(cycles), log=log)
    storm = finding(
        "restart_storm",
        Severity.CRITICAL,
        "20 cycles ended within 30 m, the last five lasted 60 s each",
        advice="read the end of app_cycle19.log; stop the chain if the fault is in the code",
        details=("cycles 15 to 19 ended on n1, n2",),
    )
    suspect = finding(
        "suspect_node",
        Severity.WARNING,
        "every short cycle had n2, no long one did",
        scope="n2",
        advice="sbatch --exclude=n2",
    )
    stalled = finding("stalled_progress", Severity.CRITICAL, "20 cycles ended since iteration 400 was saved")
    budget = finding("restart_budget_low", Severity.WARNING, "1 of 21 restarts is left in generation 11", scope="11")
    last = finding("last_generation_running", Severity.INFO, "no generation is queued after 13")
    drained = finding("drained_active_node", Severity.WARNING, "n2 is draining", scope="n2")
    orphan = finding("orphaned_generation", Severity.CRITICAL, "2 cold spares of 10 still wait", scope="10")
    findings = (last, budget, storm, suspect, stalled, drained)
    return Scene(
        snapshot=build.snapshot(
            generations=build.generations(g10=build.ended_generation(10, "walltime"), g11=one),
            nodes=build.nodes(build.node("n2", "draining", reason="xid 79 [fallen off the bus]")),
            iteration=400,
            memory=build.remember({ITERATION_NAME: (400, 1490)}, changes=4),
        ),
        findings=findings,
        history=history(
            incident(storm, 900),
            incident(stalled, 700),
            incident(suspect, 600),
            incident(orphan, 4000, seen=60),
            incident(last, 90_000, state=IncidentState.RESOLVED),
        ),
        reports=(
            report(ActionState.OBSERVE_ONLY, why="--act was not given"),
            report(ActionState.DONE, asked=("11_3", "11_4"), gone=("11_3", "11_4")),
        ),
    )


def held() -> Scene:
    one = build.ended_generation(11, "failed")
    rows = build.queued_rows(12, reason="JobHeldUser") + build.queued_rows(13, reason="JobHeldUser")
    found = finding("chain_held", Severity.INFO, "held by the brake", advice="nvrx-chain release, when it is mended")
    return Scene(
        snapshot=build.snapshot(
            generations=build.generations(g10=build.ended_generation(10, "failed"), g11=one),
            queue=build.queue(*rows),
            hold=build.hold(),
            iteration=None,
            memory=build.remember({ITERATION_NAME: (None, 5000)}),
        ),
        findings=(found,),
        history=history(incident(found, 600)),
    )


def queue_blind() -> Scene:
    why = "squeue did not answer within 20 s"
    overlap = finding("generation_overlap", Severity.CRITICAL, "10 and 11 both hold nodes")
    return Scene(
        snapshot=build.snapshot(
            queue=Unobserved(why),
            accounting=Unobserved("sacct: connection refused"),
            nodes=Unobserved(why),
            iteration=Unobserved("the checkpoint iteration is not a number: b'relea\\x1b'"),
            memory=build.remember({ITERATION_NAME: (150, 700)}, changes=2),
            sources=build.sources(
                {
                    Source.QUEUE: why,
                    Source.NODES: why,
                    Source.ACCOUNTING: "sacct: connection refused",
                    Source.ITERATION: "the checkpoint iteration is not a number: b'relea\\x1b'",
                },
                notes=("3 cycle records of job 11 are unreadable",),
            ),
        ),
        history=history(incident(overlap, 500, seen=400)),
        skipped={"handoff_stuck": why, "chain_exhausted": why, "stalled_progress": why},
    )


def hundred_generations() -> Scene:
    outcomes = ["walltime", "failed", "failed", "preempted"]
    ended = {f"g{job}": build.ended_generation(job, outcomes[job % 4]) for job in range(1001, 1097)}
    more = {f"g{job}": build.generation(job) for job in range(1098, 1101)}
    everyone = build.generations(**ended, g1097=build.running_generation(1097), **more)
    rows = build.running_rows(1097)
    for job in range(1098, 1101):
        rows += build.queued_rows(job)
    return Scene(
        snapshot=build.snapshot(
            generations=tuple(one for one in everyone if one.array_job_id > 1000), queue=build.queue(*rows)
        )
    )


def foreign() -> Scene:
    cycles = (build.cycle(0, started=3500, ended=2000), build.cycle(1, started=1900, ended=None))
    one = build.generation(11, cycles=cycles, has_directory=True)
    return Scene(
        snapshot=build.snapshot(
            subject=build.foreign_subject(name="llama [red]漢字[/red]", run_directory=Path("/w/nvrx")),
            generations=(one, build.generation(12)),
            queue=build.queue(*build.running_rows(11), *build.queued_rows(12)),
            sources=build.sources(unavailable={Source.ACCOUNTING: "no accounting on this cluster"}),
            iteration=48_000,
        )
    )


SCENES: dict[str, Callable[[], Scene]] = {
    "healthy": healthy,
    "restart-storm": restart_storm,
    "held": held,
    "queue-blind": queue_blind,
    "hundred-generations": hundred_generations,
    "foreign": foreign,
}
