"""Overlap, a lost task 0, an assembly that drags on, and strangers in the chain's singleton."""

from __future__ import annotations

import pytest

from nvrx_chain.slurm.model import QueuedTask
from nvrx_watch.detectors.chain_course import (
    find_assembling,
    find_foreign_jobs,
    find_not_leaving,
    find_overlap,
    find_unreachable,
)
from nvrx_watch.detectors.facts import holds_node
from nvrx_watch.memory import completing_name, lease_name
from nvrx_watch.model import ActionKind, Generation, Queue, Severity, Snapshot
from nvrx_watch.thresholds import WatchThresholds
from tests.unit.watch.build import (
    ago,
    ago_text,
    blind,
    closed,
    foreign_subject,
    generation,
    generations,
    lease,
    node,
    nodes,
    queue,
    queued_rows,
    remember,
    rendezvous,
    row,
    running_generation,
    running_rows,
    snapshot,
)

LIMITS = WatchThresholds(overlap_grace=30, lease_stale=90, not_leaving=300, assembling=900)


def test_a_healthy_chain_goes_its_course() -> None:
    for check in (find_overlap, find_unreachable, find_not_leaving, find_assembling, find_foreign_jobs):
        assert list(check(snapshot(), LIMITS)) == []


def two(older: str, since: float | None = 31, **overrides: object) -> Snapshot:
    started = ago(since) if since is not None else None
    rows = (row(11, 1, older), row(11, 2, "FAILED"), row(12, 0, "RUNNING", started_at=started, nodelist="n4"))
    values: dict[str, object] = {"queue": queue(*rows), "generations": generations(g12=running_generation(12))}
    return snapshot(**{**values, **overrides})


@pytest.mark.parametrize(("state", "severity"), [("COMPLETING", Severity.WARNING), ("RUNNING", Severity.CRITICAL)])
def test_an_older_generation_that_still_holds_nodes_is_an_overlap(state: str, severity: Severity) -> None:
    (finding,) = find_overlap(two(state), LIMITS)
    assert finding.severity is severity
    assert finding.key == "generation_overlap:11-12"
    assert "11_1" in finding.details[0]
    assert finding.action is None


@pytest.mark.parametrize(("since", "fires"), [(30, False), (31, True), (-100, False)])
def test_an_overlap_as_long_as_a_kill_wait_is_no_news(since: float, fires: bool) -> None:
    assert bool(list(find_overlap(two("COMPLETING", since), LIMITS))) is fires


def test_without_start_times_this_watchers_memory_decides() -> None:
    assert list(find_overlap(two("COMPLETING", None), LIMITS)) == []
    for seconds, fires in ((30, False), (31, True)):
        memory = remember({completing_name(11): (1, seconds)})
        assert bool(list(find_overlap(two("COMPLETING", None, memory=memory), LIMITS))) is fires
    nothing = remember({completing_name(11): (0, 9999)})
    assert list(find_overlap(two("COMPLETING", None, memory=nothing), LIMITS)) == []


def test_two_generations_on_one_node_are_named() -> None:
    rows = (row(11, 0, "COMPLETING"), row(12, 0, "RUNNING", started_at=ago(60)))
    (finding,) = find_overlap(snapshot(queue=queue(*rows)), LIMITS)
    assert "both are on n1" in finding.details


def test_each_older_generation_is_an_incident_of_its_own() -> None:
    rows = (row(11, 0, "COMPLETING"), row(12, 1, "COMPLETING"), row(13, 2, "RUNNING", started_at=ago(60)))
    assert [one.scope for one in find_overlap(snapshot(queue=queue(*rows)), LIMITS)] == ["11-13", "12-13"]


def test_an_overlap_needs_the_queue() -> None:
    assert list(find_overlap(two("RUNNING", queue=blind()), LIMITS)) == []


def lost(state: str = "allocated*", still: float | None = 90, **overrides: object) -> Snapshot:
    """Task 0 of 11 runs on n1 in this state; its lease was seen to stand still for so long."""
    memory = remember({lease_name(11, 0): (700, still)}) if still is not None else remember({})
    values: dict[str, object] = {"nodes": nodes(node("n1", state)), "memory": memory}
    return snapshot(**{**values, **overrides})


