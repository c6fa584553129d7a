"""The command line of each launcher, parsed back: sizes agree with the shape, the workload is not changed."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.commands.launch import launch
from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.flags import build_settings
from nvrx_chain.launchers.choose import plan_launch
from nvrx_chain.launchers.command import FIELDS, check_template
from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest, Seat, takes_hot_spares, with_defaults
from nvrx_chain.records.manifest import Faults, Launcher, LauncherKind, Shape

PYTHON = "/opt/v e n v/bin/python"
WORKLOAD = ("train it.py", "--lr", "1e-4", "--name=a&b#c'\"100%", "--nnodes=99", "{host}")

shapes = st.builds(
    Shape,
    train_tasks=st.integers(1, 500),
    hot_spares=st.integers(0, 20),
    cold_spares=st.integers(0, 20),
    nodes_per_task=st.integers(1, 64),
    gpus_per_node=st.just(8),
    procs_per_node=st.integers(1, 16),
    segment=st.one_of(st.none(), st.integers(1, 16)),
)


def seat(task: int = 0, node_index: int = 0, shape: Shape | None = None) -> Seat:
    size = shape.nodes_per_task if shape else 1
    return Seat(
        array_job_id=77,
        array_task_id=task,
        node_index=node_index,
        node=f"n{task}-{node_index}",
        rendezvous_host="n0-0",
        rendezvous_port=20123,
        nonce="ab12cd34",
        node_rank=task * size + node_index,
        cycle_info_dir="/run dir/cycle_infos",
        timeline_dir="/run dir/timeline",
        application_log="/run dir/logs/app_0.log",
        run_directory="/run dir",
        checkpoint_iteration_file="/run dir/latest.txt",
        segment_health_dir="/run dir/control",
    )


def plan(kind: LauncherKind, shape: Shape, where: Seat, command: tuple[str, ...] = ()) -> LaunchPlan:
    launcher = Launcher(kind=kind, python=PYTHON, max_restarts=7, no_restart_exit_code=42, command=command)
    return plan_launch(LaunchRequest(launcher=launcher, shape=shape, workload=WORKLOAD, seat=where))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the launcher's own options back; what is left begins with the workload."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr"):
        parser.add_argument(f"--{option}")
    for option in ("nproc-per-node", "max-restarts", "ft-no-restart-exit-code", "ft-segment"):
        parser.add_argument(f"--{option}", type=int)
    for option in ("ft-cycle-info-dir", "ft-per-cycle-applog-prefix", "ft-checkpoint-iteration-file"):
        parser.add_argument(f"--{option}")
    parser.add_argument("workload", nargs=argparse.REMAINDER)
    assert argv[0] == PYTHON
    assert argv[1] == "-m"
    return parser.parse_args(argv[3:])


@given(shape=shapes)
def test_ft_launcher_takes_every_node_that_can_be_alive_and_trains_on_those_of_the_training_tasks(shape: Shape) -> None:
    options = parse(plan(LauncherKind.FT_LAUNCHER, shape, seat(shape=shape)).argv)
    least, _, most = options.nnodes.partition(":")
    assert int(least) == shape.train_tasks * shape.nodes_per_task
    # One agent more than the maximum closes the rendezvous for all: it must hold all that the throttle lets run.
    assert int(most) == shape.throttle * shape.nodes_per_task
    assert int(most) >= int(least) >= 1
    assert shape.throttle <= shape.total
    assert int(least) * options.nproc_per_node == shape.world_size
    assert options.ft_segment == shape.segment


@given(shape=shapes)
def test_torchrun_gets_exactly_the_nodes_that_train(shape: Shape) -> None:
    options = parse(plan(LauncherKind.TORCHRUN, shape, seat(shape=shape)).argv)
    assert int(options.nnodes) == shape.train_tasks * shape.nodes_per_task
    assert int(options.nnodes) * options.nproc_per_node == shape.world_size


SHAPE = Shape(train_tasks=4, hot_spares=1, cold_spares=2, nodes_per_task=2, gpus_per_node=8, procs_per_node=8)
BOTH = [LauncherKind.FT_LAUNCHER, LauncherKind.TORCHRUN]


@pytest.mark.parametrize("kind", BOTH)
def test_one_node_of_all_is_the_host_and_it_is_the_one_that_was_published(kind: LauncherKind) -> None:
    hosts = []
    for task in range(SHAPE.total):
        for index in range(SHAPE.nodes_per_task):
            options = parse(plan(kind, SHAPE, seat(task, index, SHAPE)).argv)
            assert options.rdzv_endpoint == "n0-0:20123"
            assert options.rdzv_backend == "c10d"
            if options.rdzv_conf == "is_host=1":
                hosts.append((task, index))
            else:
                assert options.rdzv_conf == "is_host=0"
    assert hosts == [(0, 0)]


@pytest.mark.parametrize("kind", BOTH)
def test_two_starts_never_share_a_namespace(kind: LauncherKind) -> None:
    run_id = parse(plan(kind, SHAPE, seat()).argv).rdzv_id
    assert "77" in run_id
    assert "ab12cd34" in run_id


@pytest.mark.parametrize("kind", BOTH)
def test_the_workload_is_passed_on_word_for_word(kind: LauncherKind) -> None:
    assert plan(kind, SHAPE, seat()).argv[-len(WORKLOAD) :] == WORKLOAD
    assert parse(plan(kind, SHAPE, seat()).argv).workload == list(WORKLOAD)


@pytest.mark.parametrize("kind", BOTH)
def test_the_restart_budget_of_the_chain_is_the_launcher_s(kind: LauncherKind) -> None:
    assert parse(plan(kind, SHAPE, seat()).argv).max_restarts == 7


def test_ft_launcher_is_told_the_no_restart_code_and_where_its_files_go() -> None:
    options = parse(plan(LauncherKind.FT_LAUNCHER, SHAPE, seat()).argv)
    assert options.ft_no_restart_exit_code == 42
    assert options.ft_cycle_info_dir == "/run dir/cycle_infos"
    assert options.ft_per_cycle_applog_prefix == "/run dir/logs/app_0.log"
    assert options.ft_checkpoint_iteration_file == "/run dir/latest.txt"


def test_torchrun_keeps_no_store_of_an_earlier_attempt() -> None:
    assert plan(LauncherKind.TORCHRUN, SHAPE, seat()).environment == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def test_only_the_fault_tolerant_launchers_let_spares_join() -> None:
    assert {kind for kind in LauncherKind if takes_hot_spares(kind)} == {LauncherKind.NVRX, LauncherKind.FT_LAUNCHER}


# Our own


@given(shapes, st.integers(0, 40))
def test_our_launcher_reads_its_own_command_line(shape: Shape, task: int) -> None:
    where = dataclasses.replace(seat(task, shape=shape), application_log="/tmp/app.log", secret="the secret")
    found = plan(LauncherKind.NVRX, shape, where)
    assert found.argv[:4] == (PYTHON, "-m", "nvrx_chain", "launch")
    context = launch.make_context("launch", list(found.argv[4:]))
    settings = build_settings(context.params, found.environment)
    assert (settings.min_nodes, settings.max_nodes) == (shape.min_nodes, shape.max_nodes)
    assert settings.procs_per_node == shape.procs_per_node
    assert settings.segment == shape.segment
    assert (settings.host, settings.port, settings.is_host) == ("n0-0", 20123, task == 0)
    assert settings.secret == "the secret"
    assert "the secret" not in " ".join(found.argv)
    assert (settings.max_restarts, settings.no_restart_exit_code) == (7, 42)
    assert settings.argv == WORKLOAD
    assert settings.records.cycle_info_dir == Path("/run dir/cycle_infos")
    assert settings.records.timeline_dir == Path("/run dir/timeline")
    assert settings.records.checkpoint_iteration_file == Path("/run dir/latest.txt")
    assert settings.health.segment_dir == Path("/run dir/control")


# Any command


def command(*words: str, task: int = 1, node_index: int = 1) -> LaunchPlan:
    return plan(LauncherKind.COMMAND, SHAPE, seat(task, node_index, SHAPE), words)


def test_every_field_of_a_template_is_filled_in() -> None:
    words = tuple(f"{name}={{{name}}}" for name in FIELDS)
    argv = command(*words).argv[: len(words)]
    assert dict(word.split("=", 1) for word in argv) == {
        "host": "n0-0",
        "port": "20123",
        "nnodes": "8",
        "min_nodes": "8",
        "max_nodes": "10",
        "nproc": "8",
        "node_rank": "3",
        "is_host": "0",
        "job_id": "77",
        "task_id": "1",
        "run_id": "77-ab12cd34",
        "run_dir": "/run dir",
        "python": PYTHON,
        "max_restarts": "7",
        "segment_health_dir": "/run dir/control",
    }


@pytest.mark.parametrize(
    ("version", "takes"),
    [("0.7.0", True), ("0.7.0.dev3+g1", True), ("0.10.1", True), ("1.0", True)]
    + [(version, False) for version in ("0.6.1", "unknown", None, "", "seven", "0")],
)
def test_ft_launcher_is_told_where_exclusions_are_only_by_a_flag_that_its_version_has(
    version: str | None, takes: bool
) -> None:
    size = Shape(train_tasks=2, hot_spares=1, cold_spares=0, nodes_per_task=1, gpus_per_node=8, procs_per_node=8)
    launcher = Launcher(kind=LauncherKind.FT_LAUNCHER, python=PYTHON, max_restarts=7, version=version)
    request = LaunchRequest(launcher=launcher, shape=size, workload=WORKLOAD, seat=seat())
    flag = "--ft-segment-health-check-dir=/run dir/control"
    assert (flag in plan_launch(request).argv) is takes
    nobody = LaunchRequest(
        launcher=launcher, shape=size, workload=WORKLOAD, seat=dataclasses.replace(seat(), segment_health_dir=None)
    )
    assert flag.partition("=")[0] not in " ".join(plan_launch(nobody).argv)


def test_the_workload_goes_where_the_template_says_and_else_to_the_end_and_is_never_filled_in() -> None:
    assert command("sh", "{workload}", "--", "end").argv == ("sh", *WORKLOAD, "--", "end")
    assert command("sh", "-c").argv == ("sh", "-c", *WORKLOAD)
    assert command().argv == WORKLOAD


def test_a_brace_is_written_twice() -> None:
    assert command("{{host}}", "{workload}").argv[0] == "{host}"


def test_the_host_and_port_are_in_the_environment_too() -> None:
    assert command("x").environment == {"MASTER_ADDR": "n0-0", "MASTER_PORT": "20123"}


@pytest.mark.parametrize(
    "word", ["{nodes}", "{", "}", "{host", "{0}", "{}", "{host.name}", "{host[a]}", "{host!x}", "{port:d}"]
)
def test_a_template_that_cannot_be_filled_is_refused_by_its_word(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_template(("sh", word))
    assert refused.value.part == word
    assert "{port}" in str(refused.value)


def test_a_good_template_is_taken() -> None:
    check_template(("sh", "-c", "run --host {host}:{port} --rank {node_rank} {{x}}", "{workload}"))


def request(kind: LauncherKind, faults: Faults | None = None, arguments: tuple[str, ...] = ()) -> LaunchRequest:
    launcher = Launcher(kind=kind, python=PYTHON, max_restarts=7, arguments=arguments)
    shape = Shape(train_tasks=1, hot_spares=1, cold_spares=0, nodes_per_task=1, gpus_per_node=0, procs_per_node=1)
    return LaunchRequest(launcher=launcher, shape=shape, workload=WORKLOAD, seat=seat(), faults=faults)


def test_further_options_stand_before_the_workload() -> None:
    argv = plan_launch(request(LauncherKind.FT_LAUNCHER, arguments=("--ft-x=1",))).argv
    assert argv[-len(WORKLOAD) - 1 :] == ("--ft-x=1", *WORKLOAD)


def test_failed_nodes_reach_ft_launcher_and_a_stray_variable_does_not() -> None:
    ordered = plan_launch(request(LauncherKind.FT_LAUNCHER, Faults(gpu_failures=("1:0", "2:0"))))
    assert ordered.environment == {"NVRX_INJECT_GPU_FAILURE": "1:0,2:0"}
    assert plan_launch(request(LauncherKind.FT_LAUNCHER)).environment == {"NVRX_INJECT_GPU_FAILURE": ""}


def test_in_the_demonstration_ft_launcher_watches_a_file_that_nobody_writes() -> None:
    option = "--ft-checkpoint-iteration-file="
    shown = plan_launch(request(LauncherKind.FT_LAUNCHER, Faults(ranks=(0,), no_restart_demo=True))).argv
    assert f"{option}/run dir/still_iteration.txt" in shown
    assert f"{option}/run dir/latest.txt" in plan_launch(request(LauncherKind.FT_LAUNCHER, Faults(ranks=(0,)))).argv


def test_what_a_workload_wants_in_its_environment_gives_way_to_the_jobs_own() -> None:
    launch = LaunchPlan(argv=("x",), environment={"OWN": "1"})
    filled = with_defaults(launch, {"A": "1", "B": "2", "OWN": "9"}, {"B": "mine"})
    assert filled.environment == {"A": "1", "OWN": "1"}
