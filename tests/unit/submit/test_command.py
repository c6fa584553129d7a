"""`nvrx-chain submit` as it is typed, in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvrx_chain.cli import cli
from nvrx_chain.commands.submit import current_directory
from nvrx_chain.submit.options import OPTIONS, Section
from tests.fakes.pyslurm_bench import STAND_IN, recorded

ROOT = Path(__file__).parents[3]
DRY_RUN_LIMIT_SECONDS = 0.4
SHAPE = ("--train-tasks", "2", "--hot-spares", "1", "--allow-local-run-dir")


def environment(tmp_path: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the caller's settings; compiled modules are kept, as an installed package has them."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(tmp_path.parent / "pycache"),
        **(more or {}),
    }


def run(
    tmp_path: Path, *arguments: str, environ: Mapping[str, str] | None = None, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    here = tmp_path / "pro ject"
    here.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *python, "-m", "nvrx_chain", "submit", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=here,
        env=environment(tmp_path, environ),
    )


def test_a_dry_run_prints_commands_and_script_and_makes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--dry-run", environ={"PATH": "/nowhere"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("sbatch --parsable ") for line in lines) == 3
    assert "#!/bin/bash" in lines
    assert list((tmp_path / "pro ject").iterdir()) == []


def test_a_dry_run_without_slurm_says_so_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--dry-run", environ={"PATH": "/nowhere"})
    said = [line for line in done.stderr.splitlines() if "the cluster was not checked" in line]
    assert len(said) == 1
    assert "no such program on PATH" in said[0]


def test_a_dry_run_of_what_would_be_refused_says_why_and_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "--train-tasks", "2", "--run-dir", "/dev/shm/run", "--dry-run")
    assert done.returncode == 2
    assert "error: the run directory /dev/shm/run" in done.stderr
    assert "sbatch --parsable " in done.stdout


def test_the_dry_run_as_data_is_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--dry-run", "--json", "--run-dir", "/data/run")
    shown = json.loads(done.stdout)
    assert [generation["argv"][0] for generation in shown["generations"]] == ["sbatch"] * 3
    assert shown["script_path"] == "/data/run/generation.sbatch"
    assert shown["script"].startswith("#!/bin/bash\n")
    assert {problem["severity"] for problem in shown["problems"]} <= {"note", "warning"}


def test_a_submit_without_slurm_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, environ={"PATH": "/nowhere"})
    assert done.returncode == 2
    assert "Slurm does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "pro ject").iterdir()) == []


def test_the_dry_run_switch_works_from_the_environment(tmp_path: Path) -> None:
    environ = {"NVRX_DRY_RUN": "1", "NVRX_TRAIN_TASKS": "4", "NVRX_ALLOW_LOCAL_RUN_DIR": "1", "NODES_PER_TASK": "2"}
    done = run(tmp_path, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "--array=0-3%4" in done.stdout
    assert "--nodes=2" in done.stdout


def test_the_file_of_the_current_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "pro ject").mkdir()
    (tmp_path / "pro ject" / "nvrx-chain.toml").write_text("train-tasks = 3\n")
    done = run(tmp_path, "--show-config")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["train-tasks", "=", "3", "#", "file", "nvrx-chain.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the number of training tasks is not set"),
        (("--train-tasks", "x"), "'x' is not a whole number"),
        (("--train-tasks", "2", "--sbatch-arg=-Jfoo"), "--job-name cannot be passed to sbatch"),
        (("--train-tasks", "2", "--nope"), "No such option"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_words_after_the_dashes_are_the_workload_untouched(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--dry-run", "--json", "--", "python", "-m", "my.train", "--dry-run", "-x", "a b")
    assert json.loads(done.stdout)["manifest"]["workload"] == ["-m", "my.train", "--dry-run", "-x", "a b"]


def test_a_built_in_workload_takes_further_words(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--dry-run", "--json", "--workload", "mock-gpt", "--", "--layers", "2")
    assert json.loads(done.stdout)["manifest"]["workload"][-2:] == ["--layers", "2"]


def test_a_dry_run_is_fast_and_never_imports_torch(tmp_path: Path) -> None:
    run(tmp_path, *SHAPE, "--dry-run")
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run(tmp_path, *SHAPE, "--dry-run", environ={"PATH": "/nowhere"}).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Processor time, because it waits for nothing here: on a machine with other work the wall clock measures that.
    assert min(seconds) < DRY_RUN_LIMIT_SECONDS, seconds
    imported = run(tmp_path, *SHAPE, "--dry-run", python=("-X", "importtime")).stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in imported.splitlines() if "|" in line}
    assert "nvrx_chain" in loaded
    assert not loaded & {"torch", "pynvml", "pyslurm", "rich", "ClusterShell", "numpy"}


def test_the_help_page_has_every_option_under_its_heading() -> None:
    page = CliRunner().invoke(cli, ["submit", "--help"]).output
    for option in OPTIONS:
        assert option.positional or f"--{option.key}" in page
        assert all(name in page.replace("\n", " ") for name in option.environment)
    assert all(f"{section.value}:" in page for section in Section)


def test_the_current_directory_is_named_as_the_shell_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "real")
    assert current_directory({"PWD": str(tmp_path / "link")}) == tmp_path / "link"
    assert current_directory({"PWD": str(tmp_path)}) == tmp_path / "real"
    assert current_directory({"PWD": "link"}) == tmp_path / "real"
    assert current_directory({}) == tmp_path / "real"


def test_a_dry_run_through_pyslurm_says_that_it_is_and_prints_the_same_commands(tmp_path: Path) -> None:
    world = tmp_path / "world.json"
    world.write_text(json.dumps(recorded("running")))
    environ = {"PATH": "/nowhere", "PYTHONPATH": f"{ROOT}:{STAND_IN}", "FAKE_PYSLURM": str(world)}
    shape = (*SHAPE, "--name", "run7", "--dry-run", "--json")
    plain = run(tmp_path, *shape, environ=environ)
    chosen = run(tmp_path, *shape, "--slurm-client", "pyslurm", environ=environ)
    assert chosen.returncode == 0, chosen.stderr
    notes = [line for line in chosen.stderr.splitlines() if "recorded behaviour only" in line]
    assert len(notes) == 1
    # No Slurm program is on PATH: the cluster's name is known through PySlurm alone.
    seen, unseen = json.loads(chosen.stdout), json.loads(plain.stdout)
    assert (seen["manifest"]["cluster"], unseen["manifest"]["cluster"]) == ("sandbox", None)
    assert [one["argv"][:2] for one in seen["generations"]] == [one["argv"][:2] for one in unseen["generations"]]
    assert "recorded behaviour" not in plain.stderr


def test_a_submit_through_a_pyslurm_that_is_not_installed_makes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, environ={"NVRX_SLURM_CLIENT": "pyslurm"})
    assert done.returncode == 2, done.stderr
    assert "No module named 'pyslurm'" in done.stderr
    assert list((tmp_path / "pro ject").iterdir()) == []


def test_a_client_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, *SHAPE, "--slurm-client", "rest")
    assert done.returncode == 2
    assert "'rest' is none of command, pyslurm" in done.stderr
