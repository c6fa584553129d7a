"""The established fault knobs at submit: read, checked for what can happen, recorded, said aloud."""

from __future__ import annotations

from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Faults
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.preflight import check_faults
from nvrx_chain.submit.rundir import make_directories, write_script
from nvrx_chain.submit.settings import read_settings
from tests.unit.submit.chains import CHAIN_ID, HERE, make_config, make_facts, make_plan

MOCK = {"workload": "mock-gpt", "launcher": "ft_launcher"}


def knobs(environ: dict[str, str], **flags: Any) -> ChainConfig:
    """A chain of three tasks of which two train, under variables alone."""
    values = {"train_tasks": "2", "hot_spares": "1", **MOCK, **flags}
    settings = read_settings(values, {f"NVRX_{name}": value for name, value in environ.items()}, HERE)
    return build_config(settings, directory=HERE, interpreter="/py", make_chain_id=lambda: CHAIN_ID)


ALL = {"FAULT_INJECT": "1", "FAULT_RANKS": "0,1", "FAULT_DELAY": "2.5", "FAULT_TYPES": "SIGKILL,segfault"}


def test_nothing_is_injected_unless_it_is_asked_for() -> None:
    config = knobs({"FAULT_RANKS": "0", "FAULT_TYPES": "sigkill", "FAULT_DELAY": "5"})
    assert config.faults is None
    assert not any("fault" in word for word in config.workload.words)
    assert make_plan(config).manifest.faults is None


@pytest.mark.parametrize("off", ["0", "", "no"])
def test_the_switch_is_off_by_the_established_words(off: str) -> None:
    assert knobs({"FAULT_INJECT": off, "NO_RESTART_DEMO": off, "INJECT_GPU_FAILURE": ""}).faults is None


def test_the_knobs_are_recorded_and_carried_to_the_ranks() -> None:
    config = knobs(ALL)
    assert config.faults == Faults(ranks=(0, 1), delay_seconds=2.5, types=("sigkill", "segfault"))
    assert make_plan(config).manifest.faults == config.faults
    words = config.workload.words
    assert "--fault-injector-ranks=0,1" in words
    assert "--fault-injector-fault-delay=2.5" in words
    assert "--fault-injector-fault-types=sigkill,segfault" in words


def test_defaults_are_the_established_ones_and_a_small_world_has_its_last_rank() -> None:
    faults = knobs({"FAULT_INJECT": "1"}, gpus_per_node="4").faults
    assert faults == Faults(ranks=(2,), delay_seconds=60.0, types=("async_exc",))
    small = knobs({"FAULT_INJECT": "1"}).faults
    assert small is not None
    assert small.ranks == (1,)


def test_failed_nodes_are_recorded_for_the_launcher() -> None:
    config = knobs({"INJECT_GPU_FAILURE": "1:0,2:0"})
    assert config.faults == Faults(gpu_failures=("1:0", "2:0"))
    assert not any("gpu" in word for word in config.workload.words)


def test_without_ft_launcher_mock_gpt_fails_the_node_itself() -> None:
    assert "--inject-gpu-failure=1:0" in knobs({"INJECT_GPU_FAILURE": "1:0"}, launcher="torchrun").workload.words


def test_the_demonstration_orders_a_fault_and_no_failed_node() -> None:
    config = knobs({"NO_RESTART_DEMO": "1", "FAULT_INJECT": "0", "INJECT_GPU_FAILURE": "1:0"})
    assert config.faults == Faults(ranks=(1,), types=("async_exc",), no_restart_demo=True)
    assert config.launcher.arguments == ("--ft-max-no-progress-cycles=1",)
    more = knobs({"NO_RESTART_DEMO": "1", "MAX_NO_PROGRESS_CYCLES": "4"})
    assert more.launcher.arguments == ("--ft-max-no-progress-cycles=4",)


