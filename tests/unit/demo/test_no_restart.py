"""The judge and the table of scenario no-restart, and the launcher that it brings."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nvrx_chain.demo import no_restart
from nvrx_chain.demo.expectations import RowState
from nvrx_chain.demo.no_restart import NO_RESTART, SCRIPT, SCRIPT_NAME, judge
from nvrx_chain.demo.repairs import Repair
from nvrx_chain.demo.scenario import Await
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.slurm.states import JobState
from tests.unit.demo.story import Story, state_of


def told() -> Story:
    """The whole story as it should go."""
    story = Story()
    story.queued(1, 2, 3, tasks=1)
    story.node("n1")
    story.node("n2")
    story.runs(1, "n[1-2]")
    story.says_no_restart(1, "n2")
    story.closed(1, Outcome.NO_RESTART)
    story.decided(Verdict.NO_RESTART, 1)
    story.ends(1, JobState.FAILED)
    story.ends(2, JobState.CANCELLED)
    story.ends(3, JobState.CANCELLED)
    return story


def test_the_story_as_it_should_be_keeps_every_promise() -> None:
    assert {row.state for row in judge(told().evidence())} == {RowState.OK}


def test_before_anything_has_happened_nothing_is_decided() -> None:
    assert {row.state for row in judge(Story().evidence())} == {RowState.OPEN}


def test_a_next_generation_that_starts_breaks_the_promise() -> None:
    story = told()
    story.runs(2, "n1")
    assert state_of(judge(story.evidence()), no_restart.NEVER_RAN) is RowState.FAILED


def test_a_code_that_was_lost_on_its_way_breaks_the_promises() -> None:
    story = told()
    story.closed(1, Outcome.FAILED)
    story.decided(Verdict.EXHAUSTED, 1)
    story.says_no_restart(1, "n2", exit_code=143)
    rows = judge(story.evidence())
    for name in (no_restart.ENDED, no_restart.VERDICT, no_restart.SAID):
        assert state_of(rows, name) is RowState.FAILED


def test_the_table_says_that_nothing_is_to_be_repaired() -> None:
    assert NO_RESTART.find_repairs(Story().evidence()) == ()
    assert NO_RESTART.find_repairs(told().evidence()) == (
        Repair(fault="the launcher on n2 exited with 93", repaired_by="none wanted: the chain ended"),
    )
    story = told()
    story.outcome = None
    assert NO_RESTART.find_repairs(story.evidence())[0].repaired_by == "the chain has not ended"


def test_the_launcher_of_the_second_node_exits_with_93(tmp_path: Path) -> None:
    script = tmp_path / SCRIPT_NAME
    script.write_text(SCRIPT)
    assert subprocess.run(["/bin/sh", script, "1"], timeout=30, check=False).returncode == 93


def test_every_row_that_is_waited_for_exists() -> None:
    names = {row.name for row in judge(Story().evidence())}
    assert {row for act in NO_RESTART.acts if isinstance(act, Await) for row in act.rows} == names
