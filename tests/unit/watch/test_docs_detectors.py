"""docs/detectors.md is what the detectors say of themselves."""

from __future__ import annotations

from pathlib import Path

from nvrx_watch.detectors.page import render_detectors_page
from nvrx_watch.detectors.registry import ALL

PAGE = Path(__file__).parents[3] / "docs" / "detectors.md"


def test_the_page_is_the_one_that_is_made_from_the_detectors() -> None:
    # To make it anew: python -c "from nvrx_watch.detectors import page, registry;
    # print(page.render_detectors_page(registry.ALL), end='')" > docs/detectors.md
    assert PAGE.read_text() == render_detectors_page(ALL)
