"""Noticing the end of one process that is no child, and never taking another one for it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nvrx_chain.generation.identity import read_process_start
from nvrx_chain.generation.process_tree import open_process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_the_end_of_a_process_wakes_whoever_waits(sleeper: subprocess.Popen[bytes]) -> None:
    descriptor = open_process(sleeper.pid, read_process_start(sleeper.pid))
    assert descriptor is not None
    assert select.select([descriptor], [], [], 0) == ([], [], [])
    sleeper.kill()
    assert select.select([descriptor], [], [], 20)[0] == [descriptor]
    os.close(descriptor)


def test_a_namesake_that_started_at_another_time_is_not_taken_for_it(sleeper: subprocess.Popen[bytes]) -> None:
    assert open_process(sleeper.pid, read_process_start(sleeper.pid) - 1) is None


def test_a_process_that_is_gone_is_none(sleeper: subprocess.Popen[bytes]) -> None:
    started_at = read_process_start(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert open_process(sleeper.pid, started_at) is None
