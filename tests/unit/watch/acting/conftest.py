"""Scenes of the chain that the actions are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.watch.acting.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Three generations, of which the first one runs."""
    found = Scene(tmp_path)
    found.submit()
    return found


@pytest.fixture
def foreign(tmp_path: Path) -> Scene:
    """The same without anything of nvrx-chain about it."""
    found = Scene(tmp_path, ours=False)
    found.submit()
    return found
