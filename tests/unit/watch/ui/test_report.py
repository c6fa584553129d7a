from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given

from nvrx_watch.action_model import ActionState
from nvrx_watch.model import Severity, Source
from nvrx_watch.ui.report import render_report, report_object
from nvrx_watch.ui.report_model import PassObject
from tests.unit.watch import build
from tests.unit.watch.ui.scenes import Scene, finding, queue_blind, report, request, restart_storm
from tests.unit.watch.ui.test_frame import hostile_scenes, is_harmless


def text_of(scene: Scene, **more: Any) -> str:
    parts = (scene.snapshot, scene.findings, scene.reports, scene.skipped, scene.broken, scene.snapshot.sources)
    return render_report(*parts, **more)


def object_of(scene: Scene, **more: Any) -> PassObject:
    parts = (scene.snapshot, scene.findings, scene.reports, scene.skipped, scene.broken, scene.snapshot.sources)
    return report_object(*parts, **{"exit_code": 0, **more})


def test_a_clean_pass_is_one_line() -> None:
    assert text_of(Scene(snapshot=build.snapshot())) == "train-7b of ann: clean"


def test_a_reduced_mode_is_clean_and_says_what_it_lacks() -> None:
    sources = build.sources(unavailable={Source.ACCOUNTING: "no accounting here"})
    assert text_of(Scene(snapshot=build.snapshot(sources=sources))) == "train-7b of ann: clean (without accounting)"


def test_a_warning_is_not_clean() -> None:
    scene = Scene(snapshot=build.snapshot(), findings=(finding("d", Severity.WARNING, "hm"),))
    assert text_of(scene).split("\n")[0] == "train-7b of ann: 1 warning"


def test_the_first_line_names_what_was_not_seen() -> None:
    assert text_of(queue_blind()).split("\n")[0] == (
        "train-7b of ann: degraded (could not observe queue, nodes, accounting, iteration)"
    )


def test_critical_comes_before_degraded() -> None:
    scene = queue_blind()
    critical = finding("d", Severity.CRITICAL, "bad")
    first = text_of(Scene(snapshot=scene.snapshot, findings=(critical,))).split("\n")[0]
    assert first.startswith("train-7b of ann: 1 critical, degraded (")


def test_a_broken_detector_is_degraded_and_named() -> None:
    lines = text_of(Scene(snapshot=build.snapshot(), broken={"storm": "KeyError: 3"})).split("\n")
    assert lines == ["train-7b of ann: degraded", "detector storm broke: KeyError: 3"]


def test_findings_are_worst_first_whatever_their_order() -> None:
    lines = text_of(restart_storm()).split("\n")
    words = [line.split()[0] for line in lines if line.split()[0] in ("CRITICAL", "WARNING", "INFO")]
    assert words == ["CRITICAL"] * 2 + ["WARNING"] * 3 + ["INFO"]


def test_the_owner_is_told_the_command_unless_it_was_done() -> None:
    wanted = request()
    found = finding("orphaned_generation", Severity.CRITICAL, "spares", scope="11", action=wanted)
    observed = Scene(snapshot=build.snapshot(), findings=(found,), reports=(report(ActionState.OBSERVE_ONLY),))
    done = Scene(
        snapshot=build.snapshot(),
        findings=(found,),
        reports=(report(ActionState.DONE, request=wanted, asked=("11_3",), gone=("11_3",)),),
    )
    assert "    by hand, as the owner: scancel 11_3 11_4" in text_of(observed).split("\n")
    assert "owner:" not in text_of(done)
    assert "action cancel_pending 11: done; asked 11_3; gone 11_3" in text_of(done).split("\n")


def test_what_is_still_there_is_listed() -> None:
    one = report(ActionState.INCOMPLETE, asked=("11_3", "11_4"), gone=("11_3",), still_there=("11_4",))
    last = text_of(Scene(snapshot=build.snapshot(), reports=(one,))).split("\n")[-1]
    assert last == "action cancel_pending 11: incomplete; asked 11_3, 11_4; gone 11_3; still there 11_4"


def test_a_note_of_the_pass_is_printed_once() -> None:
    scene = Scene(snapshot=build.snapshot(sources=build.sources(notes=("a",))))
    assert text_of(scene, notes=("a", "b")).split("\n")[1:] == ["note: a", "note: b"]


def test_the_object_has_schema_one_and_the_names_that_programs_read() -> None:
    scene = restart_storm()
    found = msgspec.json.decode(msgspec.json.encode(object_of(scene, exit_code=2)))
    assert (found["schema"], found["exit_code"], found["chain"]["name"]) == (1, 2, "train-7b")
    assert set(found["findings"][0]) == {
        "detector",
        "severity",
        "key",
        "title",
        "details",
        "advice",
        "array_job_ids",
        "action",
    }
    assert found["findings"][0]["key"] == "restart_storm:chain"
    assert found["generations"][1]["tasks"] == {"RUNNING": 3, "PENDING": 2}


def test_what_was_not_seen_is_null_in_the_object_and_has_a_reason() -> None:
    found = object_of(queue_blind())
    assert found.iteration is None
    assert found.unobserved["iteration"].startswith("the checkpoint iteration")
    assert found.generations[0].tasks is None


def test_the_object_survives_a_round_trip() -> None:
    found = object_of(restart_storm(), pass_seconds=0.5)
    assert msgspec.json.decode(msgspec.json.encode(found), type=PassObject) == found


def test_a_path_that_is_no_utf8_can_be_printed_as_json() -> None:
    subject = build.subject(run_directory=Path("/data/\udcff"))
    assert b"udcff" in msgspec.json.encode(object_of(Scene(snapshot=build.snapshot(subject=subject))))


@given(hostile_scenes())
def test_hostile_text_breaks_neither_report_nor_object(scene: Scene) -> None:
    assert is_harmless(text_of(scene).replace("\n", ""))
    assert msgspec.json.encode(object_of(scene))
