from __future__ import annotations

import subprocess

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.faults import EFFECT_SECONDS, await_death, continue_all, kill_all, stop_all
from nvrx_chain.sandbox.procfs import Process, find_process, read_process
from tests.unit.sandbox.fakes import FakeClock, child

CLOCK = SystemClock()


def _see(process: subprocess.Popen[bytes]) -> Process:
    seen = read_process(process.pid)
    assert seen is not None
    return seen


def _living(*processes: subprocess.Popen[bytes]) -> list[Process]:
    found = [find_process(_see(process).id) for process in processes]
    return [process for process in found if process is not None]


def test_stopping_and_continuing_are_believed_only_when_seen() -> None:
    with child("sleep", "60") as one, child("sleep", "60") as two:
        stopped = stop_all(CLOCK, lambda: _living(one, two), doing="freezing")
        assert {process.pid for process in stopped} == {one.pid, two.pid}
        assert all(_see(process).is_stopped for process in (one, two))
        continue_all(CLOCK, lambda: _living(one, two), doing="thawing")
        assert not any(_see(process).is_stopped for process in (one, two))


def test_a_process_that_appears_while_others_are_stopped_is_stopped_too() -> None:
    with child("sleep", "60") as one, child("sleep", "60") as late:
        looks: list[int] = []

        def find() -> list[Process]:
            looks.append(1)
            return _living(one) if len(looks) == 1 else _living(one, late)

        stop_all(CLOCK, find, doing="freezing")
        assert _see(late).is_stopped


def test_killing_waits_for_death_also_of_what_is_stopped() -> None:
    with child("sleep", "60") as one, child("sleep", "60") as two:
        stop_all(CLOCK, lambda: _living(one), doing="freezing")
        kill_all(CLOCK, [_see(one), _see(two)], doing="killing")
        assert not _living(one, two)


def test_a_blow_without_effect_is_an_error_that_names_the_survivor() -> None:
    clock = FakeClock()
    immortal = Process(pid=1, started=-1, parent=0, state="S")
    with pytest.raises(SandboxError, match=rf"^freezing: not stopped after {EFFECT_SECONDS:g} s: pid 1 \(S\)"):
        stop_all(clock, lambda: [immortal], doing="freezing")
    assert clock.seconds >= EFFECT_SECONDS
    with (
        child("sleep", "60") as survivor,
        pytest.raises(SandboxError, match=f"^killing: not dead .*: pid {survivor.pid}"),
    ):
        await_death(FakeClock(), [_see(survivor)], doing="killing")
