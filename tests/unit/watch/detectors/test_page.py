"""The texts that are made from the detectors: the page, the list and the explanation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvrx_chain.errors import UsageError
from nvrx_watch.detectors.chain_end import find_chain_exhausted
from nvrx_watch.detectors.orphans import find_orphaned_generation
from nvrx_watch.detectors.page import (
    render_detectors_page,
    render_explanation,
    render_list,
    thresholds_of,
)
from nvrx_watch.detectors.registry import ALL
from nvrx_watch.model import Finding, Snapshot
from nvrx_watch.thresholds import WatchThresholds


def test_the_thresholds_of_a_check_are_read_from_its_code() -> None:
    assert thresholds_of(find_orphaned_generation) == {"orphan_grace": 60.0}
    # `lease_stale` is read by a function that it calls.
    assert thresholds_of(find_chain_exhausted) == {"dry_passes": 2, "lease_stale": 90.0}


def test_a_threshold_inside_a_comprehension_is_found() -> None:
    def check(seen: Snapshot, limits: WatchThresholds) -> Iterator[Finding]:
        assert all(limits.handoff > one for one in (1, 2))
        return iter(())

    assert thresholds_of(check) == {"handoff": 600.0}


def test_every_threshold_is_read_by_some_detector() -> None:
    read = {name for detector in ALL for name in thresholds_of(detector.check)}
    assert read == set(WatchThresholds.__struct_fields__)


@pytest.mark.parametrize("detector", ALL, ids=lambda one: one.name)
def test_an_explanation_has_everything_in_eighty_columns(detector: object) -> None:
    name = detector.name  # type: ignore[attr-defined]
    text = render_explanation(name)
    assert text.startswith(f"{name} (")
    for label in ("Fires when:", "Quiet when:", "Needs:", "Thresholds:", "What to do:"):
        assert label in text
    assert max(map(len, text.splitlines())) <= 80
    for setting in thresholds_of(detector.check):  # type: ignore[attr-defined]
        assert setting in text


def test_an_explanation_of_nothing_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="choosing a detector"):
        render_explanation("no_such_thing")


def test_the_list_has_one_line_per_detector() -> None:
    lines = render_list(ALL).splitlines()
    assert [line.split()[0] for line in lines] == [detector.name for detector in ALL]
    assert [line.split()[1] for line in lines] == [detector.severity.value for detector in ALL]
    assert max(map(len, lines)) <= 125


def test_the_page_has_a_section_per_detector_in_order() -> None:
    page = render_detectors_page(ALL)
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [one.name for one in ALL]
