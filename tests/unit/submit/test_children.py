"""A probe in a process of its own: its answer, its failure, its hanging."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from nvrx_chain.errors import Unobserved
from nvrx_chain.submit.children import AskedChild, ask_child, running_child


def run(code: str, *, seconds: float = 20.0, is_partial_enough: bool = False) -> bytes | Unobserved:
    argv = [sys.executable, "-c", code]
    return ask_child(argv, os.environ, seconds=seconds, is_partial_enough=is_partial_enough)


def test_an_answer_is_what_was_printed_and_the_child_starts_in_the_root() -> None:
    assert run("import os; print(os.getcwd())") == b"/\n"


def test_a_child_that_fails_is_unobserved_with_its_last_words() -> None:
    answer = run("raise SystemExit('the driver\\nis not loaded')")
    assert isinstance(answer, Unobserved)
    assert answer.reason.endswith("ended with 1: is not loaded")


def test_a_child_that_is_killed_by_a_crash_is_unobserved() -> None:
    answer = run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert isinstance(answer, Unobserved)
    assert "-11" in answer.reason


def test_a_program_that_is_not_there_is_unobserved() -> None:
    assert isinstance(ask_child(["/no/such/python"], os.environ, seconds=5), Unobserved)


def test_a_child_that_hangs_is_given_up_with_everything_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    began = time.monotonic()
    assert run(code, seconds=1.0) == Unobserved("no answer within 1 s")
    # Killed as a group: the grandchild holds the pipe, and would be waited for otherwise.
    assert time.monotonic() - began < 10


def test_two_children_work_at_the_same_time() -> None:
    code = "import time; time.sleep(3); print('done')"
    began = time.monotonic()
    both = [AskedChild([sys.executable, "-c", code], os.environ) for _ in range(2)]
    assert [child.answer(seconds=30) for child in both] == [b"done\n", b"done\n"]
    assert time.monotonic() - began < 5.9


def test_whole_lines_of_a_child_that_hangs_are_an_answer_where_that_was_asked_for() -> None:
    code = "import time; print('first', flush=True); print('half', end='', flush=True); time.sleep(60)"
    assert run(code, seconds=3.0, is_partial_enough=True) == b"first\n"
    assert isinstance(run(code, seconds=1.0), Unobserved)


def test_a_child_beside_a_block_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r} + '.new', 'w').write(str(os.getpid()))\n"
    code += f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r}); time.sleep(60)"
    with running_child([sys.executable, "-c", code], os.environ):
        deadline = time.monotonic() + 20
        while not pid_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
