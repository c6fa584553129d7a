"""The monitor with real processes: what hangs is found in time, what does not is left alone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher.hang_limits import HangLimits, hang_limits
from nvrx_chain.launcher.monitor import Action, Asked, Hung, Marked
from tests.rank_lab import PATIENCE_SECONDS, Voice, eventually, lab, line

LATE_SECONDS = 0.05
HANG = "print(time.monotonic()); time.sleep(1000)"


def test_nothing_expires_once_the_ranks_are_being_stopped() -> None:
    with lab(hang_limits(sections="step:0.2", startup="0.3"), 2) as place:
        voice = place.voice()
        voice.say(b'{"do":"start","name":"step"}\n')
        place.monitor.started(1, time.monotonic())
        place.monitor.stopping()
        place.voice(1)
        assert place.stays_silent(0.6, Hung)


def test_a_rank_that_ended_does_not_expire_and_the_others_do() -> None:
    with lab(hang_limits(startup="0.2"), 2) as place:
        for local_rank in (0, 1):
            place.monitor.started(local_rank, time.monotonic())
        place.monitor.stopped(0)
        assert place.await_sign(Hung).local_rank == 1
        assert place.stays_silent(0.3, Hung)


def test_a_hang_is_said_once() -> None:
    with lab(hang_limits(heartbeat="0.1", sections="step:0.1")) as place:
        voice = place.voice()
        voice.say(b'{"do":"heartbeat"}\n{"do":"start","name":"step"}\n')
        place.await_sign(Hung)
        assert place.stays_silent(0.4, Hung)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\xff\n",
        b"[]\n",
        b'{"do":"fly"}\n',
        b'{"do":"start"}\n',
        b'{"do":"start","name":""}\n',
        b'{"do":"start","name":7}\n',
        b'{"do":"start","name":"' + b"x" * 101 + b'"}\n',
        b'{"do":"mark","name":"lunch"}\n',
        b'{"do":"committed","iteration":"many"}\n',
        b'{"do":"use","timeouts":{"heartbeat":-1}}\n',
        b'{"do":"use","timeouts":{"heartbeat":1e999}}\n',
        b'{"do":"ask","action":"dance","why":""}\n',
        b"{" * 1000 + b"\n",
        b"x" * 200_000,
        b"\n",
    ],
)
def test_nonsense_ends_its_own_connection_only(nonsense: bytes) -> None:
    with lab(HangLimits(), 2) as place:
        other = place.voice(1)
        wild = place.voice()
        wild.socket.settimeout(PATIENCE_SECONDS)
        wild.say(nonsense)
        assert wild.was_ended()
        other.say(b'{"do":"mark","name":"process_group_ready"}\n')
        assert place.await_sign(Marked).local_rank == 1
        place.voice().say(b'{"do":"committed","iteration":4}\n')
        assert place.await_sign(Marked).iteration == 4


def test_a_torn_word_is_dropped_and_a_word_in_pieces_is_heard() -> None:
    with lab(HangLimits()) as place:
        torn = place.voice()
        torn.say(b'{"do":"committed","iter')
        torn.socket.close()
        slow = place.voice()
        for byte in b'{"do":"committed","iteration":12}\n':
            slow.say(bytes([byte]))
        assert place.await_sign(Marked).iteration == 12
        assert place.monitor.iterations() == (12,)


def test_only_one_process_speaks_for_a_rank_and_the_next_may_when_it_is_gone() -> None:
    with lab(HangLimits()) as place:
        first = place.voice()
        first.say(b'{"do":"mark","name":"process_group_ready"}\n')
        place.await_sign(Marked)
        second = place.voice()
        assert b"speaks for this rank already" in second.answer()
        mute = place.voice(hello=False)
        mute.say(b'{"do":"heartbeat"}\n')
        assert mute.was_ended()
        first.socket.close()
        place.voice().say(b'{"do":"committed","iteration":1}\n')
        place.await_sign(Marked)


def test_a_process_of_the_last_cycle_speaks_for_nobody() -> None:
    with lab(hang_limits(sections="step:0.2")) as place:
        old_path = place.path()
        old = place.voice()
        place.environments = place.monitor.new_cycle(1)
        assert old.was_ended()
        with pytest.raises(FileNotFoundError):
            Voice(old_path, hello=False)
        place.voice().say(b'{"do":"committed","iteration":1}\n')
        assert place.await_sign(Marked).cycle == 1


def test_requests_are_heard_and_answered_at_any_time() -> None:
    with lab(HangLimits(), 2) as place:
        rank = place.run("print(client.stop_restarting('loss is not a number'))", 1)
        assert line(rank) == "True"
        asked = place.await_sign(Asked)
        assert (asked.local_rank, asked.action) == (1, Action.STOP_RESTARTING)
        assert asked.why == "loss is not a number"
        place.monitor.stopping()
        rank = place.run(
            "from nvrx_chain.launcher import client\nprint(client.exclude_this_node('ECC \\udc80' + 'x' * 5000))",
            connects=False,
        )
        assert line(rank) == "True"
        assert place.await_sign(Asked).action is Action.EXCLUDE_THIS_NODE


def test_the_first_committed_step_of_each_process_is_told_and_the_last_is_known() -> None:
    with lab(HangLimits()) as place:
        before = time.time()
        rank = place.run("for i in range(7, 20): client.committed(i)\nclient.mark('checkpoint_restored')")
        rank.communicate(timeout=PATIENCE_SECONDS)
        first = place.await_sign(Marked)
        assert (first.name, first.iteration) == ("committed", 7)
        assert before <= first.at <= time.time()
        assert place.await_sign(Marked).name == "checkpoint_restored"
        eventually(lambda: place.monitor.iterations() == (19,), "the last step is not known")
        assert place.stays_silent(0.05, Marked)


def test_the_sockets_lie_in_a_private_directory_with_a_short_path_and_are_removed(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with lab(HangLimits(), 3, directory=deep) as place:
        assert place.monitor.directory.stat().st_mode & 0o777 == 0o700
        assert all(len(place.path(number).encode()) <= 107 for number in range(3))
        assert len({place.path(number) for number in range(3)}) == 3
        directory = place.monitor.directory
    assert not directory.exists()
    assert list(deep.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    with lab(HangLimits(), directory=tmp_path / "missing") as place:
        assert place.monitor.directory.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_refused_even_where_the_directory_lets_it_in() -> None:
    script = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1])\n"
        'try:\n  s.sendall(b\'{"do":"hello"}\\n{"do":"committed","iteration":1}\\n\'); print(s.recv(9))\n'
        "except (BrokenPipeError, ConnectionResetError): print(b'')"
    )
    with lab(HangLimits()) as place:
        command = ["/usr/bin/python3", "-c", script, place.path()]
        closed = subprocess.run(
            command, user=65534, group=65534, capture_output=True, text=True, timeout=20, check=False
        )
        assert "PermissionError" in closed.stderr
        os.chmod(place.monitor.directory, 0o711)
        os.chmod(place.path(), 0o777)
        opened = subprocess.run(
            command, user=65534, group=65534, capture_output=True, text=True, timeout=20, check=False
        )
        assert opened.stdout == "b''\n", opened.stderr
        place.voice().say(b'{"do":"committed","iteration":2}\n')
        assert place.await_sign(Marked).iteration == 2


def test_connections_of_one_rank_are_limited_and_the_others_are_served() -> None:
    with lab(HangLimits(), 2) as place:
        crowd = [place.voice(hello=False) for _ in range(80)]
        place.voice(1).say(b'{"do":"committed","iteration":3}\n')
        assert place.await_sign(Marked).local_rank == 1
        eventually(lambda: len(place.monitor._ranks[0].connections) == 64, "the limit does not hold")
        for voice in crowd:
            voice.socket.close()
        eventually(lambda: not place.monitor._ranks[0].connections, "connections that ended are kept")


def test_a_monitor_leaves_no_descriptor_and_no_thread_behind() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with lab(HangLimits()):
        pass
    before, threads = open_files(), threading.active_count()
    with lab(hang_limits(sections="step:5"), 4) as place:
        for cycle in range(1, 30):
            voices = [place.voice(number) for number in range(4)]
            place.environments = place.monitor.new_cycle(cycle)
            for voice in voices:
                voice.socket.close()
        assert len(os.listdir(place.monitor.directory)) == 4
    assert open_files() == before
    assert threading.active_count() == threads
