"""Signals during a command: each ends it by an exception, and none while it cleans up."""

from __future__ import annotations

import os
import signal

import pytest

from nvrx_chain.interrupts import held_back, raised_as_interrupt

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> object:
    before = [signal.getsignal(number) for number in ENDING]
    yield
    assert [signal.getsignal(number) for number in ENDING] == before


def _hit_myself(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    # Python runs a handler between two instructions: here at the latest.
    signal.sigtimedwait([], 10)


@pytest.mark.parametrize("number", ENDING)
def test_each_signal_that_ends_a_command_becomes_an_exception(number: signal.Signals) -> None:
    with raised_as_interrupt(), pytest.raises(KeyboardInterrupt):
        _hit_myself(number)


@pytest.mark.parametrize("number", ENDING)
def test_nothing_interrupts_the_taking_down(number: signal.Signals) -> None:
    reached = False
    with raised_as_interrupt(), held_back():
        os.kill(os.getpid(), number)
        reached = True
    assert reached


def test_after_the_taking_down_they_interrupt_again() -> None:
    with raised_as_interrupt():
        with held_back():
            pass
        with pytest.raises(KeyboardInterrupt):
            _hit_myself(signal.SIGTERM)
