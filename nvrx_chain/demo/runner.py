"""One demo from start to end: a directory, a private Slurm, a chain, the play, and nothing left behind.

Touches: what its parts touch; a directory of its own, which is removed when the demo went well.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.demo.expectations import RowState
from nvrx_chain.demo.gather import Gatherer
from nvrx_chain.demo.play import Curtain, Play, Stage, View
from nvrx_chain.demo.scenario import DemoReport, Scenario
from nvrx_chain.demo.submission import build_submission
from nvrx_chain.errors import DemoError
from nvrx_chain.interrupts import held_back, raised_as_interrupt
from nvrx_chain.records.files import write_atomic
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.sandbox import Sandbox, SandboxConfig
from nvrx_chain.sandbox.cluster import end_directory
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.submit.chain import SubmitResult, submit_chain
from nvrx_chain.submit.config import ChainConfig

SLURM_DIRECTORY = "slurm"
# Slurm's own defaults: with shorter times nothing would be shown about a real cluster.
KILL_WAIT_SECONDS = 30
SLURMD_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """A demo as asked for. `python` runs launcher and training, `interpreter` nvrx-chain in the job.

    `parent` is where the demo makes its directory, None for the machine's temporary one.
    """

    scenario: Scenario
    launcher: LauncherKind | None
    python: str
    interpreter: str
    parent: Path | None
    keep: bool
    environ: Mapping[str, str]


def run_demo(request: DemoRequest, clock: Clock, view: View) -> DemoReport:
    """Play a scenario on a cluster of its own and take that down again, whatever happens.

    Raises NvrxError when the demo could not be played: no root, a missing package, a refused chain. A broken promise
    is no error here, it is in the report.
    """
    began_at = clock.monotonic()
    place = _make_place(request)
    with raised_as_interrupt(), _tidied(place, request, view) as tidying:
        config = build_submission(
            request.scenario,
            place,
            launcher=request.launcher,
            python=request.python,
            interpreter=request.interpreter,
            say=view.say,
        )
        with _private_slurm(request, place, clock, view) as sandbox:
            curtain = _play(request, place, config, sandbox, clock, view)
        tidying.went_well = all(row.state is RowState.OK for row in curtain.rows)
    return DemoReport(
        ok=tidying.went_well,
        scenario=request.scenario.name,
        launcher=config.launcher.kind.value,
        seconds=clock.monotonic() - began_at,
        repairs=request.scenario.find_repairs(curtain.evidence),
        expectations=curtain.rows,
        kept=place if place.exists() else None,
    )


def _make_place(request: DemoRequest) -> Path:
    try:
        if request.parent is not None:
            request.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=f"nvrx-demo-{request.scenario.name.value}-", dir=request.parent)
    except OSError as error:
        raise DemoError(f"making the demo's directory: {error.strerror}", part=str(error.filename)) from error
    for name, content in request.scenario.files.items():
        write_atomic(Path(place) / name, content.encode())
    return Path(place)


@dataclass(slots=True)
class _Tidying:
    went_well: bool = False


@contextlib.contextmanager
def _tidied(place: Path, request: DemoRequest, view: View) -> Iterator[_Tidying]:
    """Remove the demo's directory at the end, unless it is asked to stay or is needed to find out what went wrong."""
    tidying = _Tidying()
    interrupted = False
    try:
        yield tidying
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        with held_back():
            if request.keep:
                view.say(_how_to_look(place))
            elif tidying.went_well or interrupted:
                _remove(place, view)
            else:
                view.say(f"records and logs stay in {place}")


def _remove(place: Path, view: View) -> None:
    try:
        shutil.rmtree(place)
    except OSError as error:
        view.say(f"removing {place}: {error.strerror}")


def _how_to_look(place: Path) -> str:
    run, slurm = shlex.quote(str(place / "chain")), shlex.quote(str(place / SLURM_DIRECTORY))
    return "\n".join(
        (
            f"kept: {place}",
            f'  its Slurm  eval "$(nvrx-chain sandbox env --dir {slurm})"; squeue -a -t all -o "%i %T %N"; sinfo -N',
            f"  its chain  nvrx-chain status --run-dir {run}; nvrx-chain logs --run-dir {run}",
            f"  end it     nvrx-chain sandbox down --dir {slurm}",
        )
    )


@contextlib.contextmanager
def _private_slurm(request: DemoRequest, place: Path, clock: Clock, view: View) -> Iterator[Sandbox]:
    config = SandboxConfig(
        directory=place / SLURM_DIRECTORY,
        nodes=request.scenario.nodes,
        gpus_per_node=0,
        kill_wait_seconds=KILL_WAIT_SECONDS,
        slurmd_timeout_seconds=SLURMD_TIMEOUT_SECONDS,
        kill_on_bad_exit=request.scenario.kill_on_bad_exit,
    )
    try:
        sandbox = Sandbox.up(config, clock=clock)
        view.say(
            f"a private Slurm is up: {config.nodes} nodes, KillWait {config.kill_wait_seconds} s,"
            f" SlurmdTimeout {config.slurmd_timeout_seconds} s"
        )
        yield sandbox
    finally:
        if not request.keep:
            with held_back():
                # By directory: an interrupt may come after the cluster is up and before its name is known here.
                ended = end_directory(config.directory, clock)
                if ended.was_there:
                    view.say("the private Slurm is taken down")


def _play(
    request: DemoRequest, place: Path, config: ChainConfig, sandbox: Sandbox, clock: Clock, view: View
) -> Curtain:
    environ = {**request.environ, **sandbox.environ}
    client = CommandLineClient(clock=clock, environ=environ)
    chain = submit_chain(config, client, clock)
    view.say(_describe(chain, config))
    stage = Stage(
        sandbox=sandbox,
        gatherer=Gatherer(chain, client, clock),
        clock=clock,
        view=view,
        place=place,
        environ=request.environ,
        python=config.launcher.python,
    )
    return Play(request.scenario, stage).run()


def _describe(chain: SubmitResult, config: ChainConfig) -> str:
    shape = config.shape
    jobs = ", ".join(str(job) for job in chain.array_job_ids)
    return (
        f"chain {chain.name} is queued with {config.launcher.kind.value}: {len(chain.array_job_ids)} generations"
        f" (array jobs {jobs}) of {shape.train_tasks} training, {shape.hot_spares} hot spare and"
        f" {shape.cold_spares} cold spare tasks"
    )
