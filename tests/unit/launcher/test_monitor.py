"""The monitor with real processes: what hangs is found in time, what does not is left alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher.deadlines import Silence
from nvrx_chain.launcher.hang_limits import HangLimits, hang_limits
from nvrx_chain.launcher.monitor import Action, Asked, Hung, Marked

from .rank_lab import PATIENCE_SECONDS, Lab, eventually, go, lab, line

HANG = "print(time.monotonic()); time.sleep(1000)"
LATE_SECONDS = 0.05


def test_a_hang_in_a_section_is_found_in_time_ten_times() -> None:
    late = []
    with lab(hang_limits(sections="step:0.1")) as place:
        rank = place.run(
            "for line in sys.stdin:\n  client.start_section('step'); print(time.monotonic())\n  sys.stdin.readline(); client.end_section('step'); print()"
        )
        for cycle in range(10):
            go(rank)
            entered = float(line(rank))
            hung = place.await_sign(Hung)
            late.append(time.monotonic() - entered - 0.1)
            assert (hung.what, hung.section, hung.wants_capture) == (Silence.SECTION, "step", True)
            os.killpg(rank.pid, signal.SIGKILL)
            place.environments = place.monitor.new_cycle(cycle + 1)
            rank = place.run(
                "for line in sys.stdin:\n  client.start_section('step'); print(time.monotonic())\n  sys.stdin.readline(); client.end_section('step'); print()"
            )
    assert min(late) >= 0
    assert max(late) <= LATE_SECONDS
