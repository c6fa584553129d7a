"""`--workload megatron-gpt`: from settings to Megatron-LM's arguments, and to what the chain learns from them. Pure.

Sizes come from options, from the environment under their established names, or from the words after `--`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import Completion, CompletionKind, Faults, Launcher, LauncherKind, Shape
from nvrx_chain.submit.faults import fault_arguments
from nvrx_chain.submit.settings import Settings
from nvrx_chain.submit.workload import Workload, WorkloadPlan
from nvrx_chain.workloads import megatron
from nvrx_chain.workloads.megatron_extra import Group, group_words, take_count
from nvrx_chain.workloads.parallel import check_batch, data_parallel_size

NAME = "megatron-gpt"

_FLAGS: Mapping[str, str] = {
    "micro-batch-size": "--micro-batch-size",
    "global-batch-size": "--global-batch-size",
    "tensor-parallel": "--tensor-model-parallel-size",
    "pipeline-parallel": "--pipeline-model-parallel-size",
    "context-parallel": "--context-parallel-size",
    "train-samples": "--train-samples",
    "save-interval": "--save-interval",
    "save-retain-interval": "--save-retain-interval",
    "exit-duration-in-mins": "--exit-duration-in-mins",
}
"""Options of submit, and the arguments of Megatron-LM that they become."""

_OWN_OPTIONS = ("megatron-path", "model-profile", *_FLAGS, "section-timeouts")
_VARYING_BATCH = frozenset({"--rampup-batch-size", "--step-batch-size-schedule", "--decrease-batch-size-if-needed"})
_SECTIONS = ("setup", "step", "checkpointing")
_OUTSIDE = "out-of-section"
_TIMEOUT = re.compile(r"([a-z-]+):([1-9][0-9]{0,6})", re.ASCII)


def refuse_idle_options(settings: Settings) -> None:
    """Raise UsageError for an option of Megatron-LM beside another workload. A variable of the environment may stay."""
    for key in _OWN_OPTIONS:
        origin = settings.by_key[key].origin
        if origin == "flag" or origin.startswith("file"):
            raise UsageError(
                f"reading --{key}: it belongs to --workload {NAME}", hint="words after -- go to a workload"
            )


def plan_megatron(
    settings: Settings,
    *,
    run: RunDirectory,
    shape: Shape,
    launcher: Launcher,
    completion: Completion,
    faults: Faults | None,
    directory: Path,
    container_image: str | None = None,
) -> WorkloadPlan:
    """The workload with its arguments. Raises UsageError for sizes that do not fit and for arguments of the chain's."""
    script, program = _script(settings, directory, container_image)
    watched = launcher.kind is LauncherKind.FT_LAUNCHER
    training = _read_training(settings, run, shape, completion, fault_arguments(faults), watched=watched)
    words = (script, *megatron.render_arguments(training))
    if launcher.kind is LauncherKind.COMMAND:
        words = (launcher.python, *words)
    timeouts = section_timeouts(settings.text("section-timeouts") or megatron.SECTION_TIMEOUTS)
    return WorkloadPlan(
        workload=Workload(
            words=words,
            label=NAME,
            program=program,
            hint=f"--megatron-path or MEGATRON_PATH names the checkout of Megatron-LM that has {megatron.SCRIPT}",
            environment=megatron.ENVIRONMENT,
            rendered_only=True,
        ),
        completion=_complete(completion, training),
        launcher=with_arguments(launcher, timeouts if watched else ()),
    )


def with_arguments(launcher: Launcher, arguments: tuple[str, ...]) -> Launcher:
    """The launcher with further options of its own."""
    return msgspec.structs.replace(launcher, arguments=(*launcher.arguments, *arguments))


