"""ChainConfig: everything that was asked for, checked for sense before anybody looks at the cluster. Pure."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from nvrx_chain.errors import UsageError
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import (
    Completion,
    CompletionKind,
    Container,
    Faults,
    Launcher,
    LauncherKind,
    OnDrain,
    Shape,
    Thresholds,
)
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.submit.container import build_container
from nvrx_chain.submit.export import Export, parse_export
from nvrx_chain.submit.faults import fault_arguments, node_arguments, progress_arguments, read_faults
from nvrx_chain.submit.launcher import read_launcher, shlex_words
from nvrx_chain.submit.megatron import NAME as MEGATRON
from nvrx_chain.submit.megatron import plan_megatron, refuse_idle_options, with_arguments
from nvrx_chain.submit.passthrough import check_sbatch_arguments
from nvrx_chain.submit.settings import Settings
from nvrx_chain.submit.shape import build_shape
from nvrx_chain.submit.site import site_arguments
from nvrx_chain.submit.thresholds import choose_on_drain, read_thresholds
from nvrx_chain.submit.time_limit import TimeLimit, parse_time_limit
from nvrx_chain.submit.workload import Workload, WorkloadPlan, mock_gpt_workload, parse_workload

_NAME_LIMIT = 128
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainConfig:
    """One chain as asked for. `interpreter` runs nvrx-chain in the job, `launcher.python` launcher and workload."""

    chain_id: str
    name: str
    name_is_made_up: bool
    run_directory: Path
    shape: Shape
    chain_depth: int
    launcher: Launcher
    workload: Workload
    completion: Completion
    checkpoint_iteration_file: str
    interpreter: str
    faults: Faults | None = None
    prologue: Path | None = None
    export: Export = field(default_factory=Export)
    container: Container | None = None
    time_limit: TimeLimit | None = None
    after: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    on_drain: OnDrain = OnDrain.EXCLUDE
    partition: str | None = None
    site_arguments: tuple[str, ...] = ()
    exclusive: bool = True
    sbatch_arguments: tuple[str, ...] = ()
    allow_local_run_directory: bool = False
    rollback: bool = False
    resume: bool = False

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.run_directory)


def new_chain_id() -> str:
    """Twelve hexadecimal digits: no two chains of a site meet, and it fits a comment."""
    return secrets.token_hex(6)


def build_config(
    settings: Settings,
    *,
    directory: Path,
    interpreter: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    own_places: Sequence[str] = (),
    make_chain_id: Callable[[], str] = new_chain_id,
) -> ChainConfig:
    """Turn settings into a config. `directory` is where relative paths of the caller start, `environ` has the values
    of the variables that --export names, `own_places` are the directories of nvrx-chain and its interpreter.

    Raises UsageError for whatever is wrong without looking at the cluster. Long because it names each field once.
    """
    chain_id = make_chain_id()
    asked = _ask_workload(settings, LauncherKind(settings.text("launcher")), directory)
    label = asked.label if asked else settings.text("workload") or "mock-gpt"
    name, run_directory = _place(settings, chain_id, label, directory)
    run = RunDirectory(run_directory)
    shape = build_shape(settings)
    plan, faults = _plan_training(
        settings, asked, label, run=run, shape=shape, interpreter=interpreter, start=directory
    )
    iteration_file = _iteration_file(settings, run)
    limit = _time_limit(settings)
    thresholds = read_thresholds(settings, limit)
    return ChainConfig(
        chain_id=chain_id,
        name=name,
        name_is_made_up=not settings.text("name"),
        run_directory=run_directory,
        shape=shape,
        chain_depth=settings.count("chain-depth"),
        launcher=plan.launcher,
        workload=plan.workload,
        completion=plan.completion,
        checkpoint_iteration_file=iteration_file,
        interpreter=interpreter,
        faults=faults,
        prologue=_prologue(settings, directory),
        export=parse_export(settings.text("export"), environ),
        container=build_container(
            settings,
            directory=directory,
            run_directory=run_directory,
            own_places=own_places,
            useful=[os.path.dirname(path) for path in (plan.workload.program, iteration_file) if path],
        ),
        time_limit=limit,
        after=settings.optional_count("after"),
        thresholds=thresholds,
        on_drain=choose_on_drain(settings, shape, thresholds),
        partition=settings.text("partition"),
        site_arguments=site_arguments(settings),
        exclusive=settings.switch("exclusive"),
        sbatch_arguments=_sbatch_arguments(settings),
        allow_local_run_directory=settings.switch("allow-local-run-dir"),
        rollback=settings.switch("rollback"),
        resume=settings.switch("resume"),
    )


def _sbatch_arguments(settings: Settings) -> tuple[str, ...]:
    words = settings.words("sbatch-arg")
    check_sbatch_arguments(words)
    return words


def _plan_training(
    settings: Settings,
    asked: Workload | None,
    label: str,
    *,
    run: RunDirectory,
    shape: Shape,
    interpreter: str,
    start: Path,
) -> tuple[WorkloadPlan, Faults | None]:
    """Launcher, workload and criterion as they go together, and the faults on order. `start`: of relative paths."""
    kind = LauncherKind(settings.text("launcher"))
    faults = read_faults(settings, shape=shape, launcher=kind, workload=None if asked else label)
    launcher = read_launcher(settings, kind, asked, interpreter, start)
    plan = _plan_workload(
        settings,
        asked=asked,
        run=run,
        shape=shape,
        launcher=with_arguments(launcher, progress_arguments(settings, kind, faults)),
        completion=_completion(settings, run),
        faults=faults,
        directory=start,
    )
    return plan, faults


def _ask_workload(settings: Settings, kind: LauncherKind, directory: Path) -> Workload | None:
    """The user's own workload, or None for the built-in one."""
    command = settings.words("command")
    if settings.text("workload"):
        return None
    if command:
        return parse_workload(command, kind, directory)
    if kind is LauncherKind.COMMAND:
        template = shlex_words(settings.text("launcher-command"))
        return Workload(words=(), label=os.path.basename(template[0]) if template else "command")
    return None


