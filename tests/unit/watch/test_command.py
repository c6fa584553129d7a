"""The command as a person, cron or a pipe runs it, over real files and without a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvrx_watch.cli import main
from nvrx_watch.hang_guard import Hangs
from tests.fakes.pyslurm_bench import STAND_IN, recorded
from tests.rundirs import CHAIN_ID, Size, write_nvrx, write_own

ROOT = Path(__file__).parents[3]
SECONDS = 60


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "a run & #1 'q' 100%"
    write_own(directory, Size(generations=2, cycles=3))
    return directory


def run(
    tmp_path: Path, *words: str, environ: dict[str, str] | None = None, **popen: Any
) -> subprocess.CompletedProcess[str]:
    """nvrx-watch with a state directory of its own. The environment is cron's: next to nothing."""
    bare = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "nvrx_watch", f"--state-dir={tmp_path / 'state'}", *words]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(
        argv, env={**bare, **(environ or {})}, text=True, timeout=SECONDS, check=False, **{**streams, **popen}
    )


def look(tmp_path: Path, run_dir: Path, *words: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    return run(tmp_path, f"--run-dir={run_dir}", "--platform=none", *words, **popen)


def test_a_pass_prints_one_object_of_the_chain(tmp_path: Path, run_dir: Path) -> None:
    done = look(tmp_path, run_dir, "--json")
    shown = json.loads(done.stdout)
    assert shown["chain"]["chain_id"] == CHAIN_ID
    assert shown["unobserved"] == {}
    assert done.returncode == shown["exit_code"]
    assert done.stderr == ""


def test_a_second_pass_remembers_the_first(tmp_path: Path, run_dir: Path) -> None:
    first, second = (json.loads(look(tmp_path, run_dir, "--json").stdout) for _ in range(2))
    assert [one["key"] for one in first["findings"]] == [one["key"] for one in second["findings"]]
    assert sorted(path.suffix for path in (tmp_path / "state").iterdir() if path.is_file())


def test_plain_text_begins_with_the_verdict(tmp_path: Path, run_dir: Path) -> None:
    done = look(tmp_path, run_dir)
    assert ":" in done.stdout.splitlines()[0]
    assert done.returncode in (0, 2)


def test_one_static_frame_needs_no_terminal(tmp_path: Path, run_dir: Path) -> None:
    done = look(tmp_path, run_dir, "--live", "--once")
    assert "\x1b" not in done.stdout
    assert "a run" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "none is named"),
        (("--run-dir=/nowhere/at all",), "/nowhere/at all"),
        (("--work-dir=/nowhere/at all", "--platform=none"), "no such directory"),
        (("--all-mine", "--run-dir=/x"), "more than once"),
        (("1", "--interval=0"), "--interval"),
        (("1", "--allow=fence"), "--act"),
        (("1", "--disable=nonsense"), "nonsense"),
        (
            (
                "1",
                "--no-such-option",
            ),
            "--no-such-option",
        ),
        (("--explain=nonsense",), "nonsense"),
        (("--run-dir=", "--platform=none"), "--run-dir"),
        (("1", "--state-dir="), "--state-dir"),
        (("1", "--dry-run"), "--act"),
        (("1", "--act-as-operator"), "--act"),
        (("1", "--live", "--json"), "--json"),
        (("1", "--config=/nowhere/w.toml"), "/nowhere/w.toml"),
    ],
)
def test_bad_usage_is_64_and_one_clear_line(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 64, (done.stdout, done.stderr)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_chain_of_the_command_line_wins_over_one_from_elsewhere(tmp_path: Path, run_dir: Path) -> None:
    config = tmp_path / "w.toml"
    config.write_text('jobid = "4711"\nall-mine = true\n')
    done = look(tmp_path, run_dir, f"--config={config}", "--json", environ={"NVRX_WATCH_ALL_MINE": "1"})
    assert json.loads(done.stdout)["chain"]["chain_id"] == CHAIN_ID, done.stderr


def test_a_scheduler_that_is_not_there_is_a_degraded_watcher_and_no_bad_word(tmp_path: Path) -> None:
    done = run(tmp_path, "123")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_pyslurm_that_is_not_installed_is_64_and_one_line_that_says_how_to_mend_it(tmp_path: Path) -> None:
    done = run(tmp_path, "123", environ={"NVRX_SLURM_CLIENT": "pyslurm"})
    assert done.returncode == 64, (done.stdout, done.stderr)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("nvrx-watch: ")]
    assert "No module named 'pyslurm'" in said
    assert "go without --slurm-client pyslurm" in said
    assert "Traceback" not in done.stderr


def test_a_pass_asks_pyslurm_where_that_was_chosen(tmp_path: Path, run_dir: Path) -> None:
    world = tmp_path / "world.json"
    world.write_text(json.dumps(recorded("running")))
    environ = {"PYTHONPATH": f"{ROOT}:{STAND_IN}", "FAKE_PYSLURM": str(world)}
    done = run(tmp_path, f"--run-dir={run_dir}", "--json", "--slurm-client=pyslurm", environ=environ)
    unobserved = json.loads(done.stdout)["unobserved"]
    # No Slurm program is on PATH: whatever was seen was seen through PySlurm.
    assert "queue" not in unobserved, unobserved
    assert "recorded behaviour only" in done.stderr


