"""What a training script imports: light, silent outside the launcher, and never in the way of the training."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvrx_chain.launcher import client
from nvrx_chain.launcher.hang_limits import HangLimits
from nvrx_chain.launcher.monitor import Asked, Marked
from nvrx_chain.launcher.rank_words import ACTIONS, MARKS, SOCKET_VARIABLE
from tests.rank_lab import PATIENCE_SECONDS, ROOT, eventually, go, lab, line

CLIENT = ROOT / "nvrx_chain" / "launcher" / "client.py"


def python(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_importing_it_imports_nothing_but_the_standard_library_and_our_light_packages() -> None:
    script = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom nvrx_chain.launcher import client\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] not in sys.stdlib_module_names and n != '__main__'))"
    )
    # No site-packages at all: an interpreter that knows nothing of ours.
    done = python("-I", "-S", "-c", script, str(ROOT), environment={})
    assert done.stdout == "['nvrx_chain', 'nvrx_chain.launcher', 'nvrx_chain.launcher.client']\n", done.stderr


def test_a_copy_of_the_file_alone_works(tmp_path: Path) -> None:
    copy = tmp_path / "nvrx_client.py"
    copy.write_text(CLIENT.read_text())
    script = "import sys; sys.path.insert(0, sys.argv[1]); import nvrx_client as c; print(c.connect()); c.committed(5)"
    with lab(HangLimits()) as place:
        done = python("-I", "-S", "-c", script, str(tmp_path), environment=place.environments[0])
        assert (done.stdout, done.stderr) == ("True\n", "")
        assert place.await_sign(Marked).iteration == 5


def test_it_and_the_monitor_mean_the_same_words() -> None:
    assert set(client.MARKS) == MARKS
    assert client.SOCKET_VARIABLE == SOCKET_VARIABLE
    assert {"stop_restarting", "exclude_this_node"} == ACTIONS


EVERYTHING = (
    "client.heartbeat(); client.start_section('a'); client.end_section('a'); client.end_all_sections()\n"
    "with client.section('b'): pass\nclient.mark('process_group_ready'); client.committed(3)\n"
    "print(client.connect(), client.stop_restarting('x'), client.exclude_this_node('x'), end=' ')\n"
    "print(client.calculated_timeouts())\n"
)


def test_outside_the_launcher_nothing_happens() -> None:
    script = f"import sys; sys.path.insert(0, sys.argv[1])\nfrom nvrx_chain.launcher import client\n{EVERYTHING}"
    before = "import threading, os; " + script
    after = "print(threading.active_count(), len(os.listdir('/proc/self/fd')))"
    done = python("-I", "-c", before + after, str(ROOT), environment={})
    assert (done.stdout, done.stderr) == ("False False False None\n1 4\n", "")


def test_a_launcher_that_is_not_there_costs_one_line(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom nvrx_chain.launcher import client\nclient.connect()\n"
        "for i in range(5): client.committed(i)\nprint('trained')"
    )
    done = python("-I", "-c", script, str(ROOT), environment={SOCKET_VARIABLE: str(tmp_path / "gone")})
    assert done.stdout == "trained\n"
    assert done.stderr.count("\n") == 1
    assert "goes on without the launcher" in done.stderr


def test_a_launcher_that_dies_costs_one_line_even_where_sigpipe_kills() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nclient.heartbeat(); print('up'); sys.stdin.readline()\n"
            "for i in range(50): client.start_section('x'); client.committed(i); client.end_all_sections()\n"
            "print(client.stop_restarting('x')); print('trained')"
        )
        assert line(rank) == "up"
        eventually(lambda: place.monitor._ranks[0].speaker is not None, "it was not heard")
        place.monitor.close()
        output, errors = rank.communicate("\n", timeout=PATIENCE_SECONDS)
        assert output == "False\ntrained\n"
        assert errors.count("\n") == 1, errors


def test_a_second_process_of_a_rank_is_told_why_it_is_not_heard() -> None:
    with lab(HangLimits()) as place:
        first = place.run("client.committed(1); print('up'); sys.stdin.readline()")
        assert line(first) == "up"
        place.await_sign(Marked)
        second = place.run("time.sleep(0.2)\nfor i in range(9): client.committed(2); time.sleep(0.01)")
        _, errors = second.communicate(timeout=PATIENCE_SECONDS)
        assert f"process {first.pid} speaks for this rank already" in errors
        assert errors.count("\n") == 1
        assert place.monitor.iterations() == (1,)


def test_a_forked_child_may_ask_while_its_parent_speaks() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "child = os.fork()\nif not child:\n  os._exit(not client.exclude_this_node('ECC'))\n"
            "print(os.waitpid(child, 0)[1]); client.committed(1)"
        )
        assert line(rank) == "0"
        place.await_sign(Asked)
        place.await_sign(Marked)


def test_a_signal_handler_may_speak_while_the_script_speaks() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "def handler(*_):\n  client.committed(7); print(client.stop_restarting('asked to end')); os._exit(0)\n"
            "signal.signal(signal.SIGTERM, handler); print('up')\nwhile True: client.heartbeat()"
        )
        assert line(rank) == "up"
        os.kill(rank.pid, signal.SIGTERM)
        assert line(rank) == "True"
        place.await_sign(Asked)


def test_a_request_to_a_launcher_that_does_not_answer_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        for _ in range(3):
            begun = time.monotonic()
            assert client.stop_restarting("x") is False
            assert time.monotonic() - begun < 1.0


def test_a_name_of_any_kind_is_carried() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "for name in ['', 'a\\nb', 'ü\\udc80', 'x' * 1000, 7, None, '\"}']: client.start_section(name)\n"
            "client.committed(1); print('done'); sys.stdin.readline()"
        )
        assert line(rank) == "done"
        place.await_sign(Marked)
        rules = place.monitor._ranks[0].deadlines
        assert rules is not None
        assert list(rules._open) == ["unnamed", "a\nb", "ü?", "x" * 100, "7", "None", '"}']
        go(rank)


def test_an_unknown_mark_is_an_error_outside_and_inside_the_launcher() -> None:
    with pytest.raises(ValueError, match="process_group_ready"):
        client.mark("lunch")


def test_a_section_ends_when_its_block_raises() -> None:
    with lab(HangLimits()) as place:
        rank = place.run(
            "try:\n  with client.section('step'): 1 / 0\nexcept ZeroDivisionError: client.committed(1); print('done')\n"
            "sys.stdin.readline()"
        )
        assert line(rank) == "done"
        place.await_sign(Marked)
        rules = place.monitor._ranks[0].deadlines
        assert rules is not None
        assert not rules._open
        go(rank)