def _plan_workload(
    settings: Settings,
    *,
    asked: Workload | None,
    run: RunDirectory,
    shape: Shape,
    launcher: Launcher,
    completion: Completion,
    faults: Faults | None,
    directory: Path,
) -> WorkloadPlan:
    if settings.text("workload") == MEGATRON:
        return plan_megatron(
            settings,
            run=run,
            shape=shape,
            launcher=launcher,
            completion=completion,
            faults=faults,
            directory=directory,
            container_image=settings.text("container-image") or None,
        )
    refuse_idle_options(settings)
    workload = asked or mock_gpt_workload(
        run,
        (*fault_arguments(faults), *node_arguments(faults, launcher.kind), *settings.words("command")),
        target_iteration=completion.target_iteration,
        launcher=launcher.kind,
        python=launcher.python,
    )
    return WorkloadPlan(workload=workload, completion=completion, launcher=launcher)


def _place(settings: Settings, chain_id: str, label: str, directory: Path) -> tuple[str, Path]:
    """Name and run directory. Neither may hold a line break: the script and Slurm's listings are line by line."""
    given_name, given_directory = settings.text("name"), settings.text("run-dir")
    if given_directory:
        label = os.path.basename(os.path.normpath(given_directory)) or label
    name = given_name or make_up_name(label, chain_id)
    if not _SAFE_NAME.fullmatch(name):
        raise UsageError(
            "reading --name: a job name is 1 to 128 of the characters A-Z a-z 0-9 . _ + -, a letter or digit first",
            part=repr(name),
            hint="Slurm takes others, and then lists and cancels the wrong jobs by them",
        )
    if "\\" in (given_directory or str(directory)):
        raise UsageError(
            "reading --run-dir: a backslash in the path",
            part=str(given_directory or directory),
            hint="it switches off %A and %a in the names that Slurm gives to log files, so all tasks would share one",
        )
    # Not resolved: an automounter's real path is often one that other nodes do not have.
    run_directory = directory / os.path.expanduser(given_directory or os.path.join(CHAINS_DIRECTORY, name))
    return name, Path(os.path.normpath(run_directory))


def make_up_name(label: str, chain_id: str) -> str:
    """`nvrx-<label>-<short id>`, made of safe characters."""
    tail = f"-{chain_id[:6]}"
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-") or "chain"
    return f"nvrx-{safe[: _NAME_LIMIT - len(tail) - len('nvrx-')]}{tail}"


def _completion(settings: Settings, run: RunDirectory) -> Completion:
    done_file, target = settings.text("done-file"), settings.optional_count("target-iteration")
    on_zero = settings.switch("complete-on-exit-zero")
    if sum((bool(done_file), target is not None, on_zero)) > 1:
        raise UsageError(
            "reading the criterion of a finished training: more than one is given",
            hint="take one of --done-file, --target-iteration, --complete-on-exit-zero",
        )
    if done_file:
        return Completion(kind=CompletionKind.DONE_FILE, done_file=_under_run_directory(done_file, run))
    if target is not None:
        return Completion(kind=CompletionKind.TARGET_ITERATION, target_iteration=target)
    return Completion(kind=CompletionKind.EXIT_ZERO if on_zero else CompletionKind.TWO_QUIET_EXITS)


def _iteration_file(settings: Settings, run: RunDirectory) -> str:
    given = settings.text("checkpoint-iteration-file")
    return _under_run_directory(given, run) if given else str(run.default_iteration_file)


def _under_run_directory(path: str, run: RunDirectory) -> str:
    # The job runs in the run directory: a relative path that the workload writes starts there.
    return os.path.normpath(run.path / os.path.expanduser(path))


def _prologue(settings: Settings, directory: Path) -> Path | None:
    given = settings.text("prologue")
    return Path(os.path.normpath(directory / os.path.expanduser(given))) if given else None


def _time_limit(settings: Settings) -> TimeLimit | None:
    text = settings.text("time-limit")
    if not text:
        return None
    try:
        return parse_time_limit(text)
    except ValueError as error:
        raise UsageError(f"reading --time-limit: {error}", hint="for example 4:00:00, or empty for none") from error
