"""The command line and the environment of a rank, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.workloads.faults import FaultKind
from nvrx_chain.workloads.options import DeviceChoice, OnSigterm, Options, parse_options
from nvrx_chain.workloads.placement import read_placement

REPOSITORY = Path(__file__).parents[3]
LAUNCHED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}


def test_no_options_are_the_defaults() -> None:
    assert parse_options([]) == Options()


def test_options_arrive_where_they_belong() -> None:
    options = parse_options(
        [
            *("--checkpoint-dir", "a b", "--untied-head", "--width=32", "--on-sigterm=save", "--device=cpu"),
            *("--fault=rank=0,iteration=1,kind=hang", "--fault=rank=0,iteration=2,kind=sigkill"),
            *("--step-seconds=.5", "--collective-timeout=9", "--async-save"),
        ]
    )
    assert options.checkpoint_dir == Path("a b")
    assert not options.model.tied_head
    assert options.model.width == 32
    assert options.on_sigterm is OnSigterm.SAVE
    assert options.device is DeviceChoice.CPU
    assert [fault.kind for fault in options.faults] == [FaultKind.HANG, FaultKind.SIGKILL]
    assert (options.step_seconds, options.collective_timeout_seconds, options.async_save) == (0.5, 9.0, True)


@pytest.mark.parametrize(
    "argument",
    [
        "--target-iteration=0",
        "--keep=0",
        "--log-interval=0",
        "--step-seconds=-1",
        "--step-seconds=nan",
        "--dropout=1",
        "--vocabulary=1",
        "--on-sigterm=ignore",
        "--target=5",
        "--layers=two",
    ],
)
def test_a_bad_option_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options([argument])
    assert caught.value.code == 2
    assert argument.partition("=")[0] in capsys.readouterr().err


def test_heads_must_share_the_width() -> None:
    with pytest.raises(UsageError, match="a width of 64 cannot be shared by 3 heads"):
        parse_options(["--heads=3"])


def test_the_same_fault_twice_is_refused() -> None:
    fault = "--fault=rank=0,iteration=1,kind=hang"
    with pytest.raises(UsageError, match="asked for twice"):
        parse_options([fault, fault])


def test_help_names_every_option_and_needs_no_torch() -> None:
    program = (
        "import sys, contextlib; from nvrx_chain.workloads.mock_gpt import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "--target-iteration N" in finished.stdout
    assert "save and exit 0 there (200)" in finished.stdout


def test_a_launcher_places_a_rank() -> None:
    placement = read_placement(
        {**LAUNCHED, "SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "0", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert (placement.rank, placement.local_rank, placement.world_size) == (3, 1, 4)
    assert (placement.array_job_id, placement.array_task_id, placement.restart_count) == (42, 0, 2)
    assert placement.host


def test_without_a_launcher_there_is_one_rank() -> None:
    placement = read_placement({"LOCAL_RANK": "0", "HOME": "/"})
    assert (placement.rank, placement.local_rank, placement.world_size) == (0, 0, 1)
    assert (placement.array_job_id, placement.array_task_id, placement.restart_count) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"MASTER_PORT": None}, r"some of env:// is missing: MASTER_PORT \(start it under"),
        ({"RANK": "4"}, "RANK 4 is not below WORLD_SIZE 4"),
        ({"RANK": "-1"}, "RANK='-1' is not a whole number"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "RANK 0 is not below WORLD_SIZE 0"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE='four' is not a whole number"),
    ],
)
def test_a_half_set_launcher_is_refused(change: dict[str, str | None], complaint: str) -> None:
    environment = {name: value for name, value in {**LAUNCHED, **change}.items() if value is not None}
    with pytest.raises(UsageError, match=complaint):
        read_placement(environment)
