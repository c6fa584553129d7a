"""The gauges of a chain: what is known, and nothing for what is not."""

from __future__ import annotations

from msgspec.structs import replace

from nvrx_chain.clock import format_time
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import Cycle, Finding, LogActivity, Severity
from nvrx_watch.sinks.chain_metrics import ChainMetrics, measure
from tests.unit.watch import build


def gauges(**overrides: object) -> ChainMetrics:
    return measure(build.snapshot(**overrides), (), 0.25, None, build.NOW)


def test_a_healthy_chain_in_numbers() -> None:
    found = gauges(memory=build.remember({ITERATION_NAME: (150, 90.0)}))
    assert (found.chain, found.name) == (build.subject().key, build.NAME)
    assert (found.generation, found.cycle, found.iteration, found.log_iteration) == (0, 0, 150, 150)
    assert found.seconds_since_progress == 90
    assert (found.hot_spares, found.cold_spares, found.queued_generations) == (1, 2, 2)
    assert found.pass_seconds == 0.25


def test_a_completing_task_is_no_spare() -> None:
    rows = (*(build.row(11, task) for task in range(2)), build.row(11, 2, "COMPLETING"))
    assert gauges(queue=build.queue(*rows)).hot_spares == 0


def test_what_could_not_be_seen_has_no_number() -> None:
    found = gauges(
        queue=build.blind(),
        iteration=build.blind(),
        generations=build.generations(g11=build.running_generation(11, cycles=build.blind(), log=build.blind())),
    )
    assert found.cycle is None
    assert found.iteration is None
    assert found.log_iteration is None
    assert found.hot_spares is None
    assert found.cold_spares is None
    assert found.queued_generations is None
    assert found.seconds_since_progress is None
    assert found.last_good_pass_age_seconds is None


def test_a_chain_that_has_not_begun_has_no_generation() -> None:
    rows = build.queued_rows(11)
    found = gauges(queue=build.queue(*rows), generations=(build.generation(11),))
    assert found.generation is None
    assert found.queued_generations == 1


def test_hot_spares_of_a_foreign_chain_come_from_its_open_cycle() -> None:
    assert gauges(subject=build.foreign_subject()).hot_spares == 1
    ended = build.running_generation(11, cycles=(build.cycle(0),))
    assert gauges(subject=build.foreign_subject(), generations=build.generations(g11=ended)).hot_spares is None


def test_findings_are_counted_by_detector_and_severity() -> None:
    one = Finding(detector="suspect_node", severity=Severity.WARNING, scope="n1", title="t")
    findings = (one, replace(one, scope="n2"), replace(one, scope="n3", severity=Severity.CRITICAL))
    found = measure(build.snapshot(), findings, 0.1, None, build.NOW)
    assert found.findings == {("suspect_node", Severity.WARNING): 2, ("suspect_node", Severity.CRITICAL): 1}


def test_the_age_of_the_last_good_pass_is_never_negative() -> None:
    for seconds, age in ((30.0, 30.0), (-30.0, 0.0)):
        found = measure(build.snapshot(), (), 0.1, format_time(build.ago(seconds)), build.NOW)
        assert found.last_good_pass_age_seconds == age
        assert found.last_good_pass_at == build.ago(seconds).timestamp()
    assert measure(build.snapshot(), (), 0.1, "garbage", build.NOW).last_good_pass_at is None


def test_numbers_that_no_gauge_can_hold_are_left_out() -> None:
    huge = 10**400
    cycle = Cycle(
        attempt=0, number=huge, started_at=None, ended_at=None, active_nodes=(), standby_nodes=(), log_file=""
    )
    log = LogActivity(bytes=huge, newest="x", iteration=-huge)
    generation = build.running_generation(11, cycles=(cycle,), log=log)
    found = gauges(iteration=huge, generations=build.generations(g11=generation))
    assert (found.iteration, found.cycle, found.log_iteration) == (None, None, None)
