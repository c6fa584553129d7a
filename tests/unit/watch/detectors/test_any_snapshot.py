"""Whatever a pass saw: no detector raises, no finding misbehaves, no action reaches beyond what the queue showed."""

from __future__ import annotations

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.records.control import Closed
from nvrx_watch.detectors.registry import ALL, run_detectors
from nvrx_watch.model import ActionKind, ActionRequest, Queue, Snapshot
from tests.unit.watch.detectors.snapshots import any_snapshot, any_thresholds

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
SEEDS = st.integers(0, 2**40)
ANY = settings(max_examples=400, deadline=None)
DETECTORS = {detector.name: detector for detector in ALL}


def is_safe(text: str) -> bool:
    return not {unicodedata.category(one) for one in text} & UNSAFE


@ANY
@given(SEEDS)
def test_no_detector_breaks_and_every_finding_is_fit_to_be_shown(seed: int) -> None:
    run = run_detectors(any_snapshot(seed), any_thresholds(seed), ())
    assert run.broken == {}
    for finding in run.findings:
        assert finding.detector in DETECTORS
        for text in (finding.scope, finding.title, finding.advice, *finding.details):
            assert is_safe(text), text
            assert len(text) < 6000
        if finding.severity.value == "critical":
            assert DETECTORS[finding.detector].severity.value == "critical"
    assert len({finding.key for finding in run.findings}) == len(run.findings)


@ANY
@given(SEEDS)
def test_an_action_only_ever_names_an_array_job_that_the_queue_shows(seed: int) -> None:
    seen = any_snapshot(seed)
    for finding in run_detectors(seen, any_thresholds(seed), ()).findings:
        if finding.action is not None:
            check_reach(seen, finding.action)


def check_reach(seen: Snapshot, request: ActionRequest) -> None:
    assert isinstance(seen.queue, Queue)
    assert request.command
    assert is_safe(request.command)
    if request.array_job_id is None:
        assert request.kind in (ActionKind.CANCEL_CHAIN, ActionKind.HOLD, ActionKind.EXTEND)
        return
    rows = seen.queue.arrays[request.array_job_id]
    assert {row.array_job_id for row in rows} == {request.array_job_id}
    task_zero_lives = any(row.array_task_id == 0 and not row.state.is_terminal for row in rows)
    if request.kind is ActionKind.CANCEL_PENDING:
        assert any(row.state.is_pending for row in rows)
        assert not task_zero_lives
    else:
        assert request.kind is ActionKind.FENCE
        generation = seen.generation(request.array_job_id)
        assert task_zero_lives or (generation is not None and isinstance(generation.closed, Closed))


def test_the_snapshots_reach_every_kind_of_action() -> None:
    # Without this the claims about actions could hold because there are none.
    missing = set(ActionKind)
    for seed in range(5000):
        for finding in run_detectors(any_snapshot(seed), any_thresholds(seed), ()).findings:
            if finding.action is not None:
                missing.discard(finding.action.kind)
        if not missing:
            return
    assert missing == set()
