"""SubmitPlan: the exact sbatch command and script of each generation, a value to print or to carry out. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain import __version__
from nvrx_chain.masking import mask_words
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, ExportMode, PrivateSettings, Shape
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.private import private_settings
from nvrx_chain.submit.render import render_script, script_fields
from nvrx_chain.submit.shape import array_argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Who submits, from where and when, as the manifest records it. `launcher_version` is None when nobody looked."""

    user: str
    uid: int
    cluster: str | None
    submitted_at: str
    launcher_version: str | None = None
    slurm_directory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGeneration:
    """One array job to be. `argv` is what follows the word sbatch; `stamp` is its comment and unique."""

    sequence: int
    stamp: str
    argv: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command as one would type it."""
        return shlex.join(("sbatch", *self.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitPlan:
    """All that a submit writes to the run directory and asks of Slurm. `prologue`, `private` None: none is written."""

    manifest: ChainManifest
    script: str
    prologue: str | None
    private: PrivateSettings | None = None
    generations: tuple[PlannedGeneration, ...]

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(Path(self.manifest.run_directory))

    @property
    def queued_tasks(self) -> int:
        """Array tasks that the chain puts into the queue; a site's submit limit counts each of them."""
        return self.manifest.shape.total * self.manifest.chain_depth


def build_plan(config: ChainConfig, submitter: Submitter, template: str, *, prologue: str | None = None) -> SubmitPlan:
    """The plan of a whole chain, generations numbered from 1. `prologue` is the text of the script that was named."""
    private = private_settings(config, submitter.slurm_directory)
    return SubmitPlan(
        manifest=_manifest(config, submitter, private),
        private=private,
        script=render_script(template, script_fields(config)),
        prologue=prologue,
        generations=tuple(plan_generation(config, sequence) for sequence in range(1, config.chain_depth + 1)),
    )


def plan_generation(config: ChainConfig, sequence: int) -> PlannedGeneration:
    """The sbatch command of one generation.

    Every option that the chain depends on is on the command line, because a variable of the site beats a directive
    of the script.
    """
    shape, stamp = config.shape, format_comment(config.chain_id, sequence)
    argv = [
        *identity_options(
            name=config.name,
            shape=shape,
            run_directory=str(config.run_directory),
            stamp=stamp,
            export=config.export.mode,
            after=config.after if sequence == 1 else None,
        ),
        f"--nodes={shape.nodes_per_task}",
        "--ntasks-per-node=1",
        f"--signal=B:USR1@{int(config.thresholds.walltime_warning)}",
        f"--output={_output_pattern(config.run)}",
    ]
    if shape.gpus_per_node:
        argv.append(f"--gpus-per-node={shape.gpus_per_node}")
    if config.time_limit is not None:
        argv.append(f"--time={config.time_limit.text}")
    if config.exclusive:
        argv.append("--exclusive")
    argv += config.site_arguments
    return PlannedGeneration(
        sequence=sequence, stamp=stamp, argv=(*argv, *config.sbatch_arguments, str(config.run.script))
    )


def identity_options(
    *, name: str, shape: Shape, run_directory: str, stamp: str, export: ExportMode, after: int | None = None
) -> tuple[str, ...]:
    """The options that make a job a generation of its chain. Only the comment differs between two generations.

    `after`: a job that the first one waits for besides; the later ones wait for the first.
    """
    also = f",afterany:{after}" if after is not None else ""
    return (
        "--parsable",
        f"--job-name={name}",
        f"--array={array_argument(shape)}",
        f"--dependency=singleton{also}",
        "--no-requeue",
        "--open-mode=append",
        f"--export={export.value}",
        f"--chdir={run_directory}",
        f"--comment={stamp}",
    )


def _output_pattern(run: RunDirectory) -> str:
    """Where a batch script's output goes. A `%` of the directory is doubled, in a relative name it could not be.

    Slurm 22.05 puts the working directory before a relative name and then replaces `%j` and the like in all of it;
    the job fails to launch when the result is no directory.
    """
    return f"{str(run.slurm_logs).replace('%', '%%')}/slurm-%A_%a.log"


def _manifest(config: ChainConfig, submitter: Submitter, private: PrivateSettings | None) -> ChainManifest:
    """chain.json, which others can read: words that look like secrets are masked in it and whole in `private`."""
    return ChainManifest(
        chain_id=config.chain_id,
        job_name=config.name,
        user=submitter.user,
        uid=submitter.uid,
        cluster=submitter.cluster,
        run_directory=str(config.run_directory),
        submitted_at=submitter.submitted_at,
        package_version=__version__,
        interpreter=config.interpreter,
        shape=config.shape,
        chain_depth=config.chain_depth,
        time_limit_seconds=config.time_limit.seconds if config.time_limit else None,
        launcher=msgspec.structs.replace(
            config.launcher, version=submitter.launcher_version, command=mask_words(config.launcher.command)
        ),
        workload=mask_words(config.workload.words),
        checkpoint_iteration_file=config.checkpoint_iteration_file,
        completion=config.completion,
        thresholds=config.thresholds,
        on_drain=config.on_drain,
        prologue=str(config.run.prologue) if config.prologue is not None else None,
        container=config.container,
        export=config.export.mode,
        exported=tuple(sorted(config.export.variables)),
        private_file=str(config.run.private) if private is not None else None,
        faults=config.faults,
        workload_environment=dict(config.workload.environment),
    )
