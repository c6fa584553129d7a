"""What a prologue exports is what the launcher gets; one that fails starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_chain.launchers.prologue import behind_prologue
from nvrx_chain.launchers.seats import LaunchPlan

PRINT = "import os, sys; print(os.getpid(), os.environ.get('NCCL_DEBUG'), sys.argv[1:])"


def run(tmp_path: Path, prologue: str, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / 'a "prologue" & $(touch x).sh'
    script.write_text(prologue)
    plan = LaunchPlan(argv=(sys.executable, "-c", PRINT, *words), environment={})
    argv = behind_prologue(plan, str(script)).argv
    environ = {"PATH": os.defpath}
    return subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_prologue_nothing_is_put_before_the_launcher() -> None:
    plan = LaunchPlan(argv=("a", "b c"), environment={"X": "1"})
    assert behind_prologue(plan, None) is plan


def test_the_launcher_gets_what_the_prologue_exports_and_every_word_as_it_was(tmp_path: Path) -> None:
    words = ["two words", "$HOME", "`id`", "", "--", "*"]
    done = run(tmp_path, "export NCCL_DEBUG=INFO\n", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1)[1] == f"INFO {words}\n"
    assert not (tmp_path / "x").exists()


def test_the_launcher_is_the_process_that_was_started(tmp_path: Path) -> None:
    plan = LaunchPlan(argv=(sys.executable, "-c", PRINT), environment={})
    script = tmp_path / "p.sh"
    script.write_text("true\n")
    with subprocess.Popen(behind_prologue(plan, str(script)).argv, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=60)
    assert out.split()[0] == str(process.pid)


@pytest.mark.parametrize(("text", "code"), [("false\n", 1), ("exit 7\n", 7), ("no-such-module load x\n", 127)])
def test_a_prologue_that_fails_starts_nothing(tmp_path: Path, text: str, code: int) -> None:
    done = run(tmp_path, text)
    assert done.returncode == code
    assert done.stdout == ""


def test_a_prologue_that_is_gone_is_named(tmp_path: Path) -> None:
    argv = behind_prologue(LaunchPlan(argv=("true",), environment={}), str(tmp_path / "gone.sh")).argv
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "gone.sh" in done.stderr


def test_a_prologue_that_is_a_link_is_not_sourced(tmp_path: Path) -> None:
    (tmp_path / "real.sh").write_text("echo sourced\n")
    (tmp_path / "link.sh").symlink_to("real.sh")
    argv = behind_prologue(LaunchPlan(argv=("echo", "started"), environment={}), str(tmp_path / "link.sh")).argv
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a file of this user" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_a_prologue_that_somebody_else_put_there_is_not_sourced(tmp_path: Path) -> None:
    script = tmp_path / "p.sh"
    script.write_text("echo sourced\n")
    os.chown(script, 4242, 4242)
    argv = behind_prologue(LaunchPlan(argv=("echo", "started"), environment={}), str(script)).argv
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
