"""Hangs of real processes: found in time, whatever way they hang; and what does not hang is left alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher import client
from nvrx_chain.launcher.deadlines import Silence
from nvrx_chain.launcher.hang_limits import HangLimits, hang_limits
from nvrx_chain.launcher.signs import Hung, Marked
from tests.rank_lab import PATIENCE_SECONDS, eventually, lab, line

pytestmark = pytest.mark.integration

LATE_SECONDS = 0.05
HANG = "print(time.monotonic()); time.sleep(1000)"


def test_a_hang_in_a_section_is_found_within_the_limit_and_0_05_s_ten_times() -> None:
    late = []
    with lab(hang_limits(sections="step:0.1")) as place:
        for cycle in range(10):
            voice = place.voice()
            entered = time.monotonic()
            voice.say(b'{"do":"start","name":"step"}\n')
            hung = place.await_sign(Hung)
            late.append(time.monotonic() - entered - 0.1)
            assert (hung.what, hung.section, hung.wants_capture) == (Silence.SECTION, "step", True)
            assert hung.cycle == cycle
            place.environments = place.monitor.new_cycle(cycle + 1)
    assert min(late) >= 0
    assert max(late) <= LATE_SECONDS


def test_a_rank_that_is_stopped_is_found_by_its_heartbeats() -> None:
    with lab(hang_limits(heartbeat="0.3")) as place:
        rank = place.run("client.heartbeat(); print()\nwhile True: client.heartbeat(); time.sleep(0.02)")
        line(rank)
        assert place.stays_silent(0.6, Hung)
        os.kill(rank.pid, signal.SIGSTOP)
        at = time.monotonic()
        hung = place.await_sign(Hung)
        assert time.monotonic() - at <= 0.3 + LATE_SECONDS
        assert Path(f"/proc/{rank.pid}/stat").read_text().split()[2] == "T"
        assert (hung.what, hung.wants_capture) == (Silence.HEARTBEAT, False)


def test_an_outer_section_that_expires_is_found_while_the_inner_ones_are_young() -> None:
    with lab(hang_limits(sections="outer:0.4,inner:30")) as place:
        rank = place.run(
            "at = time.monotonic(); client.start_section('outer'); print(at)\n"
            "while True:\n  with client.section('inner'): time.sleep(0.02)"
        )
        entered = float(line(rank))
        hung = place.await_sign(Hung)
        assert 0.4 <= time.monotonic() - entered <= 0.4 + LATE_SECONDS
        assert hung.section == "outer"


def test_a_rank_that_ended_all_its_sections_may_be_idle() -> None:
    with lab(hang_limits(sections="a:0.2,b:0.3")) as place:
        place.run("client.start_section('a'); client.start_section('b'); client.end_all_sections(); " + HANG)
        assert place.stays_silent(0.8, Hung)


def test_a_crash_before_the_first_section_does_not_disturb_the_next_cycles() -> None:
    with lab(hang_limits(sections="step:0.3")) as place:
        work = "for i in range(3):\n  with client.section('step'): time.sleep(0.01)\nclient.committed(3)\nprint('fine')"
        for cycle, script in enumerate(["", work, "os.kill(os.getpid(), 9)", work, work]):
            if cycle:
                place.environments = place.monitor.new_cycle(cycle)
            rank = place.run(script)
            output, errors = rank.communicate(timeout=PATIENCE_SECONDS)
            place.monitor.stopped(0)
            assert errors == ""
            if script == work:
                assert output == "fine\n"
                assert place.await_sign(Marked).cycle == cycle
        assert place.stays_silent(0.5, Hung)


def test_a_hang_before_the_first_word_is_found() -> None:
    with lab(hang_limits(startup="0.4")) as place:
        at = time.monotonic()
        place.run("time.sleep(1000)", connects=False)
        hung = place.await_sign(Hung)
        assert 0.4 <= time.monotonic() - at <= 0.4 + LATE_SECONDS + 0.1, "started() is called after the fork"
        assert hung.what is Silence.STARTUP


def test_a_hang_after_the_last_word_is_found() -> None:
    with lab(hang_limits(out_of_section="0.3", sections="step:5")) as place:
        rank = place.run("client.start_section('step'); client.end_section('step')\nclient._rank.abandon(); " + HANG)
        closed = float(line(rank))
        assert place.await_sign(Hung).what is Silence.OUT_OF_SECTION
        assert time.monotonic() - closed <= 0.3 + LATE_SECONDS


def test_a_busy_thread_of_the_launcher_does_not_delay_the_detection() -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=spin)
    busy.start()
    try:
        at: list[float] = []
        with lab(hang_limits(sections="step:0.2")) as place:
            place.monitor._post = lambda sign: at.append(time.monotonic())
            voice = place.voice()
            entered = time.monotonic()
            voice.say(b'{"do":"start","name":"step"}\n')
            eventually(lambda: bool(at), "no hang was found")
            assert 0.2 <= at[0] - entered <= 0.2 + LATE_SECONDS
    finally:
        stop.set()
        busy.join()


def test_calculated_time_outs_come_from_all_ranks_of_the_node_and_can_be_used() -> None:
    with lab(HangLimits(warmup_iterations=0, safety_factor=2.0), 2) as place:
        slow = place.voice(1)
        slow.say(b'{"do":"start","name":"step"}\n')
        time.sleep(0.5)
        slow.say(b'{"do":"end","name":"step"}\n')
        rank = place.run(
            "with client.section('step'): pass\n"
            "found = client.calculated_timeouts(); print(found['sections']['step'], found['heartbeat'])\n"
            "print(client.use_timeouts(found)); client.start_section('step'); " + HANG
        )
        step, heartbeat = line(rank).split()
        assert 1.0 <= float(step) <= 1.5
        assert heartbeat == "None"
        assert line(rank) == "True"
        entered = float(line(rank))
        hung = place.await_sign(Hung)
        assert hung.limit_seconds == pytest.approx(float(step))
        assert time.monotonic() - entered <= hung.limit_seconds + LATE_SECONDS
        place.environments = place.monitor.new_cycle(1)
        place.voice().say(b'{"do":"start","name":"step"}\n')
        assert place.await_sign(Hung).cycle == 1, "they hold after a restart"


def test_a_monitor_that_was_frozen_listens_before_it_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.monotonic
    with lab(hang_limits(sections="step:0.3")) as place:
        voice = place.voice()
        voice.say(b'{"do":"start","name":"step"}\n')
        eventually(lambda: place.monitor._wake_at is not None, "it has no plan")
        with place.monitor._lock:  # as a launcher that is stopped with SIGSTOP
            thawed = real() + 1.5
            while real() < thawed:
                time.sleep(0.05)
        voice.say(b'{"do":"end","name":"step"}\n')
        assert place.stays_silent(0.8, Hung)
        voice.say(b'{"do":"start","name":"step"}\n')
        place.await_sign(Hung, within=2.0)


def test_a_launcher_that_stands_still_does_not_hold_up_the_training_and_hears_what_matters_later() -> None:
    with lab(hang_limits(sections="outer:500,long:1")) as place:
        with place.monitor._lock:  # it reads nothing
            rank = place.run(
                "client.start_section('outer'); client.start_section('long'); client.mark('checkpoint_restored')\n"
                "began = time.monotonic()\n"
                "for i in range(100000): client.committed(i)\n"
                "client.end_section('long'); print(time.monotonic() - began, len(client._rank._backlog))\n"
                "time.sleep(1000)"
            )
            spent, backlog = line(rank).split()
        assert float(spent) < 3
        assert int(backlog) <= client.MAX_BACKLOG + 1000
        eventually(lambda: place.monitor.iterations() == (99999,), "the last step was not heard")
        assert place.await_sign(Marked).name == "checkpoint_restored"
        rules = place.monitor._ranks[0].deadlines
        assert rules is not None
        eventually(lambda: list(rules._open) == ["outer"], "it is thought to be in a section that it has left")
        assert place.stays_silent(1.2, Hung)


def test_forked_children_say_nothing_and_close_the_connection() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "import threading\n"
            "stop = threading.Event()\n"
            "def talk():\n  while not stop.is_set(): client.heartbeat()\n"
            "thread = threading.Thread(target=talk); thread.start()\n"
            "for i in range(30):\n"
            "  child = os.fork()\n"
            "  if not child:\n"
            "    signal.alarm(10)\n"
            "    client.committed(666); client.heartbeat(); client.end_all_sections()\n"
            "    left = [n for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]\n"
            "    os._exit(any('socket' in os.readlink(f'/proc/self/fd/{n}') for n in left))\n"
            "  assert os.waitpid(child, 0)[1] == 0\n"
            "stop.set(); thread.join(); client.committed(1); print('done')"
        )
        assert line(rank) == "done", rank.stderr.read() if rank.stderr else ""
        assert place.await_sign(Marked).iteration == 1


def test_words_of_many_threads_do_not_mix() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "import threading\nclient.MAX_BACKLOG = 10**9\n"
            "def talk(n):\n"
            "  for i in range(2000):\n"
            "    with client.section(f's{n}' * 20): client.heartbeat()\n"
            "threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]\n"
            "[t.start() for t in threads]; [t.join() for t in threads]\n"
            "client.committed(1); print('done'); sys.stdin.readline()"
        )
        assert line(rank) == "done"
        place.await_sign(Marked)
        rules = place.monitor._ranks[0].deadlines
        assert rules is not None
        assert sorted(rules._runs.values()) == [2000] * 8
        assert not rules._open
        _, errors = rank.communicate("\n", timeout=PATIENCE_SECONDS)
        assert errors == ""


@pytest.mark.slow
def test_a_rank_that_never_stops_talking_does_not_delay_the_detection_of_another() -> None:
    with lab(hang_limits(sections="step:0.5"), 2) as place:
        loud = place.run("client.committed(1)\nwhile True: client.heartbeat()", 0)
        place.await_sign(Marked)
        quiet = place.run("client.start_section('step'); " + HANG, 1)
        entered = float(line(quiet))
        hung = place.await_sign(Hung)
        assert time.monotonic() - entered <= 0.5 + LATE_SECONDS
        assert hung.local_rank == 1
        assert loud.poll() is None
