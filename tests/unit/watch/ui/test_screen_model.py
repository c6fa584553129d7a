from __future__ import annotations

from datetime import timedelta

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_watch.action_model import ActionState
from nvrx_watch.history_model import IncidentState
from nvrx_watch.memory import ITERATION_NAME
from nvrx_watch.model import LogActivity, Severity, Source
from nvrx_watch.ui.frame import render_text
from tests.unit.watch import build
from tests.unit.watch.ui.scenes import Scene, finding, history, incident, report


def test_the_wall_is_the_start_of_task_zero_and_the_time_limit() -> None:
    screen = Scene(snapshot=build.snapshot()).screen()
    assert screen.progress.wall_at == build.ago(3600) + timedelta(seconds=86_400)


def test_the_wall_is_found_in_the_accounting_when_the_queue_is_blind() -> None:
    accounting = {11: (build.account(11, 0, "RUNNING", started_at=build.ago(100)),)}
    screen = Scene(snapshot=build.snapshot(queue=Unobserved("down"), accounting=accounting)).screen()
    assert screen.progress.wall_at == build.ago(100) + timedelta(seconds=86_400)


@pytest.mark.parametrize("limit", [None, 10**15])
def test_a_wall_that_cannot_be_known_says_why(limit: int | None) -> None:
    subject = build.subject(manifest=build.manifest(time_limit_seconds=limit))
    progress = Scene(snapshot=build.snapshot(subject=subject)).screen().progress
    assert progress.wall_at is None
    assert progress.wall_why is not None


def test_nothing_runs_into_a_wall_when_nothing_runs() -> None:
    generations = (build.ended_generation(11),)
    progress = (
        Scene(snapshot=build.snapshot(generations=generations, queue=build.queue(*build.queued_rows(12))))
        .screen()
        .progress
    )
    assert (progress.wall_at, progress.wall_why) == (None, None)


def test_ages_and_the_wall_move_without_a_new_pass() -> None:
    memory = build.remember({ITERATION_NAME: (150, 60)}, changes=1)
    screen = Scene(snapshot=build.snapshot(memory=memory)).screen()
    later = render_text(screen.at(build.NOW + timedelta(hours=2)), 80, 24)
    assert "pass 2h00m ago" in later
    assert "saved 150 2h01m ago" in later
    assert "wall       in 21h00m" in later
    assert "#0 2h58m+" in later


def test_a_wall_that_has_passed_is_said_so() -> None:
    screen = Scene(snapshot=build.snapshot()).screen(build.NOW + timedelta(hours=24))
    assert "wall       was due 1h00m ago" in render_text(screen, 80, 24)


def test_an_iteration_never_seen_to_move_is_at_least_so_old() -> None:
    memory = build.remember({ITERATION_NAME: (150, 60)})
    assert "saved 150 over 1m ago" in render_text(Scene(snapshot=build.snapshot(memory=memory)).screen(), 80, 24)


def test_an_unread_iteration_is_unknown_and_the_last_one_is_named() -> None:
    memory = build.remember({ITERATION_NAME: (150, 60)})
    text = render_text(Scene(snapshot=build.snapshot(iteration=Unobserved("garbled"), memory=memory)).screen(), 80, 24)
    assert "saved ? (was 150)" in text
    assert text.count("garbled") == 1


def test_no_checkpoint_is_not_unknown() -> None:
    text = render_text(Scene(snapshot=build.snapshot(iteration=None)).screen(), 80, 24)
    assert "nothing saved yet" in text
    assert "?" not in text


def test_a_log_that_could_not_be_read_is_unknown_with_its_reason() -> None:
    generations = build.generations(g11=build.running_generation(11, log=Unobserved("the log is a directory")))
    text = render_text(Scene(snapshot=build.snapshot(generations=generations)).screen(), 80, 24)
    assert "trains ?" in text
    assert "log: the log is a directory" in text


def test_a_rate_that_is_no_number_is_left_out() -> None:
    log = LogActivity(bytes=1, newest="x", iteration=9, iterations_per_second=float("nan"))
    generations = build.generations(g11=build.running_generation(11, log=log))
    assert Scene(snapshot=build.snapshot(generations=generations)).screen().progress.per_second is None


