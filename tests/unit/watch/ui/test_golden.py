"""Six runs as frames of two sizes and as reports, word for word. NVRX_UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from nvrx_watch.ui.frame import render_text
from nvrx_watch.ui.report import render_report, report_object
from tests.unit.watch.ui.scenes import SCENES

GOLDEN = Path(__file__).parents[3] / "golden" / "watch"
SIZES = {"wide": (140, 40), "narrow": (80, 24)}


def compare(path: Path, text: str) -> None:
    if os.environ.get("NVRX_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; NVRX_UPDATE_GOLDEN=1 accepts the new text"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", SCENES)
def test_the_frame_is_the_golden_one(scene: str, size: str) -> None:
    width, height = SIZES[size]
    compare(GOLDEN / f"{scene}.{size}.txt", render_text(SCENES[scene]().screen(), width, height) + "\n")


@pytest.mark.parametrize("scene", SCENES)
def test_the_report_is_the_golden_one(scene: str) -> None:
    one = SCENES[scene]()
    text = render_report(one.snapshot, one.findings, one.reports, one.skipped, one.broken, one.snapshot.sources)
    compare(GOLDEN / f"{scene}.report.txt", text + "\n")


def test_the_json_of_a_storm_is_the_golden_one() -> None:
    one = SCENES["restart-storm"]()
    found = report_object(
        one.snapshot, one.findings, one.reports, one.skipped, one.broken, one.snapshot.sources, exit_code=2
    )
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    compare(GOLDEN / "restart-storm.report.json", text + "\n")