@pytest.mark.parametrize("state", ["allocated*", "down", "down*", "draining*"])
def test_a_dead_node_and_a_still_lease_together_ask_for_a_fence(state: str) -> None:
    (finding,) = find_unreachable(lost(state), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "task0_unreachable:11"
    assert finding.action is not None
    assert finding.action.kind is ActionKind.FENCE
    assert finding.action.array_job_id == 11
    assert finding.action.command == "scancel 11"


@pytest.mark.parametrize("still", [0, 5, 89])
def test_a_lease_that_moves_outweighs_whatever_slurm_says_of_the_node(still: float) -> None:
    assert list(find_unreachable(lost("down*", still), LIMITS)) == []


def test_a_lease_that_this_watcher_has_not_seen_before_is_not_still() -> None:
    assert list(find_unreachable(lost("down*", None), LIMITS)) == []
    moved = remember({lease_name(11, 0): (699, 9999)})
    assert list(find_unreachable(lost("down*", memory=moved), LIMITS)) == []


@pytest.mark.parametrize("state", ["allocated", "mixed", "draining", "drained", "unheard_of"])
def test_a_still_lease_alone_asks_for_a_look_and_for_nothing_else(state: str) -> None:
    (finding,) = find_unreachable(lost(state), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.action is None


def test_nodes_that_could_not_be_read_leave_the_lease_alone() -> None:
    (finding,) = find_unreachable(lost(nodes=blind()), LIMITS)
    assert finding.action is None
    (finding,) = find_unreachable(lost(nodes={}), LIMITS)
    assert finding.action is None


def test_a_slow_writer_gets_four_of_its_intervals() -> None:
    slow = generations(g11=running_generation(leases={0: lease(11, 0, interval_seconds=60.0)}))
    assert list(find_unreachable(lost(still=239, generations=slow), LIMITS)) == []
    assert list(find_unreachable(lost(still=240, generations=slow), LIMITS))


@pytest.mark.parametrize("interval", [float("nan"), float("inf"), -1e300])
def test_an_absurd_interval_never_makes_a_fence_sooner(interval: float) -> None:
    odd = generations(g11=running_generation(leases={0: lease(11, 0, interval_seconds=interval)}))
    assert list(find_unreachable(lost(still=89, generations=odd), LIMITS)) == []


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "PENDING", "FAILED", "XYZ"])
def test_only_a_task_0_that_slurm_calls_running_can_be_lost(state: str) -> None:
    assert list(find_unreachable(lost(queue=queue(row(11, 0, state, nodelist="n1"))), LIMITS)) == []


@pytest.mark.parametrize("given", [closed(11), blind()])
def test_a_generation_that_is_closed_or_may_be_is_left_to_its_peers(given: object) -> None:
    over = generations(g11=running_generation(closed=given))
    assert list(find_unreachable(lost(generations=over), LIMITS)) == []


