"""The nodes of a run: the array task is the unit of spare capacity, and a row that says little is no proof."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.detectors.nodes import DETECTORS, MOST_NODE_FINDINGS
from nvrx_watch.model import Cycle, Severity, Snapshot, Source, Unavailable
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    ago,
    blind,
    closed,
    cycle,
    foreign_subject,
    generations,
    manifest,
    node,
    nodes,
    queue,
    queued_rows,
    row,
    running_generation,
    running_rows,
    shape,
    snapshot,
    sources,
    subject,
    verdict,
)
from tests.unit.watch.build_cycles import found, hostile_snapshots, named, skips_without, steers_nobody, with_cycles

SPARES = named(DETECTORS, "spares_exhausted")
DRAINED = named(DETECTORS, "drained_active_node")
SHARED = named(DETECTORS, "duplicate_node")


def test_a_healthy_chain_has_no_trouble_with_nodes() -> None:
    for detector in DETECTORS:
        assert found(detector, snapshot()) == ()


# spares_exhausted


def _running(*rows: QueuedTask, **overrides: object) -> Snapshot:
    return snapshot(**{"queue": queue(*rows, *queued_rows(12)), **overrides})


BARE = (row(11, 0), row(11, 1), row(11, 2, "FAILED"), row(11, 3, "NODE_FAIL"), row(11, 4, "COMPLETED"))


def test_training_tasks_alone_are_no_spares() -> None:
    (finding,) = found(SPARES, _running(*BARE))
    assert finding.severity is Severity.WARNING
    assert finding.key == "spares_exhausted:11"
    assert finding.title == "generation 11 has no spare left: 2 of 2 training tasks run"
    assert finding.details == ("it was submitted with 1 hot spare and 2 cold spares",)


def test_one_task_more_or_one_that_waits_is_a_spare() -> None:
    assert found(SPARES, _running(*BARE[:2], row(11, 3))) == ()
    assert found(SPARES, _running(*BARE[:2], row(11, 4, "PENDING"))) == ()


def test_a_task_on_its_way_out_is_no_spare() -> None:
    (finding,) = found(SPARES, _running(row(11, 0), row(11, 1, "COMPLETING"), row(11, 2)))
    assert "2 of 2" in finding.title


def test_a_row_that_stands_for_several_tasks_may_be_a_spare() -> None:
    assert found(SPARES, _running(row(11, 0), row(11, None, "RUNNING"))) == ()
    assert found(SPARES, _running(*BARE[:2], row(11, None, "PENDING"))) == ()


@pytest.mark.parametrize(
    "overrides",
    [
        {"subject": subject(manifest=manifest(shape=shape(hot_spares=0, cold_spares=0)))},
        {"verdict": verdict()},
        {"generations": generations(g11=running_generation(11, closed=closed(11)))},
        {"queue": queue(row(11, 0, "FAILED"), *queued_rows(12))},
    ],
    ids=["none asked for", "over", "closed", "task 0 ended"],
)
def test_spares_that_nobody_needs_are_not_missed(overrides: dict[str, object]) -> None:
    assert found(SPARES, _running(*BARE, **overrides)) == ()


def _foreign(*cycles: Cycle, rows: tuple[QueuedTask, ...] = BARE) -> Snapshot:
    return with_cycles(*cycles, subject=foreign_subject(), queue=queue(*rows, *queued_rows(12)))


def test_a_foreign_chain_has_lost_its_standby_nodes_only_when_it_had_some() -> None:
    had, lost = cycle(0, standby_nodes=("n3",)), cycle(1, started=500, ended=None, standby_nodes=())
    (finding,) = found(SPARES, _foreign(had, lost))
    assert finding.title == "generation 11 has no standby node left and no task that waits"
    assert found(SPARES, _foreign(cycle(0, standby_nodes=()), lost)) == ()
    assert found(SPARES, _foreign(lost)) == ()
    assert found(SPARES, _foreign(had, cycle(1, started=500, ended=None))) == ()
    assert found(SPARES, _foreign(had, lost, rows=(*BARE[:2], row(11, 4, "PENDING")))) == ()


@pytest.mark.parametrize("source", [Source.QUEUE, Source.CYCLES])
def test_unseen_spares_are_not_gone(source: Source) -> None:
    assert skips_without(SPARES, source, _running(*BARE, sources=sources({source: "it hangs"})))


def test_a_pass_without_a_scheduler_says_nothing_about_spares() -> None:
    assert skips_without(SPARES, Source.QUEUE, _running(*BARE, queue=Unavailable("no scheduler is asked")))


# drained_active_node


@pytest.mark.parametrize("state", ["draining", "drng", "drained", "down", "down*", "allocated*", "failg", "error"])
def test_a_node_that_slurm_takes_away_from_a_running_task(state: str) -> None:
    (finding,) = found(DRAINED, snapshot(nodes=nodes(node("n2", state, reason="Xid 79 [root@2026]"))))
    assert finding.severity is Severity.WARNING
    assert finding.key == "drained_active_node:n2"
    assert finding.title == "drained, down or silent: node n2, where 11_1 runs"
    assert finding.details[0].startswith(f"state: {state}")
    assert finding.details[1] == "Slurm's reason: Xid 79 [root@2026]"


@pytest.mark.parametrize(("state", "says"), [("draining", "lets its task end"), ("down*", "SlurmdTimeout")])
def test_a_silent_node_and_a_draining_one_get_advice_of_their_own(state: str, says: str) -> None:
    (finding,) = found(DRAINED, snapshot(nodes=nodes(node("n2", state))))
    assert says in finding.advice


@pytest.mark.parametrize("state", ["mixed", "allocated", "completing", "idle", "reserved", "maint", "something-new"])
def test_a_node_that_serves_is_not_taken_away(state: str) -> None:
    assert found(DRAINED, snapshot(nodes=nodes(node("n2", state)))) == ()


def test_a_drained_node_without_a_running_task_of_the_generation_is_nobodys_loss() -> None:
    # n6 has no task, n4 only one that waits for it, and the task on n3 is on its way out.
    rows = (row(11, 0), row(11, 1), row(11, 2, "COMPLETING"), row(11, 3, "PENDING", nodelist="n4"))
    bad = nodes(node("n6", "down"), node("n4", "drained"), node("n3", "draining"))
    assert found(DRAINED, _running(*rows, nodes=bad)) == ()


def test_a_node_inside_a_list_is_found_and_a_list_that_cannot_be_read_is_left_out() -> None:
    rows = (row(11, 0, nodelist="n[1-2,7]"), row(11, 1, nodelist="n[3-"))
    bad = nodes(node("n7", "draining"), node("n3", "down"))
    (finding,) = found(DRAINED, _running(*rows, nodes=bad))
    assert finding.scope == "n7"


def test_a_cluster_in_trouble_is_one_incident_and_not_a_page_for_each_node() -> None:
    names = [f"m{number}" for number in range(MOST_NODE_FINDINGS + 1)]
    rows = [row(11, place, nodelist=name) for place, name in enumerate(names)]
    few = _running(*rows, nodes=nodes(*(node(name, "down*") for name in names[:-1])))
    assert [one.scope for one in found(DRAINED, few)] == names[:-1]
    (finding,) = found(DRAINED, _running(*rows, nodes=nodes(*(node(name, "down*") for name in names))))
    assert finding.scope == "11"
    assert "9 nodes of generation 11: m[0-8]" in finding.title


@pytest.mark.parametrize("source", [Source.QUEUE, Source.NODES])
def test_unseen_nodes_are_not_drained(source: Source) -> None:
    seen = snapshot(nodes=nodes(node("n2", "down")), sources=sources({source: "it hangs"}))
    assert skips_without(DRAINED, source, seen)
    assert skips_without(DRAINED, Source.NODES, snapshot(nodes=blind()))


def test_the_reason_of_a_node_cannot_steer_a_terminal() -> None:
    (finding,) = found(DRAINED, snapshot(nodes=nodes(node("n2", "down", reason="\x1b[2J\n" + "x" * 9000))))
    assert steers_nobody(finding)
    assert len(finding.details[1]) < 300


# duplicate_node


def test_two_running_tasks_on_one_node_collide() -> None:
    late = row(11, 3, nodelist="n1", started_at=ago(5))
    (finding,) = found(SHARED, _running(*running_rows(11)[:3], late))
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "duplicate_node:11"
    assert finding.title == "tasks 11_0, 11_3 share node n1"
    assert finding.advice.endswith("scancel 11_3")


def test_lists_that_overlap_collide_and_neighbours_do_not() -> None:
    assert len(found(SHARED, _running(row(11, 0, nodelist="n[1-4]"), row(11, 1, nodelist="n[4-8]")))) == 1
    assert found(SHARED, _running(row(11, 0, nodelist="n[1-4]"), row(11, 1, nodelist="n[5-8]"))) == ()


@pytest.mark.parametrize("state", ["COMPLETING", "FAILED", "PENDING"])
def test_a_task_that_leaves_or_waits_shares_nothing(state: str) -> None:
    assert found(SHARED, _running(row(11, 0), row(11, 1, state, nodelist="n1"))) == ()


def test_tasks_of_two_generations_on_one_node_are_another_detectors_business() -> None:
    assert found(SHARED, _running(row(11, 0), row(12, 0, nodelist="n1"))) == ()


@pytest.mark.parametrize("nodelist", ["", "(null)", "None", "n[1-", "None assigned"])
def test_a_list_that_names_no_node_shares_none(nodelist: str) -> None:
    assert found(SHARED, _running(row(11, 0, nodelist=nodelist), row(11, 1, nodelist=nodelist))) == ()


def test_a_row_listed_twice_is_one_task() -> None:
    assert found(SHARED, _running(row(11, 0), row(11, 0))) == ()


def test_an_unseen_queue_shows_no_shared_node() -> None:
    assert skips_without(SHARED, Source.QUEUE, snapshot(queue=blind()))


_ROWS = st.builds(
    row,
    st.just(11),
    st.one_of(st.none(), st.integers(0, 4)),
    st.sampled_from(["RUNNING", "PENDING", "COMPLETING", "FAILED", "SOMETHING_NEW"]),
    nodelist=st.one_of(st.sampled_from(["n1", "n[1-3]", "", "n[1-", "n[1-999999999]"]), st.text(max_size=8)),
)


@given(seen=hostile_snapshots(), rows=st.lists(_ROWS, min_size=1, max_size=6), state=st.text(max_size=8))
def test_no_row_and_no_node_makes_a_detector_raise(seen: Snapshot, rows: list[QueuedTask], state: str) -> None:
    given_rows = snapshot(
        subject=seen.subject,
        generations=seen.generations,
        queue=queue(*rows),
        nodes={name: node(name, state, responding=False, reason=state) for name in ("n1", "n2", state)},
    )
    for detector in DETECTORS:
        for finding in detector.check(given_rows, WatchThresholds()):
            assert steers_nobody(finding)
            assert finding.action is None
