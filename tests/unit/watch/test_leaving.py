"""A chain is let go when nothing is left of it and everybody has heard so, and never because nobody could look."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_watch.detectors.registry import DetectorRun
from nvrx_watch.history_model import History, Incident, IncidentState, Refusal
from nvrx_watch.leaving import QUIET_PASSES_BEFORE_LEAVING, Leaving
from nvrx_watch.model import Finding, Severity, Source
from nvrx_watch.run_pass import PassResult
from tests.fakes.fake_clock import FakeClock
from tests.unit.watch import build

HOUR = 3600.0
PASS = 60.0
END = Finding(detector="chain_exhausted", severity=Severity.CRITICAL, scope="chain", title="nothing is left")
OTHER = replace(END, detector="suspect_node")


def incident(**changes: Any) -> Incident:
    values: dict[str, Any] = {
        "key": END.key,
        "detector": END.detector,
        "severity": END.severity,
        "title": END.title,
        "state": IncidentState.FIRING,
        "first_seen_at": build.ago_text(600),
        "last_seen_at": build.ago_text(0),
    }
    return Incident(**{**values, **changes})


def result(findings: tuple[Finding, ...] = (END,), history: History | None = None, **snapshot: Any) -> PassResult:
    """A chain that ran dry, was reported in an earlier pass, and whose message every sink took."""
    values = {"queue": build.queue(arrays={}), **snapshot}
    return PassResult(
        snapshot=build.snapshot(**values),
        run=DetectorRun(findings=findings, skipped={}, broken={}),
        reports=(),
        history=history or History(incidents={END.key: incident()}),
        notes=(),
        seconds=0.1,
    )


class Watched:
    """Passes a minute apart over one chain."""

    def __init__(self, disabled: frozenset[str] = frozenset()) -> None:
        self.clock = FakeClock()
        self.leaving = Leaving(self.clock, dry_seconds=HOUR, disabled=disabled)

    def left_after(self, one: PassResult, passes: int) -> int | None:
        """The number of the pass after which the chain was let go, None when it never was."""
        for number in range(1, passes + 1):
            if self.leaving.may_leave(one):
                return number
            self.clock.advance(PASS)
        return None


def test_a_chain_without_a_verdict_is_let_go_an_hour_after_its_last_job() -> None:
    assert Watched().left_after(result(), 100) == 61


def test_a_chain_with_a_verdict_is_let_go_after_some_passes() -> None:
    assert Watched().left_after(result(verdict=build.verdict()), 100) == QUIET_PASSES_BEFORE_LEAVING


def test_a_short_limit_still_takes_some_passes() -> None:
    watched = Watched()
    watched.leaving = Leaving(watched.clock, dry_seconds=0.0, disabled=frozenset())
    assert watched.left_after(result(), 100) == QUIET_PASSES_BEFORE_LEAVING


@pytest.mark.parametrize(
    "one",
    [
        result(queue=build.queue()),
        result(queue=Unobserved("squeue did not answer")),
        result(queue=build.queue(arrays={}, doubtful={11: "another comment"})),
        result(queue=build.queue(arrays={}, foreign=(build.row(99, 0),))),
        result(verdict=Unobserved("chain_outcome.json cannot be read")),
        result(sources=build.sources({Source.RECORDS: "Input/output error"})),
        result(findings=()),
        result(findings=(OTHER,)),
        result(history=History(incidents={END.key: incident(first_seen_at=build.ago_text(0))})),
        result(history=History(refusals={"pager": Refusal(times=1, at=build.ago_text(0), wait_seconds=15.0)})),
    ],
    ids=[
        "has jobs",
        "queue not seen",
        "doubtful",
        "foreign",
        "verdict not seen",
        "records not seen",
        "end not said",
        "other finding",
        "said just now",
        "sink did not take it",
    ],
)
def test_a_chain_of_which_something_is_still_to_come_stays(one: PassResult) -> None:
    assert Watched().left_after(one, 200) is None


def test_one_pass_that_did_not_see_the_queue_begins_the_hour_anew() -> None:
    watched = Watched()
    assert watched.left_after(result(), 50) is None
    watched.leaving.may_leave(result(queue=Unobserved("squeue did not answer")))
    assert watched.left_after(result(), 100) == 61


def test_where_nobody_wants_to_hear_of_the_end_it_need_not_be_said() -> None:
    assert Watched(frozenset({"chain_exhausted"})).left_after(result(findings=()), 100) == 61
