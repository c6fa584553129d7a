"""Fixtures of the submit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.submit.chains import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A fake cluster and a run directory with a nasty name."""
    return Site(tmp_path)
