"""A place with an awkward name, and readers that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_watch.reading.worker import RunReader


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / 'a run\'s & "dir" #1 100%'
    directory.mkdir()
    return directory


@pytest.fixture
def make_reader() -> Iterator[Callable[..., RunReader]]:
    made: list[RunReader] = []

    def make(**options: Any) -> RunReader:
        reader = RunReader(**{"cache_directory": None, **options})
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def reader(make_reader: Callable[..., RunReader]) -> RunReader:
    return make_reader()
