"""From what people type after `--` to the words behind a launcher's flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.workload import Workload, mock_gpt_workload, parse_workload

HERE = Path("/home/alice/my project")


def words(*command: str) -> tuple[str, ...]:
    return parse(*command).words


def parse(*command: str) -> Workload:
    return parse_workload(command, LauncherKind.TORCHRUN, HERE)


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        (("train.py", "--lr", "1e-4"), (f"{HERE}/train.py", "--lr", "1e-4")),
        (("python", "train.py", "--x"), (f"{HERE}/train.py", "--x")),
        (("python3.11", "-u", "train.py"), (f"{HERE}/train.py",)),
        (("/opt/env/bin/python", "/data/train"), ("/data/train",)),
        (("python", "-m", "my.train", "--x"), ("-m", "my.train", "--x")),
        (("-m", "my.train"), ("-m", "my.train")),
        (("bash", "run.sh"), ("--no-python", "bash", "run.sh")),
        (("./run.sh", "a b"), ("--no-python", f"{HERE}/run.sh", "a b")),
        (("--no-python", "bash", "x"), ("--no-python", "bash", "x")),
        (("../train.py",), ("/home/alice/train.py",)),
    ],
)
def test_the_stored_words_are_what_a_launcher_takes(typed: tuple[str, ...], stored: tuple[str, ...]) -> None:
    assert words(*typed) == stored


def test_a_script_is_to_be_looked_for_and_a_word_on_the_path_is_not() -> None:
    assert parse("train.py").program == f"{HERE}/train.py"
    assert parse("bash", "run.sh").program is None
    assert parse("python", "-m", "my.train").program is None


def test_an_interpreter_given_by_its_path_is_kept_and_a_bare_word_is_not() -> None:
    assert parse("/opt/env/bin/python", "train.py").interpreter == "/opt/env/bin/python"
    assert parse("env/bin/python", "-m", "x").interpreter == f"{HERE}/env/bin/python"
    assert parse("python", "train.py").interpreter is None


@pytest.mark.parametrize(
    ("typed", "match"),
    [
        (("python",), "without a script"),
        (("python", "-u"), "without a script"),
        (("python", "-m"), "without a module"),
        (("python", "-X", "dev", "train.py"), "an option of the interpreter"),
        (("python", "-c", "print()"), "an option of the interpreter"),
        (("--no-python",), "without a program"),
        (("--lr", "3"), "starts with an option"),
    ],
)
def test_what_a_launcher_cannot_run_is_refused(typed: tuple[str, ...], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        parse(*typed)


def test_a_launcher_command_gets_the_workload_as_it_was_typed() -> None:
    typed = ("python", "-X", "dev", "train.py")
    assert parse_workload(typed, LauncherKind.COMMAND, HERE).words == typed


def test_the_built_in_training_is_told_its_files_and_its_last_iteration() -> None:
    run = RunDirectory(Path("/r u n"))
    workload = mock_gpt_workload(
        run, ("--step-seconds", "0.1"), target_iteration=40, launcher=LauncherKind.TORCHRUN, python="/py"
    )
    assert workload.words == (
        "-m",
        "nvrx_chain.workloads.mock_gpt",
        "--checkpoint-dir",
        "/r u n/checkpoints",
        "--event-file",
        "/r u n/events/rank{rank}.jsonl",
        "--target-iteration",
        "40",
        "--step-seconds",
        "0.1",
    )
    assert workload.built_in


def test_the_built_in_training_is_a_whole_command_for_a_launcher_command() -> None:
    workload = mock_gpt_workload(
        RunDirectory(Path("/r")), (), target_iteration=None, launcher=LauncherKind.COMMAND, python="/py"
    )
    assert workload.words[:3] == ("/py", "-m", "nvrx_chain.workloads.mock_gpt")
