"""A node is suspected on evidence that tells it from the others, and on nothing less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.model import AccountedTask
from nvrx_watch.detectors.suspects import DETECTORS, find_suspect_node
from nvrx_watch.model import Cycle, Severity, Snapshot, Source, Unavailable
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    account,
    ago,
    cycle,
    ended_generation,
    generations,
    queue,
    running_generation,
    running_rows,
    snapshot,
    sources,
    verdict,
)
from tests.unit.watch.build_cycles import (
    TIMES,
    CountingCycles,
    found,
    hostile_snapshots,
    row_of,
    skips_without,
    steers_nobody,
    with_cycles,
)

(SUSPECT,) = DETECTORS
LONG = cycle(0, started=9000, ended=1000, active_nodes=("n1", "n2"))


def short(*active: tuple[str, ...], seconds: float = 100) -> tuple[Cycle, ...]:
    """Short cycles in a row on these nodes, numbered from 1."""
    rows = row_of(len(active), first=1, each=seconds)
    return tuple(
        cycle(one.number, started_at=one.started_at, ended_at=one.ended_at, active_nodes=names)
        for one, names in zip(rows, active, strict=True)
    )


def scopes(seen: Snapshot) -> list[str]:
    return [finding.scope for finding in found(SUSPECT, seen)]


# by cycles


def test_the_node_that_came_with_the_short_cycles_is_suspected() -> None:
    (finding,) = found(SUSPECT, with_cycles(LONG, *short(("n1", "n9"), ("n1", "n9"), ("n1", "n9"))))
    assert finding.severity is Severity.WARNING
    assert finding.key == "suspect_node:n9"
    assert "in each of the last 3 cycles, all shorter than 10m, and in none of the longer ones" in finding.title
    assert "sbatch --exclude=n9" in finding.advice
    assert "scontrol update JobId=12 ExcNodeList=n9 (and 13)" in finding.advice
    assert "scontrol update NodeName=n9 State=DRAIN" in finding.advice
    assert finding.action is None


def test_without_a_long_cycle_the_node_that_stays_while_the_others_change_is_suspected() -> None:
    assert scopes(with_cycles(*short(("n1", "n9"), ("n2", "n9"), ("n3", "n9")))) == ["n9"]


def test_two_short_cycles_are_too_few_and_ten_minutes_are_not_short() -> None:
    assert scopes(with_cycles(LONG, *short(("n1", "n9"), ("n1", "n9")))) == []
    nodes = ("n1", "n9")
    assert scopes(with_cycles(LONG, *short(nodes, nodes, nodes, seconds=600))) == []
    assert scopes(with_cycles(LONG, *short(nodes, nodes, nodes, seconds=599))) == ["n9"]


def test_nodes_that_are_in_every_cycle_cannot_be_told_apart() -> None:
    same = ("n1", "n2")
    assert scopes(with_cycles(*short(same, same, same))) == []
    # One of four changed: three are common, and that is no evidence against three.
    changing = short(("n1", "n2", "n3", "n4"), ("n1", "n2", "n3", "n5"), ("n1", "n2", "n3", "n6"))
    assert scopes(with_cycles(*changing)) == []


def test_a_single_node_is_all_of_its_shape_and_no_suspect() -> None:
    assert scopes(with_cycles(*short(("n1",), ("n1",), ("n1",)))) == []


def test_nodes_that_trade_places_with_standby_ones_are_not_blamed() -> None:
    cycles = short(("n1", "n2"), ("n2", "n3"), ("n3", "n1"))
    assert scopes(with_cycles(LONG, *cycles)) == []


def test_a_node_that_also_trained_in_a_long_cycle_is_not_blamed() -> None:
    long = cycle(0, started=9000, ended=1000, active_nodes=("n8", "n9"))
    assert scopes(with_cycles(long, *short(("n1", "n9"), ("n2", "n9"), ("n3", "n9")))) == []


def test_a_long_cycle_since_then_ends_the_suspicion() -> None:
    nodes = ("n1", "n9")
    bad = with_cycles(LONG, *short(nodes, nodes, nodes), cycle(9, started=599, ended=None))
    well = with_cycles(LONG, *short(nodes, nodes, nodes), cycle(9, started=600, ended=None))
    assert (scopes(bad), scopes(well)) == (["n9"], [])


def test_cycles_of_two_generations_are_one_row() -> None:
    first, *rest = short(("n1", "n9"), ("n2", "n9"), ("n3", "n9"))
    before, now = ended_generation(10, cycles=(LONG, first)), running_generation(11, cycles=tuple(rest))
    assert scopes(snapshot(generations=generations(g10=before, g11=now))) == ["n9"]


# by tasks


def accounted(*rows: AccountedTask, **overrides: Any) -> Snapshot:
    jobs = {one.array_job_id for one in rows}
    by_job = {job: tuple(one for one in rows if one.array_job_id == job) for job in sorted(jobs)}
    return snapshot(**{"accounting": by_job, **overrides})


def test_task_after_task_dying_on_one_node_is_suspicious() -> None:
    rows = [account(11, task, "FAILED", nodelist="n1") for task in range(5)]
    (finding,) = found(SUSPECT, accounted(*rows))
    assert finding.key == "suspect_node:n1"
    assert finding.title == ("node n1 may be bad: 5 tasks failed on it within 2h00m: 11_0, 11_1, 11_2, 11_3, 11_4")


def test_two_tasks_are_enough_and_one_is_not() -> None:
    assert scopes(accounted(account(11, 0, "NODE_FAIL", nodelist="n1"), account(11, 3, "FAILED", nodelist="n1")))
    assert not scopes(accounted(account(11, 0, "NODE_FAIL", nodelist="n1"), account(11, 3, "FAILED", nodelist="n2")))
    # The same task twice, as after a requeue.
    assert not scopes(accounted(account(11, 0, "FAILED", nodelist="n1"), account(11, 0, "FAILED", nodelist="n1")))


def test_a_node_on_which_one_task_of_each_generation_died_alone_is_suspicious() -> None:
    alone = [account(job, 0, "NODE_FAIL", nodelist="n1") for job in (10, 11)]
    others = [account(job, task, "COMPLETED") for job in (10, 11) for task in (1, 2)]
    assert scopes(accounted(*alone, *others)) == ["n1"]


def test_generations_that_fail_as_a_whole_blame_no_node() -> None:
    rows = [account(job, task, "FAILED") for job in (9, 10, 11) for task in range(4)]
    assert scopes(accounted(*rows)) == []
    well = [account(11, task, "COMPLETED") for task in range(4, 20)]
    assert scopes(accounted(*rows, *well)) == []


def test_the_window_decides() -> None:
    rows = [account(11, task, "FAILED", nodelist="n1", ended_at=ago(7200)) for task in range(2)]
    old = [account(11, task, "FAILED", nodelist="n1", ended_at=ago(7201)) for task in range(2)]
    unknown = [account(11, task, "FAILED", nodelist="n1", ended_at=None) for task in range(2)]
    assert (scopes(accounted(*rows)), scopes(accounted(*old)), scopes(accounted(*unknown))) == (["n1"], [], [])


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 1001", "TIMEOUT", "PREEMPTED", "RUNNING"])
def test_other_ends_are_no_fault_of_a_node(state: str) -> None:
    assert scopes(accounted(*(account(11, task, state, nodelist="n1") for task in range(5)))) == []


@pytest.mark.parametrize("code", [15, 75, 76, 77, 78, 93, 143])
def test_a_task_that_left_because_of_something_elsewhere_blames_no_node(code: int) -> None:
    assert scopes(accounted(*(account(11, t, "FAILED", nodelist="n1", exit_code=code) for t in range(5)))) == []
    assert scopes(accounted(*(account(11, t, "FAILED", nodelist="n1", exit_signal=15) for t in range(5)))) == []


@pytest.mark.parametrize("nodelist", ["n[1-2]", "n1,n2", "", "None assigned", "n1 --exclude=n2"])
def test_of_a_task_with_several_nodes_or_none_no_node_is_blamed(nodelist: str) -> None:
    assert scopes(accounted(*(account(11, task, "FAILED", nodelist=nodelist) for task in range(5)))) == []


def test_both_kinds_of_evidence_are_one_finding() -> None:
    cycles = short(("n1", "n9"), ("n2", "n9"), ("n3", "n9"))
    rows = tuple(account(11, task, "FAILED", nodelist="n9") for task in range(2))
    (finding,) = found(SUSPECT, with_cycles(*cycles, accounting={11: rows}))
    assert "trained in each" in finding.title
    assert len(finding.details) == 1
    assert "2 tasks failed on it" in finding.details[0]


def test_a_chain_that_is_over_or_unseen_suspects_nobody() -> None:
    rows = tuple(account(11, task, "FAILED", nodelist="n9") for task in range(5))
    assert scopes(accounted(*rows, verdict=verdict())) == []
    for source in (Source.CYCLES, Source.ACCOUNTING):
        assert skips_without(SUSPECT, source, accounted(*rows, sources=sources({source: "it hangs"})))


def test_a_site_without_accounting_still_compares_cycles_and_what_scontrol_knows() -> None:
    reduced = sources(unavailable={Source.ACCOUNTING: "accounting storage is disabled"})
    cycles = short(("n1", "n9"), ("n2", "n9"), ("n3", "n9"))
    assert scopes(with_cycles(*cycles, accounting={}, sources=reduced)) == ["n9"]
    unavailable = Unavailable("accounting storage is disabled")
    assert [one.scope for one in find_suspect_node(with_cycles(*cycles, accounting=unavailable), WatchThresholds())]


def test_without_queued_generations_no_command_for_them_is_printed() -> None:
    cycles = short(("n1", "n9"), ("n2", "n9"), ("n3", "n9"))
    (finding,) = found(SUSPECT, with_cycles(*cycles, queue=queue(*running_rows(11))))
    assert "ExcNodeList" not in finding.advice


def test_a_hostile_node_name_gets_into_no_command() -> None:
    cycles = short(("n1", "x; rm -rf /"), ("n2", "x; rm -rf /"), ("n3", "x; rm -rf /"))
    assert scopes(with_cycles(*cycles)) == []


def test_of_twenty_thousand_cycles_only_the_tail_is_looked_at() -> None:
    rows = [CountingCycles(200, cycle(0, started=200, ended=100)) for _ in range(100)]
    jobs = range(1000, 1100)
    ended = tuple(ended_generation(job, cycles=one) for job, one in zip(jobs, rows, strict=True))
    assert scopes(snapshot(generations=ended)) == []
    assert sum(one.touched for one in rows) <= 41


_ROWS = st.builds(
    account,
    st.integers(10, 11),
    st.one_of(st.none(), st.integers(0, 9)),
    st.sampled_from(["FAILED", "NODE_FAIL", "COMPLETED", "RUNNING", "SOMETHING_NEW"]),
    ended_at=TIMES,
    exit_code=st.one_of(st.none(), st.integers(-1, 10**12)),
    nodelist=st.one_of(st.sampled_from(["n1", "n[1-3]", ""]), st.text(max_size=8)),
)


@given(seen=hostile_snapshots(), rows=st.lists(_ROWS, max_size=8))
def test_no_cycle_and_no_row_makes_the_detector_raise(seen: Snapshot, rows: list[AccountedTask]) -> None:
    given_rows = accounted(*rows, subject=seen.subject, generations=seen.generations, queue=seen.queue)
    for finding in find_suspect_node(given_rows, WatchThresholds()):
        assert steers_nobody(finding)
        assert finding.action is None