def section_timeouts(text: str) -> tuple[str, ...]:
    """`setup:900,step:120,out-of-section:300` as options of ft_launcher. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        match = _TIMEOUT.fullmatch(part.strip())
        if match is None or match[1] not in (*_SECTIONS, _OUTSIDE) or match[1] in found:
            raise UsageError(
                "reading --section-timeouts: not SECTION:SECONDS of a section, each once",
                part=repr(part),
                hint=f"sections are {', '.join((*_SECTIONS, _OUTSIDE))}",
            )
        found[match[1]] = match[2]
    outside = found.pop(_OUTSIDE, None)
    sections = ",".join(f"{name}:{seconds}" for name, seconds in found.items())
    return tuple(
        option
        for option, value in (
            (f"--ft-rank-section-timeouts={sections}", sections),
            (f"--ft-rank-out-of-section-timeout={outside}", outside),
        )
        if value
    )


def _script(settings: Settings, directory: Path, container_image: str | None) -> tuple[str, str | None]:
    """The script, and the file to look for at submit: none when the path is one inside of a container."""
    given = settings.text("megatron-path")
    if given is None:
        raise UsageError(
            f"reading the workload: {NAME} needs a checkout of Megatron-LM",
            hint="--megatron-path DIR or MEGATRON_PATH=DIR, a path inside of the container when there is one",
        )
    if container_image is not None:
        if not os.path.isabs(given):
            raise UsageError(
                "reading --megatron-path: a path inside of a container begins with /",
                part=given,
                hint="give it as the container sees it",
            )
        return os.path.join(given, megatron.SCRIPT), None
    script = os.path.normpath(directory / os.path.expanduser(given) / megatron.SCRIPT)
    return script, script


def _read_training(
    settings: Settings,
    run: RunDirectory,
    shape: Shape,
    completion: Completion,
    faults: tuple[str, ...],
    *,
    watched: bool,
) -> megatron.MegatronRun:
    sizes, extra = _read_sizes(settings, group_words(settings.words("command")))
    asked, extra = take_count(extra, "--train-iters")
    profile = settings.text("model-profile") or "small"
    tensor, pipeline = sizes["tensor-parallel"] or 1, sizes["pipeline-parallel"] or 1
    context, micro_batch = sizes["context-parallel"] or 1, sizes["micro-batch-size"] or 1
    replicas = data_parallel_size(shape, tensor=tensor, pipeline=pipeline, context=context)
    batch = sizes["global-batch-size"] or micro_batch * replicas * megatron.BATCHES_OF_A_REPLICA[profile]
    if not _batch_varies(extra):
        check_batch(shape, replicas, micro_batch=micro_batch, global_batch=batch)
    iterations = _iterations(completion, asked, sizes["train-samples"])
    save_interval = sizes["save-interval"] or megatron.SAVE_INTERVAL[profile]
    return megatron.MegatronRun(
        profile=profile,
        checkpoint_directory=str(run.default_iteration_file.parent),
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        micro_batch=micro_batch,
        global_batch=batch,
        train_iterations=iterations,
        train_samples=None if iterations is not None else sizes["train-samples"] or megatron.SAMPLES,
        save_interval=save_interval,
        save_retain_interval=_retain(sizes["save-retain-interval"], save_interval),
        exit_minutes=sizes["exit-duration-in-mins"],
        watched=watched,
        faults=faults,
        extra=extra,
    )


def _read_sizes(settings: Settings, extra: tuple[Group, ...]) -> tuple[dict[str, int | None], tuple[Group, ...]]:
    """Each size from the words after `--`, else from its option, and the words that are left."""
    sizes: dict[str, int | None] = {}
    for key, flag in _FLAGS.items():
        typed, extra = take_count(extra, flag)
        if typed is not None and settings.by_key[key].origin == "flag":
            raise UsageError(
                f"reading the workload: --{key} is given before -- and {flag} behind it", hint="give one of them"
            )
        sizes[key] = typed if typed is not None else settings.optional_count(key)
    return sizes, extra


def _batch_varies(extra: tuple[Group, ...]) -> bool:
    return any(group.flag in _VARYING_BATCH for group in extra)


def _iterations(completion: Completion, asked: int | None, samples: int | None) -> int | None:
    """How many iterations are trained: the chain's target and --train-iters are the same thing."""
    target = completion.target_iteration
    if asked is not None and target is not None and asked != target:
        raise UsageError(
            f"reading the workload: --train-iters {asked} and --target-iteration {target} differ",
            hint="give one of them, the other follows",
        )
    iterations = target if asked is None else asked
    if iterations is not None and samples is not None:
        raise UsageError(
            f"reading the workload: {iterations} iterations and {samples} samples", hint="Megatron-LM takes one of them"
        )
    return iterations


def _retain(given: int | None, save_interval: int) -> int:
    if given is None:
        return save_interval * megatron.RETAINED_SAVES
    if given % save_interval:
        raise UsageError(
            f"reading --save-retain-interval: {given} is no multiple of the save interval {save_interval}",
            hint="Megatron-LM would refuse to start",
        )
    return given


def _complete(completion: Completion, training: megatron.MegatronRun) -> Completion:
    """The criterion that was given, else the last iteration: Megatron-LM exits 0 on its own time limit too."""
    if completion.kind is not CompletionKind.TWO_QUIET_EXITS:
        return completion
    iterations = training.train_iterations
    if iterations is None and not _batch_varies(training.extra):
        iterations = (training.train_samples or 0) // training.global_batch
    if not iterations:
        return completion
    return Completion(kind=CompletionKind.TARGET_ITERATION, target_iteration=iterations)