def test_a_libslurm_that_ends_its_process_does_not_end_the_watcher(tmp_path: Path, run_dir: Path) -> None:
    world = tmp_path / "world.json"
    world.write_text(json.dumps({**recorded("running"), "faults": {"jobs": "exit"}}))
    environ = {"PYTHONPATH": f"{ROOT}:{STAND_IN}", "FAKE_PYSLURM": str(world)}
    done = run(tmp_path, f"--run-dir={run_dir}", "--json", "--slurm-client=pyslurm", environ=environ)
    shown = json.loads(done.stdout)
    assert "fatal: Unable to process configuration file" in shown["unobserved"]["queue"]
    assert done.returncode == shown["exit_code"] != 0


def test_help_lists_and_explanations_need_no_chain(tmp_path: Path) -> None:
    assert "--act-as-operator" in run(tmp_path, "--help").stdout
    assert "orphaned_generation" in run(tmp_path, "--list-detectors").stdout
    assert "spares" in run(tmp_path, "--explain=orphaned_generation").stdout


def test_a_current_directory_that_is_gone_costs_no_pass(tmp_path: Path, run_dir: Path) -> None:
    words = ["--platform=none", f"--run-dir={run_dir}", f"--state-dir={tmp_path / 'state'}", "--json"]
    script = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    argv = ["bash", "-c", script, str(tmp_path / "gone"), sys.executable, "-m", "nvrx_watch", *words]
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert json.loads(done.stdout)["chain"]["chain_id"] == CHAIN_ID, done.stderr
    assert "Traceback" not in done.stderr


def test_a_locale_that_cannot_spell_the_name_costs_no_pass(tmp_path: Path) -> None:
    directory = tmp_path / "läuft ☃"
    write_own(directory, Size(generations=1, cycles=1))
    done = look(tmp_path, directory, "--live", "--once", environ={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr


def test_closed_streams_cost_no_pass(tmp_path: Path, run_dir: Path) -> None:
    report = tmp_path / "report"
    words = f"'--run-dir={run_dir}'".replace("'q'", "'\\''q'\\''")
    script = f'exec "$0" -m nvrx_watch --state-dir="$1" --platform=none --json --textfile="$2" {words} <&- 2>&- >"$3"'
    argv = ["bash", "-c", script, sys.executable, str(tmp_path / "state"), str(tmp_path), str(report)]
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run(argv, env=environ, timeout=SECONDS, check=False)
    assert json.loads(report.read_text())["unobserved"] == {}
    assert list(tmp_path.glob("nvrx_watch_*.prom"))


def test_a_full_disk_behind_standard_output_keeps_the_exit_code(tmp_path: Path, run_dir: Path) -> None:
    expected = look(tmp_path, run_dir).returncode
    with open("/dev/full", "w") as full:
        done = look(tmp_path, run_dir, stdout=full)
    assert done.returncode == expected
    assert "not printed" in done.stderr


def test_a_state_directory_that_cannot_be_used_costs_the_memory_only(tmp_path: Path, run_dir: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, f"--run-dir={run_dir}", "--platform=none", "--json", f"--state-dir={tmp_path / 'file'}")
    shown = json.loads(done.stdout)
    assert shown["unobserved"] == {}
    assert any("could not be saved" in note for note in shown["notes"]), shown["notes"]


def test_a_second_run_of_cron_leaves_the_first_one_alone(tmp_path: Path, run_dir: Path) -> None:
    from nvrx_watch.state_store import StateStore

    lock = StateStore(tmp_path / "state").try_lock(CHAIN_ID)
    assert lock is not None
    with lock:
        done = look(tmp_path, run_dir)
    assert done.returncode == 1
    assert "still at work" in done.stderr


def test_runs_of_cron_do_not_pile_up_while_the_chain_is_looked_for(tmp_path: Path) -> None:
    from nvrx_watch.state_store import StateStore

    directory = tmp_path / "on a dead mount"
    lock = StateStore(tmp_path / "state").try_lock(f"run-dir/{directory}")
    assert lock is not None
    with lock:
        done = look(tmp_path, directory)
    # Had it looked for the chain, it would have said that there is none.
    assert done.returncode == 1
    assert "still at work" in done.stderr


def test_a_mount_that_hangs_is_a_blind_watcher_and_no_bad_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(*_options: object) -> int:
        raise Hangs("finding the chain", part="it was not seen")

    monkeypatch.setattr("nvrx_watch.command.run_command_line", hang)
    monkeypatch.setattr("sys.argv", ["nvrx-watch", "1"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert "not seen" in capsys.readouterr().err


def test_a_chain_of_nvrxs_layout_is_read_without_our_manifest(tmp_path: Path) -> None:
    write_nvrx(tmp_path / "their work", Size(generations=2, cycles=3))
    done = run(tmp_path, f"--work-dir={tmp_path / 'their work'}", "--platform=none", "--json")
    shown = json.loads(done.stdout)
    assert shown["chain"]["chain_id"] is None
    assert [one["cycles"] for one in shown["generations"]] == [3, 3]
