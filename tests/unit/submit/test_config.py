"""What was asked for is checked for sense before anybody looks at the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import CompletionKind, LauncherKind, OnDrain
from nvrx_chain.submit.config import make_up_name, new_chain_id
from tests.unit.submit.chains import HERE, make_config


def test_the_first_command_of_a_newcomer_needs_nothing_else() -> None:
    config = make_config(train_tasks="32", hot_spares="1", cold_spares="0")
    assert config.name == "nvrx-mock-gpt-012345"
    assert config.run_directory == HERE / "nvrx-chains" / config.name
    assert config.workload.built_in
    assert config.launcher.python == sys.executable
    assert (config.shape.total, config.shape.throttle) == (33, 33)


def test_without_training_tasks_the_three_ways_to_give_them_are_named() -> None:
    with pytest.raises(UsageError, match="--train-tasks N, NVRX_TRAIN_TASKS=N") as caught:
        make_config(train_tasks=None)
    assert "nvrx-chain.toml" in str(caught.value.hint)


def test_a_made_up_name_is_that_of_the_run_directory_or_of_the_workload() -> None:
    assert make_config(run_dir="/data/llama run#2").name == "nvrx-llama-run-2-012345"
    assert make_config(command=("python", "pre train.py")).name == "nvrx-pre-train-012345"
    assert make_config(name="mine").name == "mine"


@pytest.mark.parametrize("label", ["", "###", "x" * 500, "-.-", "é"])
def test_a_made_up_name_is_always_a_valid_one(label: str) -> None:
    name = make_up_name(label, "0123456789ab")
    assert make_config(name=name).name == name


@pytest.mark.parametrize("name", ["a,b", "a b", "-x", ".x", "a\tb", "a|b", "é", "x" * 129, "a=b", "a/b", "%j"])
def test_a_name_that_slurm_lists_wrongly_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="reading --name"):
        make_config(name=name)


def test_the_run_directory_starts_at_the_caller_and_what_the_job_writes_at_the_run_directory() -> None:
    config = make_config(run_dir="sub/../run", done_file="DONE", checkpoint_iteration_file="ckpt/latest.txt")
    assert config.run_directory == HERE / "run"
    assert config.completion.done_file == str(HERE / "run" / "DONE")
    assert config.checkpoint_iteration_file == str(HERE / "run" / "ckpt" / "latest.txt")
    assert make_config(done_file="/abs/DONE").completion.done_file == "/abs/DONE"


def test_a_backslash_in_the_run_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="a backslash"):
        make_config(run_dir="/data/a\\b")


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ({}, CompletionKind.TWO_QUIET_EXITS),
        ({"done_file": "x"}, CompletionKind.DONE_FILE),
        ({"target_iteration": "5"}, CompletionKind.TARGET_ITERATION),
        ({"complete_on_exit_zero": True}, CompletionKind.EXIT_ZERO),
    ],
)
def test_one_criterion_says_when_training_is_finished(flags: dict[str, Any], kind: CompletionKind) -> None:
    assert make_config(**flags).completion.kind is kind


def test_two_criteria_are_refused() -> None:
    with pytest.raises(UsageError, match="more than one"):
        make_config(done_file="x", target_iteration="5")


@pytest.mark.parametrize("code", ["0", "1", "2", "64", "78", "126", "143", "165", "221", "255", "256", "999"])
def test_a_no_restart_code_with_another_meaning_is_refused(code: str) -> None:
    with pytest.raises(UsageError, match=f"{code} has another meaning"):
        make_config(no_restart_exit_code=code)


@pytest.mark.parametrize("code", ["3", "17", "63", "79", "93", "125", "166", "220", "222", "254"])
def test_any_other_code_may_mean_no_restart(code: str) -> None:
    assert make_config(no_restart_exit_code=code).launcher.no_restart_exit_code == int(code)


def test_a_launcher_command_is_split_checked_and_belongs_to_its_launcher() -> None:
    config = make_config(launcher="command", launcher_command="mpirun -host {host}:{port} 'a b' {workload}")
    assert config.launcher.kind is LauncherKind.COMMAND
    assert config.launcher.command == ("mpirun", "-host", "{host}:{port}", "a b", "{workload}")
    assert config.workload.words == ()
    for flags, match in [
        ({"launcher": "command"}, "which needs it"),
        ({"launcher_command": "x"}, "it belongs to --launcher command"),
        ({"launcher": "command", "launcher_command": "x {hots}"}, "reading --launcher-command"),
        ({"launcher": "command", "launcher_command": "x 'open"}, "reading --launcher-command"),
    ]:
        with pytest.raises(UsageError, match=match):
            make_config(**flags)


def test_the_interpreter_before_a_script_is_used_and_must_agree_with_the_flag() -> None:
    command = ("/opt/env/bin/python", "train.py")
    assert make_config(command=command).launcher.python == "/opt/env/bin/python"
    assert make_config(command=command, python="/opt/env/bin/python").launcher.python == "/opt/env/bin/python"
    assert make_config(python="python3").launcher.python == "python3"
    assert make_config(python="env/bin/python").launcher.python == str(HERE / "env/bin/python")
    with pytest.raises(UsageError, match="it names /opt/env/bin/python, but --python is /usr/bin/python3"):
        make_config(command=command, python="/usr/bin/python3")


def test_thresholds_are_set_by_name() -> None:
    thresholds = make_config(threshold=("drain=20", "lease_timeout=60")).thresholds
    assert (thresholds.drain, thresholds.lease_timeout, thresholds.self_fence) == (20.0, 60.0, 20.0)


@pytest.mark.parametrize(
    ("pair", "match"),
    [
        ("drian=20", "known: .*drain"),
        ("drain", "NAME=SECONDS"),
        ("drain=soon", "no|not a number of seconds"),
        ("drain=-1", "not a number of seconds"),
        ("drain=nan", "not a number of seconds"),
        ("walltime_warning=5", "use --walltime-warning"),
        ("lease_timeout=20", "self_fence must be above zero and less than lease_timeout"),
        ("self_fence=5", "lease_interval must be"),
        ("lease_interval=0", "lease_interval must be above zero"),
        ("control_poll=0", "control_poll"),
    ],
)
def test_a_threshold_that_cannot_work_is_refused(pair: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make_config(threshold=(pair,))


def test_a_drained_node_is_looked_for_once_a_minute_and_its_task_excluded_unless_said() -> None:
    config = make_config()
    assert (config.thresholds.drain_poll, config.on_drain) == (60.0, OnDrain.EXCLUDE)
    config = make_config(drain_poll="0", on_drain="report")
    assert (config.thresholds.drain_poll, config.on_drain) == (0.0, OnDrain.REPORT)
    assert make_config(drain_poll="").thresholds.drain_poll == 0.0
    assert make_config(on_drain="restart", hot_spares="1").on_drain is OnDrain.RESTART


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"drain_poll": "0.5"}, "load for the controller"),
        ({"drain_poll": "nan"}, "not a number of seconds"),
        ({"drain_poll": "-1"}, "not a number of seconds"),
        ({"threshold": ("drain_poll=5",)}, "use --drain-poll"),
        ({"on_drain": "kill"}, "none of report, exclude, restart"),
        ({"on_drain": ""}, "cannot be empty"),
        ({"on_drain": "restart", "hot_spares": "0"}, "without a hot spare"),
        ({"on_drain": "restart", "hot_spares": "1", "drain_poll": "0"}, "no drained node is ever seen"),
    ],
)
def test_what_could_never_help_with_a_drained_node_is_refused_at_submit(flags: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make_config(**flags)


def test_the_warning_of_the_time_limit_is_stored_as_it_will_be_sent() -> None:
    assert make_config(time_limit="1").thresholds.walltime_warning == 15.0
    assert make_config(time_limit="1:00:00", walltime_warning="90").thresholds.walltime_warning == 90.0


def test_a_time_limit_that_sbatch_would_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match="reading --time-limit"):
        make_config(time_limit="4 hours")


def test_ranks_per_node_are_the_gpus_unless_said() -> None:
    assert make_config().shape.procs_per_node == 1
    assert make_config(gpus_per_node="8").shape.procs_per_node == 8
    assert make_config(gpus_per_node="8", procs_per_node="4").shape.procs_per_node == 4


def test_an_option_that_breaks_the_chain_is_refused_early() -> None:
    with pytest.raises(UsageError, match="--dependency cannot be passed"):
        make_config(sbatch_arg=("--dependency=afterany:1",))


def test_chain_ids_differ_and_fit_a_comment() -> None:
    made = {new_chain_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(chain_id) == 12 and int(chain_id, 16) >= 0 for chain_id in made)


def test_the_home_directory_may_be_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/bob")
    assert make_config(run_dir="~/run").run_directory == Path("/home/bob/run")
