"""A pass carries out each request once, stops nothing by an error, and says everything in one line."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nvrx_chain.errors import RecordError, SlurmAmbiguous, SlurmUnavailable
from nvrx_watch.acting.deed import LONGEST_TEXT, plain
from nvrx_watch.acting.perform import perform
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionKind
from tests.unit.watch.acting.scene import Scene, finding


def test_two_findings_about_one_job_are_one_action(scene: Scene) -> None:
    scene.orphan()
    asked = [finding(ActionKind.CANCEL_PENDING, 11, detector=name) for name in ("one", "two")]
    (report,) = perform(asked, scene.snapshot(), scene.desk())
    assert (report.detector, report.state) == ("one", ActionState.DONE)
    assert len(scene.slurm.asked("cancel")) == 1


def test_findings_that_ask_for_nothing_do_nothing(scene: Scene) -> None:
    scene.orphan()
    assert perform([replace(finding(ActionKind.FENCE, 11), action=None)], scene.snapshot(), scene.desk()) == ()
    assert not scene.slurm.calls


def test_what_stops_a_chain_comes_before_what_lets_it_go_on(scene: Scene) -> None:
    asked = [finding(kind, 11) for kind in (ActionKind.EXTEND, ActionKind.FENCE, ActionKind.CANCEL_PENDING)]
    asked += [finding(kind, None) for kind in (ActionKind.HOLD, ActionKind.CANCEL_CHAIN)]
    desk = scene.desk(rights=scene.rights(act=False))
    kinds = [report.request.kind for report in perform(asked, scene.snapshot(), desk)]
    assert kinds == [
        ActionKind.CANCEL_CHAIN,
        ActionKind.HOLD,
        ActionKind.CANCEL_PENDING,
        ActionKind.FENCE,
        ActionKind.EXTEND,
    ]


@pytest.mark.parametrize(
    "error", [SlurmUnavailable("start squeue"), SlurmAmbiguous("look"), RecordError("reading the chain", part="x")]
)
def test_an_error_of_one_action_stops_no_other(scene: Scene, error: Exception) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    scene.orphan()
    seen = scene.snapshot()
    desk = scene.desk(run_command=broken)
    asked = [finding(ActionKind.HOLD, None), finding(ActionKind.CANCEL_PENDING, 11)]
    first, second = perform(asked, seen, desk)
    assert (first.state, first.why) == (ActionState.FAILED, str(error))
    assert second.state is ActionState.DONE


def test_nothing_begins_when_the_time_for_actions_is_used_up(scene: Scene) -> None:
    scene.orphan()
    asked, seen, desk = [finding(ActionKind.CANCEL_PENDING, 11)], scene.snapshot(), scene.desk()
    (report,) = perform(asked, seen, desk, until=desk.clock.monotonic())
    assert report.state is ActionState.FAILED
    assert "used up their time" in report.why
    assert not scene.slurm.asked("cancel")
    (report,) = perform(asked, seen, desk, until=desk.clock.monotonic() + 1)
    assert report.state is ActionState.DONE


def test_a_programming_error_is_not_hidden(scene: Scene) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scene.act(ActionKind.HOLD, None, desk=scene.desk(run_command=broken))


def test_every_action_is_one_line_of_the_log(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.orphan()
    seen = scene.snapshot()
    with caplog.at_level(logging.INFO):
        scene.act(ActionKind.CANCEL_PENDING, 11, snapshot=seen)
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("perform")]
    assert "action=cancel_pending job=11 state=done asked=11_4 11_5 11_6 gone=11_4 11_5 11_6" in line


@given(st.text(alphabet=st.characters(), max_size=LONGEST_TEXT + 10))
def test_any_text_is_made_safe_to_show(text: str) -> None:
    shown = plain(text)
    assert len(shown) <= LONGEST_TEXT
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 or 0xD800 <= ord(letter) < 0xE000 for letter in shown)
    shown.encode()
