"""`--workload megatron-gpt`: sizes from every source, the script where it is said to be, the target that follows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import CompletionKind, Faults, LauncherKind
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.facts import gather_facts
from nvrx_chain.submit.megatron import section_timeouts
from nvrx_chain.submit.preflight import check_environment, check_rendered_only, check_workload
from nvrx_chain.submit.settings import read_settings
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.submit.chains import CHAIN_ID, HERE, make_config, make_facts, make_plan

CLI = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def megatron(*words: str, **flags: Any) -> ChainConfig:
    values = {"workload": "megatron-gpt", "megatron_path": "/m", "launcher": "ft_launcher", "gpus_per_node": "8"}
    return make_config(**{**values, **flags}, command=words)


def from_environment(environ: dict[str, str], **flags: Any) -> ChainConfig:
    settings = read_settings({"train_tasks": "2", "workload": "megatron-gpt", **flags}, environ, HERE)
    return build_config(settings, directory=HERE, interpreter="/py", make_chain_id=lambda: CHAIN_ID)


def argument(config: ChainConfig, flag: str) -> str | None:
    found = [word for word in config.workload.words if word.partition("=")[0] == flag]
    assert len(found) <= 1, f"{flag} stands there {len(found)} times"
    return found[0].partition("=")[2] if found else None


def test_checkpoints_and_tracker_are_those_of_the_chain() -> None:
    config = megatron(run_dir="/data/r u n")
    assert argument(config, "--save") == argument(config, "--load") == "/data/r u n/checkpoints"
    assert config.checkpoint_iteration_file == "/data/r u n/checkpoints/latest_checkpointed_iteration.txt"


def test_established_variables_say_the_sizes() -> None:
    environ = {
        "MEGATRON_PATH": "/m",
        "NVRX_MODEL_PROFILE": "8b",
        "GPUS_PER_NODE": "4",
        "MICRO_BATCH_SIZE": "2",
        "GLOBAL_BATCH_SIZE": "16",
        "TENSOR_PARALLEL": "2",
        "PIPELINE_PARALLEL": "1",
        "TRAIN_SAMPLES": "1600",
        "SAVE_INTERVAL": "5",
        "SAVE_RETAIN_INTERVAL": "20",
        "EXIT_DURATION_IN_MINS": "110",
    }
    config = from_environment(environ)
    assert config.workload.words[0] == "/m/pretrain_gpt.py"
    shown = {flag: argument(config, flag) for flag in ("--num-layers", "--micro-batch-size", "--train-samples")}
    assert shown == {"--num-layers": "32", "--micro-batch-size": "2", "--train-samples": "1600"}
    assert argument(config, "--tensor-model-parallel-size") == "2"
    assert (argument(config, "--save-interval"), argument(config, "--save-retain-interval")) == ("5", "20")
    assert argument(config, "--exit-duration-in-mins") == "110"


def test_a_word_behind_the_dashes_beats_the_environment_and_a_flag_beside_it_is_refused() -> None:
    settings = read_settings(
        {"train_tasks": "2", "workload": "megatron-gpt", "command": ("--micro-batch-size", "4")},
        {"MEGATRON_PATH": "/m", "MICRO_BATCH_SIZE": "2"},
        HERE,
    )
    config = build_config(settings, directory=HERE, interpreter="/py")
    assert argument(config, "--micro-batch-size") == "4"
    with pytest.raises(UsageError, match="--micro-batch-size is given before -- and"):
        megatron("--micro-batch-size", "4", micro_batch_size="2")


def test_the_default_batch_fits_any_world_and_hot_spares_do_not_change_it() -> None:
    for spares in ("0", "3"):
        config = megatron(hot_spares=spares, train_tasks="3")
        assert argument(config, "--global-batch-size") == "24"


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UsageError) as caught:
        megatron("--global-batch-size=100", hot_spares="1", tensor_parallel="2", micro_batch_size="4")
    assert "global batch 100 does not divide by 32 (micro batch 4 x data parallel 8" in caught.value.message
    assert "16 ranks in 2 training tasks" in caught.value.message
    assert caught.value.hint == "nearest global batches that do: 96 or 128"


def test_a_batch_that_megatron_fits_itself_is_not_checked() -> None:
    assert (
        argument(megatron("--global-batch-size=100", "--decrease-batch-size-if-needed"), "--global-batch-size") == "100"
    )


def test_the_target_becomes_the_iterations() -> None:
    config = megatron(target_iteration="1234")
    assert argument(config, "--train-iters") == "1234"
    assert argument(config, "--train-samples") is None


def test_the_iterations_become_the_target() -> None:
    completion = megatron("--train-iters", "77").completion
    assert (completion.kind, completion.target_iteration) == (CompletionKind.TARGET_ITERATION, 77)


def test_samples_and_batch_make_the_target() -> None:
    completion = megatron(train_samples="1000", global_batch_size="48").completion
    assert (completion.kind, completion.target_iteration) == (CompletionKind.TARGET_ITERATION, 20)


def test_a_criterion_that_was_given_stays_and_a_batch_that_varies_makes_no_target() -> None:
    assert megatron(done_file="DONE").completion.kind is CompletionKind.DONE_FILE
    varying = megatron("--rampup-batch-size", "16", "16", "1000")
    assert varying.completion.kind is CompletionKind.TWO_QUIET_EXITS


@pytest.mark.parametrize(
    ("words", "flags", "match"),
    [
        (("--train-iters=5",), {"target_iteration": "6"}, "--train-iters 5 and --target-iteration 6 differ"),
        (("--train-samples=5",), {"target_iteration": "6"}, "6 iterations and 5 samples"),
        ((), {"save_interval": "20", "save_retain_interval": "50"}, "50 is no multiple of the save interval 20"),
        ((), {"tensor_parallel": "3"}, "16 ranks in 2 training tasks .* do not divide by 3"),
        (("--save", "/x"), {}, "the chain sets this one itself"),
        (("train.py",), {}, "begin with a value"),
        ((), {"megatron_path": ""}, "needs a checkout"),
        ((), {"section_timeouts": "setup"}, "not SECTION:SECONDS"),
        ((), {"section_timeouts": "setup:0"}, "not SECTION:SECONDS"),
        ((), {"section_timeouts": "setup:5,setup:6"}, "not SECTION:SECONDS"),
        ((), {"section_timeouts": "start:5"}, "not SECTION:SECONDS"),
        ((), {"model_profile": "70b"}, "none of small, 8b"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(words: tuple[str, ...], flags: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        megatron(*words, **flags)
    assert "\n" not in str(caught.value)


def test_ft_launcher_watches_sections_and_torchrun_is_given_none() -> None:
    watched = megatron(section_timeouts="step:60,out-of-section:90")
    assert watched.launcher.arguments == ("--ft-rank-section-timeouts=step:60", "--ft-rank-out-of-section-timeout=90")
    assert "--enable-ft-package" in watched.workload.words
    bare = megatron(launcher="torchrun")
    assert bare.launcher.arguments == ()
    assert "--enable-ft-package" not in bare.workload.words


def test_only_given_timeouts_are_passed_on() -> None:
    assert section_timeouts("out-of-section:90") == ("--ft-rank-out-of-section-timeout=90",)
    assert section_timeouts("setup:1, step:2") == ("--ft-rank-section-timeouts=setup:1,step:2",)


def test_a_command_launcher_gets_the_interpreter_too() -> None:
    config = megatron(launcher="command", launcher_command="run {workload}", python="/env/bin/python")
    assert config.workload.words[:2] == ("/env/bin/python", "/m/pretrain_gpt.py")


def test_the_script_is_looked_for_where_it_is_said_to_be(tmp_path: Path) -> None:
    config = megatron(megatron_path=str(tmp_path))
    facts = gather_facts(config, FakeSlurm(FakeClock()), user="alice", uid=1001, probe=False)
    assert facts.program_exists is False
    (missing,) = [problem for problem in check_workload(config, facts) if problem.severity.value == "error"]
    assert missing.message == f"the workload {tmp_path}/pretrain_gpt.py is not there"
    assert "MEGATRON_PATH" in (missing.hint or "")
    (tmp_path / "pretrain_gpt.py").write_text("")
    assert gather_facts(config, FakeSlurm(FakeClock()), user="alice", uid=1001, probe=False).program_exists is True


def test_a_path_inside_of_a_container_is_not_looked_for_and_not_mounted() -> None:
    config = megatron(megatron_path="/opt/megatron-lm", container_image="/images/nemo.sqsh", run_dir="/data/run")
    assert "/opt/megatron-lm/pretrain_gpt.py" in config.workload.words
    assert config.workload.program is None
    assert config.container is not None
    assert not any("megatron" in mount for mount in config.container.mounts)
    with pytest.raises(UsageError, match="begins with /"):
        megatron(megatron_path="megatron-lm", container_image="/images/nemo.sqsh")


def test_submit_says_that_it_was_never_run_and_takes_no_argument_for_a_secret() -> None:
    (note,) = check_rendered_only(megatron(gpus_per_node="0"), make_facts())
    assert str(note).endswith("never run by the tests of nvrx-chain: Megatron-LM (megatron-gpt)")
    assert list(check_environment(megatron(), make_facts())) == []


def test_a_script_of_that_name_is_the_users_own() -> None:
    config = make_config(command=("megatron-gpt.py",))
    assert not config.workload.rendered_only
    assert config.workload.words == (f"{HERE}/megatron-gpt.py",)


def test_an_option_of_megatron_beside_another_workload_is_a_mistake_and_a_variable_is_not() -> None:
    with pytest.raises(UsageError, match="--model-profile: it belongs to --workload megatron-gpt"):
        make_config(model_profile="8b")
    config = from_environment({"MICRO_BATCH_SIZE": "2", "MEGATRON_PATH": "/m"}, workload="mock-gpt")
    assert config.workload.built_in


def test_the_manifest_has_what_the_job_needs() -> None:
    manifest = make_plan(megatron(fault_inject=True, fault_ranks="1")).manifest
    assert manifest.workload_environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert manifest.launcher.kind is LauncherKind.FT_LAUNCHER
    assert manifest.faults == Faults(ranks=(1,), delay_seconds=60.0, types=("async_exc",))
    assert "--fault-injector-ranks=1" in manifest.workload


def test_the_example_of_the_page_is_a_chain() -> None:
    example = CLI.split("### Megatron-LM\n")[1].split("```")[1]
    words = shlex.split(example.replace("\\\n", " "))
    separator = words.index("--")
    flags, rest = words[2:separator], tuple(words[separator + 1 :])
    values = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    config = make_config(**values, command=rest)
    assert argument(config, "--global-batch-size") == "256"
    assert config.completion.target_iteration == 50000
