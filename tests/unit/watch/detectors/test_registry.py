"""The detectors as a whole: unique names, blind ones skipped, broken ones reported while the others run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.registry import ALL, find, run_detectors
from nvrx_watch.model import Finding, Severity, Snapshot, Source, SourceReport, Unavailable
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import account, blind, queue, queued_rows, row, snapshot, sources

LIMITS = WatchThresholds()
PROMISED = {
    "orphaned_generation",
    "orphaned_running_spares",
    "chain_exhausted",
    "chain_completed",
    "last_generation_running",
    "chain_not_cancelled",
    "chain_held",
    "generation_churn",
    "generations_without_progress",
    "generation_overlap",
    "task0_unreachable",
    "closed_generation_stays",
    "generation_assembling",
    "handoff_stuck",
    "foreign_job_in_chain",
    "restart_storm",
    "stalled_progress",
    "never_checkpointed",
    "cycle_stalled",
    "restart_budget_low",
    "checkpoint_regressed",
    "same_iteration_crash",
    "spares_exhausted",
    "suspect_node",
    "drained_active_node",
    "duplicate_node",
    "observer",
    "clock_skew",
    "run_dir_unwritable_or_full",
}


def probe(name: str, *needs: Source, severities: tuple[Severity, ...] = (Severity.WARNING,)) -> Detector:
    """A detector that always finds these."""

    def check(seen: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
        for severity in severities:
            yield Finding(detector=name, severity=severity, scope="chain", title=f"{name} {severity.value}")

    return Detector(
        name=name,
        severity=Severity.CRITICAL,
        needs=frozenset(needs),
        fires="always",
        quiet="never",
        todo="-",
        check=check,
    )


def broken(name: str) -> Detector:
    def check(seen: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
        yield Finding(detector=name, severity=Severity.CRITICAL, scope="chain", title="half a thought")
        raise RuntimeError("a number that\nwas none")

    return Detector(
        name=name, severity=Severity.CRITICAL, needs=frozenset(), fires="-", quiet="-", todo="-", check=check
    )


def test_every_promised_detector_is_there_once() -> None:
    names = [detector.name for detector in ALL]
    assert len(names) == len(set(names))
    assert set(names) == PROMISED


def test_a_healthy_chain_has_no_findings_at_all() -> None:
    run = run_detectors(snapshot(), LIMITS, ())
    assert run.findings == ()
    assert run.skipped == {}
    assert run.broken == {}


def test_a_detector_is_found_by_name_and_a_near_miss_is_suggested() -> None:
    assert find("chain_held").name == "chain_held"
    with pytest.raises(UsageError, match="did you mean orphaned_generation"):
        find("orphaned_generatoin")
    with pytest.raises(UsageError, match="--list-detectors"):
        find("\x00" * 5000)


@pytest.mark.parametrize("detector", [one for one in ALL if one.needs], ids=lambda one: one.name)
def test_a_detector_is_skipped_while_a_source_that_it_needs_is_unobserved(detector: Detector) -> None:
    for source in detector.needs:
        seen = snapshot(sources=sources({source: "it did not answer"}))
        assert run_detectors(seen, LIMITS, ()).skipped[detector.name] == f"{source.value}: it did not answer"


def test_a_field_that_is_unobserved_skips_even_when_the_report_forgot_it() -> None:
    run = run_detectors(snapshot(queue=blind("gone")), LIMITS, (), (probe("one", Source.QUEUE), probe("two")))
    assert run.skipped == {"one": "queue: gone"}
    assert [finding.detector for finding in run.findings] == ["two"]


def test_a_source_that_a_site_never_has_skips_as_well() -> None:
    never = SourceReport(unavailable={Source.CYCLES: "no cycle records"})
    assert run_detectors(snapshot(sources=never), LIMITS, (), (probe("one", Source.CYCLES),)).skipped == {
        "one": "cycles: no cycle records"
    }
    nobody = snapshot(queue=Unavailable("no scheduler"))
    assert run_detectors(nobody, LIMITS, (), (probe("one", Source.QUEUE),)).skipped == {"one": "queue: no scheduler"}


def test_without_accounting_what_scontrol_says_is_enough() -> None:
    reduced = SourceReport(unavailable={Source.ACCOUNTING: "disabled"})
    assert run_detectors(snapshot(sources=reduced), LIMITS, (), (probe("one", Source.ACCOUNTING),)).findings
    gone = snapshot(accounting=Unobserved("down"), sources=reduced)
    assert run_detectors(gone, LIMITS, (), (probe("one", Source.ACCOUNTING),)).skipped


def test_a_disabled_detector_says_so() -> None:
    run = run_detectors(snapshot(), LIMITS, {"one"}, (probe("one"), probe("two")))
    assert run.skipped == {"one": "disabled"}
    assert [finding.detector for finding in run.findings] == ["two"]


def test_one_broken_detector_is_reported_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    run = run_detectors(snapshot(), LIMITS, (), (broken("bad"), probe("good")))
    assert run.broken == {"bad": "RuntimeError: a number that\\x0awas none"}
    assert [finding.detector for finding in run.findings] == ["good"]
    assert "a detector broke name=bad" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("order", [(Severity.INFO, Severity.CRITICAL), (Severity.CRITICAL, Severity.INFO)])
def test_of_two_findings_about_one_incident_the_more_severe_stays(order: tuple[Severity, ...]) -> None:
    run = run_detectors(snapshot(), LIMITS, (), (probe("one", severities=order),))
    assert [finding.severity for finding in run.findings] == [Severity.CRITICAL]


def test_an_orphan_is_found_through_the_registry() -> None:
    seen = snapshot(
        queue=queue(row(11, 0, "FAILED"), row(11, 3, "PENDING"), *queued_rows(12)), accounting={11: (account(11, 0),)}
    )
    assert "orphaned_generation" in {finding.detector for finding in run_detectors(seen, LIMITS, ()).findings}
