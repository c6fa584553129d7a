"""What each scenario submits, and which launcher it gets."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from nvrx_chain.demo.hand_off import HAND_OFF, TARGET_ITERATION
from nvrx_chain.demo.no_restart import NO_RESTART, SCRIPT_NAME
from nvrx_chain.demo.scenario import Scenario
from nvrx_chain.demo.submission import build_submission
from nvrx_chain.demo.walltime import WALLTIME
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.config import ChainConfig

PYTHON = """#!/bin/sh
# An interpreter that finds every module in {site}, and none of the launcher elsewhere.
PYTHONPATH={site} exec {python} -S "$@"
"""


@pytest.fixture
def said() -> list[str]:
    return []


def interpreter(tmp_path: Path, *, with_ft_launcher: bool) -> str:
    """An interpreter that has torch, nvrx_chain and, if asked, ft_launcher: packages that hold nothing."""
    site = tmp_path / "site"
    names = ["torch", "nvrx_chain", *(["nvidia_resiliency_ext"] if with_ft_launcher else [])]
    for name in names:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    path = tmp_path / "python"
    path.write_text(PYTHON.format(site=shlex.quote(str(site)), python=shlex.quote(sys.executable)))
    path.chmod(0o755)
    return str(path)


def build(scenario: Scenario, place: Path, python: str, said: list[str], launcher: LauncherKind | None) -> ChainConfig:
    return build_submission(
        scenario, place, launcher=launcher, python=python, interpreter=sys.executable, say=said.append
    )


def test_without_a_wish_it_is_ft_launcher_where_it_can_be_imported(tmp_path: Path, said: list[str]) -> None:
    config = build(HAND_OFF, tmp_path, interpreter(tmp_path, with_ft_launcher=True), said, None)
    assert config.launcher.kind is LauncherKind.FT_LAUNCHER
    assert said == []


def test_without_ft_launcher_it_is_torchrun_and_that_is_said_in_one_line(tmp_path: Path, said: list[str]) -> None:
    python = interpreter(tmp_path, with_ft_launcher=False)
    config = build(HAND_OFF, tmp_path, python, said, None)
    assert config.launcher.kind is LauncherKind.TORCHRUN
    assert said == [f"{python} cannot import nvidia_resiliency_ext (ft_launcher): taking torchrun"]


def test_an_interpreter_that_does_not_start_is_left_to_the_preflight(tmp_path: Path, said: list[str]) -> None:
    config = build(HAND_OFF, tmp_path, str(tmp_path / "none"), said, None)
    assert config.launcher.kind is LauncherKind.FT_LAUNCHER
    assert said == []


def test_a_wish_for_torchrun_is_granted_without_looking(tmp_path: Path, said: list[str]) -> None:
    config = build(HAND_OFF, tmp_path, str(tmp_path / "none"), said, LauncherKind.TORCHRUN)
    assert config.launcher.kind is LauncherKind.TORCHRUN


def test_hand_off_has_spares_of_both_kinds_and_three_generations(tmp_path: Path, said: list[str]) -> None:
    config = build(HAND_OFF, tmp_path, sys.executable, said, LauncherKind.TORCHRUN)
    shape = config.shape
    assert (shape.train_tasks, shape.hot_spares, shape.cold_spares, config.chain_depth) == (2, 1, 2, 3)
    assert shape.throttle < HAND_OFF.nodes, "with a lost node there must still be one for each task and hot spare"
    assert config.completion.target_iteration == TARGET_ITERATION
    assert config.run_directory == tmp_path / "chain"


def test_walltime_warns_before_the_limit_and_saves_on_nothing_else(tmp_path: Path, said: list[str]) -> None:
    config = build(WALLTIME, tmp_path, sys.executable, said, LauncherKind.TORCHRUN)
    assert config.time_limit is not None
    assert config.time_limit.seconds == 120
    # Slurm warns up to 30 s earlier than asked: what is left before is for starting and training.
    assert config.thresholds.walltime_warning + 30 <= 60
    words = config.workload.words
    assert words[words.index("--save-interval") + 1] == "0"


def test_no_restart_brings_its_own_launcher_from_a_directory_with_any_name(tmp_path: Path, said: list[str]) -> None:
    place = tmp_path / "it's {a} 100% b&c #1"
    place.mkdir()
    config = build(NO_RESTART, place, sys.executable, said, LauncherKind.FT_LAUNCHER)
    assert config.launcher.kind is LauncherKind.COMMAND
    filled = [word.format(node_rank=1) for word in config.launcher.command]
    assert filled == ["/bin/sh", str(place / SCRIPT_NAME), "1"]
    assert (config.shape.nodes_per_task, config.workload.words) == (2, ())


def test_the_users_settings_do_not_change_the_demo(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVRX_TRAIN_TASKS", "64")
    monkeypatch.setenv("NVRX_MAX_RESTARTS", "0")
    config = build(HAND_OFF, tmp_path, sys.executable, said, LauncherKind.TORCHRUN)
    assert (config.shape.train_tasks, config.launcher.max_restarts) == (2, 5)


@pytest.mark.parametrize(("hooks", "forgets"), [("no-resume", True), ("no-fence", False), ("", False)])
def test_only_the_hook_makes_training_forget_its_checkpoints(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, hooks: str, forgets: bool
) -> None:
    monkeypatch.setitem(os.environ, "NVRX_CHAIN_TEST_HOOKS", hooks)
    config = build(HAND_OFF, tmp_path, sys.executable, said, LauncherKind.TORCHRUN)
    assert ("--fresh-start" in config.workload.words) is forgets
