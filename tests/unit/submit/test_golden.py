"""The dry run and the script of eight shapes, word for word. NVRX_UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain import __version__
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.entry import Entry
from nvrx_chain.submit.preview import SubmitPreview
from nvrx_chain.submit.show import render_preview
from tests.unit.submit.chains import NASTY, make_plan
from tests.unit.submit.chains import make_config as make

GOLDEN = Path(__file__).parents[2] / "golden"

SHAPES: dict[str, dict[str, Any]] = {
    "one-task": {"train_tasks": "1", "hot_spares": "0", "cold_spares": "0", "chain_depth": "1"},
    "spares-and-gpus": {"gpus_per_node": "8", "time_limit": "4:00:00", "target_iteration": "1000"},
    "many-tasks": {"train_tasks": "32", "hot_spares": "1", "cold_spares": "0", "name": "llama", "partition": "batch"},
    "multi-node-segments": {
        "nodes_per_task": "4",
        "gpus_per_node": "4",
        "segment": "8",
        "train_tasks": "4",
        "launcher": "ft_launcher",
        "command": ("python", "train.py", "--config", "run.yaml"),
    },
    "torchrun": {
        "launcher": "torchrun",
        "time_limit": "2",
        "exclusive": False,
        "command": ("-m", "my.train"),
        "complete_on_exit_zero": True,
    },
    "megatron-small": {
        "workload": "megatron-gpt",
        "megatron_path": "/shared/megatron-lm",
        "launcher": "ft_launcher",
        "gpus_per_node": "4",
        "target_iteration": "500",
        "no_restart_demo": True,
        "fault_delay": "30",
    },
    "megatron-8b": {
        "workload": "megatron-gpt",
        "megatron_path": "/shared/megatron-lm",
        "model_profile": "8b",
        "launcher": "ft_launcher",
        "train_tasks": "32",
        "gpus_per_node": "8",
        "time_limit": "2:00:00",
        "command": ("--tensor-model-parallel-size", "2", "--sequence-parallel"),
    },
    "nasty-directory": {
        "run_dir": f"/data/{NASTY}",
        "sbatch_arg": ("--licenses=a b", "--nice=100"),
        "account": "phys",
        "done_file": "DONE",
    },
}


def preview(shape: str) -> SubmitPreview:
    config = make(interpreter="/opt/nvrx chain/bin/python", **{"run_dir": f"/data/{shape}", **SHAPES[shape]})
    return SubmitPreview(plan=make_plan(config), entry=Entry.NEW, directory=DirectoryState(), uid=1001, problems=())


def compare(path: Path, text: str) -> None:
    if os.environ.get("NVRX_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; NVRX_UPDATE_GOLDEN=1 accepts the new text"


def without_version(text: str) -> str:
    """A release changes the version and nothing else."""
    return text.replace(f"script_version={__version__}", "script_version=VERSION").replace(
        f'"package_version": "{__version__}"', '"package_version": "VERSION"'
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_the_dry_run_is_the_recorded_one(shape: str) -> None:
    compare(GOLDEN / f"{shape}.dry-run.txt", without_version(render_preview(preview(shape), as_json=False)) + "\n")


def test_the_dry_run_as_data_is_the_recorded_one() -> None:
    data = json.loads(without_version(render_preview(preview("nasty-directory"), as_json=True)))
    # Their defaults stand in one place, and it is not this record.
    assert data["manifest"].pop("thresholds")["walltime_warning"] == 180.0
    compare(GOLDEN / "nasty-directory.dry-run.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_script_is_valid_bash_and_clean_to_shellcheck(shape: str, tmp_path: Path) -> None:
    script = tmp_path / "generation.sbatch"
    script.write_text(preview(shape).plan.script)
    assert shutil.which("shellcheck"), "shellcheck is part of the development set-up: apt-get install shellcheck"
    for command in (["bash", "-n"], ["shellcheck", "--severity=style"]):
        checked = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