def test_one_reason_of_several_sources_is_said_once() -> None:
    sources = build.sources({Source.QUEUE: "slurmctld is down", Source.NODES: "slurmctld is down"})
    snapshot = build.snapshot(
        queue=Unobserved("slurmctld is down"), nodes=Unobserved("slurmctld is down"), sources=sources
    )
    assert Scene(snapshot=snapshot).screen().blind == (("queue, nodes", "slurmctld is down"),)


def test_a_user_of_whom_nothing_is_listed_may_be_hidden() -> None:
    text = render_text(Scene(snapshot=build.snapshot(queue=build.queue(arrays={}, sees_user=False))).screen(), 120, 24)
    assert text.startswith("NOTHING LISTED")
    assert "they are hidden" in text


def test_findings_come_worst_first_then_the_oldest() -> None:
    new = finding("a_new", Severity.CRITICAL, "new")
    old = finding("z_old", Severity.CRITICAL, "old")
    warning = finding("b", Severity.WARNING, "warning")
    screen = Scene(
        snapshot=build.snapshot(), findings=(warning, new, old), history=history(incident(old, 500))
    ).screen()
    assert [line.title for line in screen.findings] == ["old", "new", "warning"]
    assert [line.since for line in screen.findings] == [build.ago(500), None, None]


def test_an_incident_that_this_pass_could_not_judge_stays_on_the_screen() -> None:
    one = finding("overlap", Severity.CRITICAL, "two at once")
    done = finding("storm", Severity.CRITICAL, "storm")
    remembered = history(incident(one, 500, seen=90), incident(done, 500, state=IncidentState.RESOLVED))
    (line,) = Scene(snapshot=build.snapshot(), history=remembered).screen().findings
    assert (line.title, line.seen, line.last_seen_at) == ("two at once", False, build.ago(90))


def test_a_finding_that_fires_again_is_new() -> None:
    one = finding("storm", Severity.WARNING, "storm")
    remembered = history(incident(one, 9000, state=IncidentState.RESOLVED))
    (line,) = Scene(snapshot=build.snapshot(), findings=(one,), history=remembered).screen().findings
    assert line.since is None


def test_an_action_that_was_done_leaves_the_owner_nothing_to_do() -> None:
    reports = (report(ActionState.DONE), report(ActionState.NOT_OWNER, why="the jobs are ann's"))
    done, left = Scene(snapshot=build.snapshot(), reports=reports).screen().actions
    assert (done.command, left.command) == ("", "scancel 11_3 11_4")


def test_spares_are_what_runs_beyond_training_and_what_waits() -> None:
    current = Scene(snapshot=build.snapshot()).screen().current
    assert current is not None
    assert (current.spares.hot, current.spares.cold) == (1, 2)


def test_spares_are_unknown_while_the_queue_is_blind() -> None:
    current = Scene(snapshot=build.snapshot(queue=Unobserved("down"))).screen().current
    assert current is not None
    assert (current.spares.hot, current.spares.cold, current.tasks) == (None, None, None)


def test_a_node_list_that_no_slurm_printed_is_shown_escaped() -> None:
    cycle = build.cycle(0, active_nodes=("n1", "\x1b[2Jn2"), ended=None)
    generations = build.generations(g11=build.running_generation(11, cycles=(cycle,)))
    current = Scene(snapshot=build.snapshot(generations=generations)).screen().current
    assert current is not None
    assert current.active is not None
    assert current.active.text == "n1,\\x1b[2Jn2"


def test_without_a_cycle_record_the_nodes_are_those_that_slurm_shows() -> None:
    generations = build.generations(g11=build.running_generation(11, cycles=None))
    current = Scene(snapshot=build.snapshot(generations=generations)).screen().current
    assert current is not None
    assert current.active is not None
    assert current.active.text == "n[1-3]"


def test_an_open_cycle_of_a_closed_generation_grows_no_longer() -> None:
    one = build.ended_generation(11, cycles=(build.cycle(0, started=900, ended=None),))
    screen = Scene(snapshot=build.snapshot(generations=(one,))).screen()
    assert isinstance(screen.cycles, tuple)
    assert screen.cycles[0].duration(build.NOW) is None


def test_the_screen_is_built_from_a_queue_with_no_generation_begun() -> None:
    snapshot = build.snapshot(
        generations=(build.generation(12),), queue=build.queue(*build.queued_rows(12)), iteration=None
    )
    screen = Scene(snapshot=snapshot).screen()
    assert screen.current is None
