"""Names of NVRx's cycle records, and how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.records.cycle_info import count_cycles, parse_cycle_name
from nvrx_chain.records.layout import RunDirectory


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("cycle_info.16.0.0", (0, 0)),
        ("cycle_info.16.1.12", (1, 12)),
        ("cycle_info..0.0", (0, 0)),
        ("cycle_info.16.current", None),
        ("cycle_info.16.0.0.tmp", None),
        ("cycle_info.16.0", None),
        ("cycle_info.16.0.x", None),
        ("notes", None),
    ],
)
def test_only_the_records_of_cycles_count(name: str, parsed: tuple[int, int] | None) -> None:
    assert parse_cycle_name(name) == parsed


def test_a_launcher_that_records_no_cycles_has_none_rather_than_zero(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path).generation(16)
    assert count_cycles(directory) is None
    directory.cycle_infos.mkdir(parents=True)
    assert count_cycles(directory) is None
    for name in ("cycle_info.16.0.0", "cycle_info.16.0.1", "cycle_info.16.0.2.tmp"):
        (directory.cycle_infos / name).touch()
    (directory.cycle_infos / "cycle_info.16.current").symlink_to("cycle_info.16.0.1")
    assert count_cycles(directory) == 2
