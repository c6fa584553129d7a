"""The signals of a batch job reach the loop, however many come and wherever they meet it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

_LOOP = """
import os
from nvrx_chain.clock import SystemClock
from nvrx_chain.generation.signals import SignalFlags

flags, clock = SignalFlags(), SystemClock()
flags.install()
print("up", flush=True)
rounds = 0
while not flags.parent_died:
    clock.wait(flags.wake, 30.0)
    flags.wake.clear()
    rounds += 1
    if flags.terminated and flags.walltime_warned and rounds >= 1500:
        print("done", flush=True)
        os._exit(0)
"""
MOMENTS = (0.0, 3e-5, 6e-5, 1e-4, 2e-4)
"""Seconds between two signals: the second one has to find the loop just woken by the first."""
ENOUGH_SECONDS = 60.0


def test_signals_that_meet_the_loop_anywhere_wake_it_and_never_stop_it() -> None:
    # A handler that takes the lock of the event which the loop waits on hangs within some dozens of these.
    child = subprocess.Popen([sys.executable, "-c", _LOOP], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "up\n"
        told = 0
        while child.poll() is None and told < 20_000:
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
                child.send_signal(number)
                time.sleep(MOMENTS[told % len(MOMENTS)])
            told += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.001)
        out, _ = child.communicate(timeout=ENOUGH_SECONDS)
    finally:
        child.kill()
        child.wait()
    assert (out, child.returncode) == ("done\n", 0)