def test_the_dead_node_of_a_task_without_a_lease_is_a_warning() -> None:
    foreign = {"subject": foreign_subject(), "generations": (generation(11),)}
    (finding,) = find_unreachable(lost(still=None, **foreign), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.action is None


@pytest.mark.parametrize("nodelist", ["", "n[1-", "(null)", "a\x1b[2J", "n[1-999999999]"])
def test_a_node_list_that_is_none_proves_nothing(nodelist: str) -> None:
    (finding,) = find_unreachable(lost(queue=queue(row(11, 0, nodelist=nodelist))), LIMITS)
    assert finding.action is None
    assert finding.title.isprintable()


def test_without_a_queue_nobody_is_lost() -> None:
    assert list(find_unreachable(lost(queue=blind()), LIMITS)) == []


def staying(seconds: float = 301, state: str = "down", still: float | None = 90, **overrides: object) -> Snapshot:
    """Generation 11 was closed so long ago and task 0 of it still runs on n1."""
    over = running_generation(closed=closed(11, "lease_lost", closed_at=ago_text(seconds)))
    rows = (row(11, 0, nodelist="n1"), *queued_rows(12))
    return lost(state, still, **{"generations": generations(g11=over), "queue": queue(*rows), **overrides})


def test_a_closed_generation_that_stays_on_a_dead_node_asks_for_a_fence() -> None:
    (finding,) = find_not_leaving(staying(), LIMITS)
    assert finding.severity is Severity.CRITICAL
    assert finding.key == "closed_generation_stays:11"
    assert finding.action is not None
    assert (finding.action.kind, finding.action.array_job_id) == (ActionKind.FENCE, 11)


@pytest.mark.parametrize(
    "given", [{"state": "allocated"}, {"still": 5}, {"still": None}, {"nodes": blind()}, {"nodes": {}}]
)
def test_a_closed_generation_whose_task_0_may_live_is_for_a_person(given: dict[str, object]) -> None:
    (finding,) = find_not_leaving(staying(**given), LIMITS)  # type: ignore[arg-type]
    assert finding.severity is Severity.CRITICAL
    assert finding.action is None
    assert "scancel 11" in finding.advice


@pytest.mark.parametrize(("zero", "asks"), [((), False), ((row(11, 0, "NODE_FAIL"),), True)])
def test_a_peer_that_stays_is_found_too(zero: tuple[QueuedTask, ...], asks: bool) -> None:
    (finding,) = find_not_leaving(staying(queue=queue(*zero, row(11, 1), *queued_rows(12))), LIMITS)
    assert (finding.action is not None) is asks
    assert "11_1 RUNNING on n2" in finding.details[1]


@pytest.mark.parametrize(
    ("seconds", "overrides"),
    [
        (300, {}),
        (-5, {}),
        (9999, {"queue": blind()}),
        (9999, {"queue": queue(row(11, 0, "COMPLETING"))}),
        (9999, {"queue": queue(*queued_rows(12))}),
        (9999, {"generations": generations(g11=running_generation(closed=blind()))}),
        (9999, {"generations": generations()}),
    ],
)
def test_a_closed_generation_gets_its_time_to_leave(seconds: float, overrides: dict[str, object]) -> None:
    assert list(find_not_leaving(staying(seconds, **overrides), LIMITS)) == []  # type: ignore[arg-type]


def silent(seconds: float, **overrides: object) -> Snapshot:
    """Task 0 of 11 runs for so long and has written nothing."""
    rows = tuple(row(11, task, started_at=ago(seconds)) for task in range(3))
    values: dict[str, object] = {"generations": generations(g11=generation(11)), "queue": queue(*rows)}
    return snapshot(**{**values, **overrides})


@pytest.mark.parametrize(("seconds", "severity"), [(901, Severity.WARNING), (1801, Severity.CRITICAL)])
def test_a_task_0_that_runs_and_writes_nothing_is_reported(seconds: float, severity: Severity) -> None:
    (finding,) = find_assembling(silent(seconds), LIMITS)
    assert finding.severity is severity
    assert finding.key == "generation_assembling:11"
    assert "published no rendezvous" in finding.title
    assert finding.action is None


@pytest.mark.parametrize(
    ("seconds", "given"),
    [
        (900, generation(11)),
        (9999, running_generation()),
        (9999, generation(11, closed=closed(11))),
        (9999, running_generation(rendezvous=blind())),
    ],
)
def test_a_start_that_gets_its_time_or_was_seen_is_not_silent(seconds: float, given: Generation) -> None:
    assert list(find_assembling(silent(seconds, generations=generations(g11=given)), LIMITS)) == []


def test_a_job_that_is_no_array_is_no_generation_of_a_foreign_chain() -> None:
    """The parts of a heterogeneous job have one name and run side by side."""
    rows = (row(11, 0, is_array=False, started_at=ago(900)), row(12, 0, is_array=False, started_at=ago(900)))
    assert list(find_overlap(snapshot(queue=queue(*rows), subject=foreign_subject()), LIMITS)) == []
    assert list(find_overlap(snapshot(queue=queue(*rows)), LIMITS))


def test_a_task_that_runs_on_another_cluster_holds_no_node_here() -> None:
    seen = snapshot(queue=queue(row(11, 0, started_at=ago(900)), row(12, 0, "REVOKED", started_at=ago(900))))
    assert not holds_node(seen.queue.rows(12)[0])  # type: ignore[union-attr]


def assembling(published: float | None = 901, **overrides: object) -> Snapshot:
    meeting = rendezvous(11, started_at=None, published_at=ago_text(published) if published is not None else "noon")
    waiting: Generation = running_generation(rendezvous=meeting, joined=frozenset({0}), cycles=None)
    rows = (row(11, 0, started_at=ago(7200)), *(row(11, task, "PENDING", reason="Resources") for task in range(1, 5)))
    values: dict[str, object] = {"generations": generations(g11=waiting), "queue": queue(*rows, *queued_rows(12))}
    return snapshot(**{**values, **overrides})


def test_an_assembly_that_drags_on_says_who_is_missing_why_and_what_it_costs() -> None:
    (finding,) = find_assembling(assembling(), LIMITS)
    assert finding.severity is Severity.WARNING
    assert "1 of 2 have joined" in finding.title
    assert finding.details == ("pending: 4 Resources", "2.0 node-hours held without training")


@pytest.mark.parametrize(("published", "fires"), [(900, False), (901, True), (-5, False), (None, False)])
def test_an_assembly_gets_its_time(published: float | None, fires: bool) -> None:
    assert bool(list(find_assembling(assembling(published), LIMITS))) is fires


def test_who_left_again_has_not_joined() -> None:
    waiting = running_generation(
        rendezvous=rendezvous(11, started_at=None, published_at=ago_text(2000)),
        joined=frozenset({0, 1}),
        left=frozenset({1}),
    )
    (finding,) = find_assembling(assembling(generations=generations(g11=waiting)), LIMITS)
    assert "1 of 2" in finding.title


@pytest.mark.parametrize(
    "overrides",
    [
        {"queue": blind()},
        {"subject": foreign_subject()},
        {"queue": queue(row(11, 0, "FAILED"), row(11, 1, "PENDING"))},
        {"queue": queue(row(11, 1, "PENDING"))},
        {"generations": generations()},
        {"generations": generations(g11=running_generation(rendezvous=blind()))},
        {
            "generations": generations(
                g11=running_generation(
                    rendezvous=rendezvous(11, started_at=None, published_at=ago_text(2000)), closed=closed(11)
                )
            )
        },
    ],
)
def test_what_does_not_assemble_is_not_reported(overrides: dict[str, object]) -> None:
    assert list(find_assembling(assembling(**overrides), LIMITS)) == []


def with_foreign(**overrides: object) -> Snapshot:
    return snapshot(queue=Queue(arrays={11: running_rows(11)}, **overrides))


def test_a_job_with_the_chains_name_serialises_with_it() -> None:
    strangers = (row(99, 0, comment=""), row(99, 1, "PENDING", comment=""))
    (finding,) = find_foreign_jobs(with_foreign(foreign=strangers), LIMITS)
    assert finding.severity is Severity.WARNING
    assert finding.key == "foreign_job_in_chain:99"
    assert "only one of them run" in finding.title
    assert "1 RUNNING, 1 PENDING (99_0, 99_1)" in finding.details[0]
    assert finding.action is None


def test_a_job_with_the_chains_comment_is_told_apart() -> None:
    (finding,) = find_foreign_jobs(with_foreign(foreign=(row(99, 0, name="other"),)), LIMITS)
    assert "carries the chain's comment" in finding.title


def test_an_id_that_the_queue_shows_differently_is_doubtful() -> None:
    (finding,) = find_foreign_jobs(with_foreign(doubtful={12: "job 12_0 belongs to 'eve'"}), LIMITS)
    assert finding.key == "foreign_job_in_chain:12"
    assert "belongs to 'eve'" in finding.details[0]


def test_an_ended_stranger_is_nobody() -> None:
    assert list(find_foreign_jobs(with_foreign(foreign=(row(99, 0, "COMPLETED"),)), LIMITS)) == []
    assert list(find_foreign_jobs(snapshot(queue=blind()), LIMITS)) == []
