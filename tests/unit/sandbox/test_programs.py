from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import programs

ENVIRON = {"PATH": "/usr/bin:/bin"}


def _install(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)


def test_missing_programs_are_named_with_the_command_that_brings_them(tmp_path: Path) -> None:
    present = set(programs._PACKAGES) - {"slurmctld", "squeue", "srun"}
    _install(tmp_path, *present)
    with pytest.raises(SandboxError) as caught:
        programs.locate(str(tmp_path), accounting=False)
    assert str(caught.value) == (
        "starting a sandbox: not installed: slurmctld, squeue, srun (apt-get install -y slurm-client slurmctld)"
    )


def test_accounting_needs_its_programs_and_only_then(tmp_path: Path) -> None:
    _install(tmp_path, *programs._PACKAGES)
    assert programs.locate(str(tmp_path), accounting=False)["srun"] == str(tmp_path / "srun")
    with pytest.raises(SandboxError, match=r"apt-get install -y mariadb-server slurm-client slurmdbd"):
        programs.locate(str(tmp_path), accounting=True)


def test_the_search_path_gains_the_system_directories_once() -> None:
    assert programs.search_path({"PATH": "/opt/a b::/usr/bin"}) == (
        "/opt/a b:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"
    )
    assert programs.search_path({}).startswith("/usr/local/sbin:")


def test_a_failure_says_what_was_being_done_the_code_and_the_last_words() -> None:
    script = "echo one >&2; echo two >&2; exit 3"
    with pytest.raises(SandboxError, match=r"^reading the queue: exit 3, one / two: sh -c ") as caught:
        programs.run(("sh", "-c", script), environ=ENVIRON, timeout_seconds=30, doing="reading the queue")
    assert "\n" not in str(caught.value)


def test_a_program_that_hangs_is_ended_and_said_so() -> None:
    with pytest.raises(SandboxError, match=r"^asking: no end after 0.2 s: sleep 60 \("):
        programs.run(("sleep", "60"), environ=ENVIRON, timeout_seconds=0.2, doing="asking")


def test_a_program_that_cannot_start_is_an_error_of_the_sandbox() -> None:
    with pytest.raises(SandboxError, match=r"^asking: .*no-such-program"):
        programs.run(("no-such-program",), environ=ENVIRON, timeout_seconds=5, doing="asking")


def test_what_was_printed_comes_back() -> None:
    assert programs.run(("echo", "a  b"), environ=ENVIRON, timeout_seconds=30, doing="asking") == "a  b\n"
