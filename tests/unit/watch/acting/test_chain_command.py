"""The nvrx-chain command runs without a shell, from a place where nothing can be smuggled in, and not for ever."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvrx_chain.errors import NvrxError
from nvrx_watch.acting.chain_command import chain_command, is_usable, last_words, run_command
from nvrx_watch.acting.desk import CommandAnswer


def test_words_reach_the_command_as_they_are() -> None:
    words = ["it's", "$(touch x)", "a b", "#", "%", "&"]
    answer = run_command([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words], 30)
    assert answer == CommandAnswer(returncode=0, stdout=f"{words}\n", stderr="")


def test_a_module_in_the_current_directory_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('smuggled in')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = run_command(chain_command("--version"), 60)
    assert answer.returncode == 0, answer
    assert "smuggled in" not in answer.stderr


def test_the_watchers_own_settings_do_not_travel_into_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVRX_WATCH_PD_ROUTING_KEY", "R0UT1NG")
    monkeypatch.setenv("NVRX_TRAIN_TASKS", "2")
    answer = run_command([sys.executable, "-c", "import os; print(dict(os.environ))"], 30)
    assert "R0UT1NG" not in answer.stdout
    assert "NVRX_TRAIN_TASKS" in answer.stdout


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(mark)!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run_command([sys.executable, "-c", code], 0.5).returncode is None
    answer = run_command([sys.executable, "-c", "import time; time.sleep(2.5)"], 30)
    assert answer.returncode == 0
    assert not mark.exists()


def test_bytes_that_are_no_text_are_read_all_the_same() -> None:
    code = "import sys; sys.stderr.buffer.write(b'\\xff\\n'); sys.exit(3)"
    answer = run_command([sys.executable, "-c", code], 30)
    assert last_words(answer) == "the command ended with 3: \\xff"


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NvrxError, match="no such program"):
        run_command([str(tmp_path / "none")], 5)


def test_the_command_of_this_interpreter_is_run() -> None:
    answer = run_command(chain_command("--help"), 60)
    assert answer.returncode == 0, answer
    assert "hold" in answer.stdout


def test_relative_directories_are_not_usable() -> None:
    assert is_usable(Path("/a b"))
    assert not is_usable(Path("run"))
    assert not is_usable(Path("/a\x00b"))
