"""Tab: the protocol of click's completion, driven as a shell drives it, and a real bash with our script."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nvrx_chain.cli import cli
from nvrx_chain.commands import completing
from nvrx_chain.commands.completing import complete_chain
from nvrx_chain.commands.ops import status
from nvrx_chain.sandbox import record
from nvrx_chain.slurm import command_client as squeue_client
from nvrx_chain.slurm.parse.squeue import QUEUE_COLUMNS
from tests.unit.slurm.programs import FakePrograms

BIN = Path(sys.executable).parent


def complete(
    *words: str, program: str = "nvrx-chain", cwd: Path, environ: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    """(type, value) of everything offered for the last word."""
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    asked = {variable: "bash_complete", "COMP_WORDS": "\n".join((program, *words)), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [str(BIN / program)],
        env={**os.environ, **(environ or {}), **asked},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [(kind, value) for kind, _, value in (line.partition(",") for line in done.stdout.splitlines())]


def values(offered: list[tuple[str, str]]) -> list[str]:
    return [value for kind, value in offered if kind == "plain"]


def make_chains(directory: Path, *names: str) -> None:
    for name in names:
        (directory / "nvrx-chains" / name).mkdir(parents=True)
        (directory / "nvrx-chains" / name / "chain.json").write_text("{}")


def test_commands_are_offered_without_importing_them(tmp_path: Path) -> None:
    offered = values(complete("s", cwd=tmp_path, environ={"PYTHONPROFILEIMPORTTIME": ""}))
    assert offered == ["submit", "status", "sandbox"]
    assert "run-task" not in values(complete("", cwd=tmp_path))


def test_naming_the_commands_imports_none_of_them() -> None:
    code = (
        "import sys, click; from nvrx_chain.cli import cli\n"
        "print(len(cli.shell_complete(click.Context(cli), '')))\n"
        "print([name for name in sys.modules if name.startswith('nvrx_chain.commands.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    count, imported = done.stdout.splitlines()
    assert int(count) > 10
    assert imported == "[]"


def test_options_of_a_command_and_of_a_command_in_a_group_are_offered(tmp_path: Path) -> None:
    assert values(complete("submit", "--train-ta", cwd=tmp_path)) == ["--train-tasks"]
    assert values(complete("sandbox", "stop-controller", "--k", cwd=tmp_path)) == ["--kill"]
    assert {"--all-mine", "--allow"} <= set(values(complete("--all", program="nvrx-watch", cwd=tmp_path)))


def test_values_of_options_are_offered(tmp_path: Path) -> None:
    assert values(complete("submit", "--launcher", "", cwd=tmp_path)) == ["nvrx", "ft_launcher", "torchrun", "command"]
    assert values(complete("demo", "--scenario", "w", cwd=tmp_path)) == ["walltime"]
    assert complete("submit", "--run-dir", "a", cwd=tmp_path) == [("dir", "a")]
    assert complete("submit", "--prologue", "a", cwd=tmp_path) == [("file", "a")]
    assert "hold" in values(complete("--allow", "", program="nvrx-watch", cwd=tmp_path))


def test_chains_near_are_offered_and_those_a_shell_would_take_apart_are_not(tmp_path: Path) -> None:
    make_chains(tmp_path, "run7", "run8", "run & dir #1")
    (tmp_path / "nvrx-chains" / "no-chain").mkdir()
    silent = {"PATH": "/no/slurm"}
    # Directories are offered by the shell where no chain fits; that item has to come first.
    offered = complete("status", "", cwd=tmp_path, environ=silent)
    assert offered == [("dir", "."), ("plain", "nvrx-chains/run7"), ("plain", "nvrx-chains/run8")]
    assert values(complete("cancel", "nvrx-chains/run8", cwd=tmp_path, environ=silent)) == ["nvrx-chains/run8"]
    assert values(complete("logs", "x", cwd=tmp_path, environ=silent)) == []


def test_live_jobs_of_own_chains_are_offered_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        ("41", "RUNNING", "nvrx-chain:abc/1"),
        ("42", "PENDING", "nvrx-chain:abc/2"),
        ("43", "RUNNING", "somebody's own"),
        ("44", "COMPLETED", "nvrx-chain:abc/0"),
    ]
    rows = []
    for job, state, comment in jobs:
        known = {"job_id": job, "array_job_id": job, "array_task": "0", "state": state, "comment": comment}
        rows.append("|".join(known.get(name, "x") for name, _code in QUEUE_COLUMNS))
    fake = FakePrograms(tmp_path / "bin")
    monkeypatch.setattr(squeue_client, "unguessable_separator", lambda: "|")
    fake.put_plain("squeue", "cat <<'END'\n" + "\n".join(rows) + "\nEND")
    monkeypatch.setenv("PATH", fake.environ["PATH"])
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.chdir(tmp_path)
    # A second is for people; here the machine may be busy.
    monkeypatch.setattr(completing, "SLURM_SECONDS", 30.0)

    def offered(word: str) -> list[str]:
        argument = next(parameter for parameter in status.params if parameter.name == "chain")
        return [item.value for item in complete_chain(click.Context(status), argument, word) if item.type == "plain"]

    assert offered("") == ["42", "41"]
    assert offered("41") == ["41"]
    # A word that is no number can be no job: Slurm is not asked.
    fake.path("squeue").unlink()
    assert offered("n") == []


def test_a_slurm_that_hangs_costs_a_second_and_no_word_on_the_terminal(tmp_path: Path) -> None:
    make_chains(tmp_path, "run7")
    fake = FakePrograms(tmp_path / "bin")
    fake.put_plain("squeue", "exec sleep 60")
    fake.put_plain("sinfo", "echo 'a complaint' >&2; exec sleep 60")
    began = time.monotonic()
    assert values(complete("status", "", cwd=tmp_path, environ=fake.environ)) == ["nvrx-chains/run7"]
    assert values(complete("doctor", "--on-node", "n", cwd=tmp_path, environ=fake.environ)) == []
    assert completing.SLURM_SECONDS == 1.0
    # Two of them, each with a start of Python on a machine that does other things.
    assert time.monotonic() - began < 20


def test_nodes_of_a_sandbox_that_is_not_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "REGISTER", tmp_path / "register")
    assert values(complete("sandbox", "kill-node", "--dir", str(tmp_path), "", cwd=tmp_path)) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_completes_both_commands(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0, done.output
    for program, variable in (("nvrx-chain", "_NVRX_CHAIN_COMPLETE"), ("nvrx-watch", "_NVRX_WATCH_COMPLETE")):
        assert f"{variable}={shell}_complete" in done.output
        assert program in done.output


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash_completes_what_is_typed(tmp_path: Path) -> None:
    make_chains(tmp_path, "run7")
    settings = tmp_path / "bashrc"
    settings.write_text(
        f"PS1='ready> '; export PATH={BIN}:/usr/bin:/bin\nbind 'set enable-bracketed-paste off'\n"
        'eval "$(nvrx-chain completion bash)"\n'
    )
    with Terminal(["bash", "--noprofile", "--rcfile", str(settings), "-i"], cwd=tmp_path) as terminal:
        terminal.wait_for("ready> ")
        terminal.type("nvrx-chain sta\t")
        terminal.wait_for("nvrx-chain status ")
        terminal.type("nvrx-chains/r\t")
        terminal.wait_for("nvrx-chains/run7")
        terminal.type("\x15nvrx-watch --act-as\t")
        terminal.wait_for("--act-as-operator")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, argv: list[str], *, cwd: Path) -> None:
        self._argv, self._cwd, self._seen = argv, cwd, ""

    def __enter__(self) -> Terminal:
        self._own, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": "/dev/null"}
        self._process = subprocess.Popen(
            self._argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=self._cwd, env=environ, start_new_session=True
        )
        os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._own)

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self._seen:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} in {self._seen!r}"
            if select.select([self._own], [], [], left)[0]:
                self._seen += os.read(self._own, 4096).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]