def test_the_number_of_cycles_without_progress_is_a_setting_without_the_demonstration_too() -> None:
    assert knobs({"MAX_NO_PROGRESS_CYCLES": "4"}).launcher.arguments == ("--ft-max-no-progress-cycles=4",)
    assert knobs({"MAX_NO_PROGRESS_CYCLES": "4"}, launcher="torchrun").launcher.arguments == ()


@pytest.mark.parametrize(
    ("environ", "flags", "match"),
    [
        ({"FAULT_INJECT": "maybe"}, {}, "NVRX_FAULT_INJECT: .*neither yes nor no"),
        ({"FAULT_RANKS": "x"}, {}, "'x' is not a rank"),
        ({"FAULT_TYPES": "boom"}, {}, "'boom' is none of gpu_error"),
        ({"FAULT_DELAY": "-1"}, {}, "not a number of seconds"),
        ({"INJECT_GPU_FAILURE": "0"}, {}, "'0' is not CYCLE:NODE"),
        ({"FAULT_INJECT": "1", "FAULT_RANKS": "2"}, {}, "no rank 2 among 2"),
        ({"FAULT_INJECT": "1", "FAULT_TYPES": "gpu_error"}, {}, "gpu_error needs a GPU"),
        ({"INJECT_GPU_FAILURE": "1:3"}, {}, "1:3 names a node that the array does not have"),
        ({"NO_RESTART_DEMO": "1"}, {"launcher": "torchrun"}, "only nvrx and ft_launcher give such a verdict"),
        ({"FAULT_INJECT": "1"}, {"workload": None, "command": ("train.py",)}, "a program of yours does not"),
        (
            {"INJECT_GPU_FAILURE": "1:0"},
            {"workload": None, "command": ("train.py",), "launcher": "torchrun"},
            "nvrx and ft_launcher do that",
        ),
        (
            {"FAULT_INJECT": "1", "FAULT_TYPES": "hang"},
            {"workload": "megatron-gpt", "megatron_path": "/m"},
            "Megatron-LM has no hang",
        ),
        ({}, {"fault_ranks": "0"}, "--fault-ranks: no fault is injected"),
        ({}, {"fault_delay": "3"}, "--fault-delay: no fault is injected"),
        ({}, {"max_no_progress_cycles": "1", "launcher": "torchrun"}, "only nvrx and ft_launcher count them"),
    ],
)
def test_a_bad_knob_is_refused_in_one_line(environ: dict[str, str], flags: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        knobs(environ, **flags)
    assert "\n" not in str(caught.value)


def test_a_program_of_the_users_own_has_failed_nodes_under_ft_launcher() -> None:
    config = make_config(command=("train.py",), launcher="ft_launcher", inject_gpu_failure="0:1")
    assert config.faults == Faults(gpu_failures=("0:1",))


def test_a_variable_that_names_a_missing_rank_is_no_obstacle_while_the_switch_is_off() -> None:
    assert knobs({"FAULT_RANKS": "7", "FAULT_TYPES": "gpu_error"}).faults is None


def test_a_chain_that_hurts_itself_says_so() -> None:
    (said,) = check_faults(knobs({**ALL, "INJECT_GPU_FAILURE": "1:0"}), make_facts())
    assert str(said).startswith(
        "warning: faults are injected on purpose: sigkill or segfault in rank 0,1 after 2.5 s of each cycle;"
        " failed nodes (cycle:node) 1:0"
    )
    (demo,) = check_faults(knobs({"NO_RESTART_DEMO": "1"}), make_facts())
    assert "shown no progress" in demo.message
    assert list(check_faults(make_config(), make_facts())) == []


def test_the_file_of_the_demonstration_is_there_before_a_job_and_only_then(tmp_path: Any) -> None:
    for demo, expected in ((True, "1\n"), (False, None)):
        run = tmp_path / f"run {demo}"
        plan = make_plan(make_config(**MOCK, no_restart_demo=demo or None, run_dir=str(run)))
        make_directories(plan.run, run.parent.stat().st_uid)
        write_script(plan)
        found = plan.run.still_iteration
        assert (found.read_text() if found.exists() else None) == expected
