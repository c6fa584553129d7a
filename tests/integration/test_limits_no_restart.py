"""A launcher that says on one node that a restart is useless ends the whole chain, whatever srun makes of its code."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.control import LauncherExit, NoRestart
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, FT_LAUNCHER, TORCHRUN, Chain, Launcher, Shape
from tests.integration.measure import Figures
from tests.integration.stand_ins import MODULES, sabotaged, shell_launcher, write_script

TWO_NODES = Shape(train=2, hot=1, cold=2, nodes_per_task=2)
VICTIM = '[ "$SLURM_ARRAY_TASK_ID.$SLURM_NODEID" = 0.1 ]'
"""One node of the one task that surely has seats: which of the others gets the free ones is a matter of luck."""
REAL = [pytest.param(FT_LAUNCHER, id="ft_launcher"), pytest.param(TORCHRUN, id="torchrun")]


def test_93_on_one_node_of_a_task_ends_the_chain(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path
) -> None:
    launcher = shell_launcher(tmp_path / "launcher.sh", f"{_dies(tmp_path)}\nexec sleep 600")
    chain = submit(launcher, shape=TWO_NODES)
    _assert_stopped_for_good(chain, cluster, tmp_path, "no-restart", launcher, figures)


@pytest.mark.slow
@pytest.mark.parametrize("real", REAL)
def test_93_beside_a_real_launcher_ends_the_chain(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path, real: Launcher
) -> None:
    launcher = sabotaged(real, tmp_path, _dies(tmp_path))
    chain = submit(launcher, shape=TWO_NODES, target_iteration=ENDLESS)
    _assert_stopped_for_good(chain, cluster, tmp_path, "no-restart", launcher, figures)


@pytest.mark.slow
@pytest.mark.cluster(kill_on_bad_exit=1)
@pytest.mark.parametrize("real", REAL)
def test_93_ends_the_chain_on_a_site_with_kill_on_bad_exit(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path, real: Launcher
) -> None:
    assert "KillOnBadExit           = 1" in cluster.run(["scontrol", "show", "config"]).stdout
    launcher = sabotaged(real, tmp_path, _dies(tmp_path))
    chain = submit(launcher, shape=TWO_NODES, target_iteration=ENDLESS)
    _assert_stopped_for_good(chain, cluster, tmp_path, "no-restart-site", launcher, figures)


@pytest.mark.slow
@pytest.mark.parametrize("real", REAL)
def test_93_ends_the_chain_from_a_launcher_in_its_own_srun(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path, real: Launcher
) -> None:
    launcher = _in_own_srun(real, tmp_path)
    chain = submit(launcher, shape=TWO_NODES, target_iteration=ENDLESS)
    _assert_stopped_for_good(chain, cluster, tmp_path, "no-restart-own-srun", launcher, figures)


def _dies(directory: Path) -> str:
    """Shell words by which the victim, and nobody else, exits with 93 after it left a trace."""
    trace = shlex.quote(str(directory / "died"))
    return f'if {VICTIM}; then sleep 5; echo "$SLURMD_NODENAME" >>{trace}; exit 93; fi'


def _in_own_srun(real: Launcher, directory: Path) -> Launcher:
    """On the first node of each task an srun with kill-on-bad-exit starts the launchers of both; on the second none."""
    inner = (
        f"{_dies(directory)}\n"
        'is_host=0; [ "$SLURM_ARRAY_TASK_ID.$SLURM_NODEID" = 0.0 ] && is_host=1\n'
        f'exec {shlex.quote(real.python)} -m {MODULES[real.kind]} --rdzv-conf="is_host=$is_host" "$@"'
    )
    inner_path = write_script(directory / "inner.sh", inner)
    outer = (
        'rank=$1; shift\n[ "$((rank % 2))" = 0 ] || exec sleep 600\n'
        f'exec srun -K1 --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none {inner_path} "$@"'
    )
    words = ["--nnodes={nnodes}", "--nproc-per-node={nproc}", "--rdzv-backend=c10d", "--rdzv-endpoint={host}:{port}"]
    words += ["--rdzv-id={run_id}", "--no-python", "{workload}"]
    launcher = shell_launcher(directory / "outer.sh", outer, "{node_rank}", *words)
    return replace(launcher, name=real.name, python=real.python)


def _assert_stopped_for_good(
    chain: Chain, cluster: Cluster, directory: Path, key: str, launcher: Launcher, figures: Figures
) -> None:
    first, *others = chain.jobs
    verdict = wait_for(lambda: _no_restart(chain, first), 120, "the no-restart verdict")
    chain.wait_until_gone(seconds=90)
    gone_at, said_at = datetime.now(timezone.utc), parse_time(verdict.written_at)
    assert said_at is not None
    figures.add(key, launcher.name, (gone_at - said_at).total_seconds(), "from the verdict to the empty queue")
    (victim,) = (directory / "died").read_text().split()
    peers = [record.node for record in _exits(chain, first) if record.array_task_id == 0]
    assert victim in peers
    assert len(peers) == 2, f"the other node of the task ran no launcher: nothing was proved; {peers}"
    assert (verdict.array_task_id, verdict.exit_code) == (0, 93)
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.NO_RESTART
    assert chain.wait_for_verdict(seconds=1) is Verdict.NO_RESTART
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    cluster.assert_free()


def _no_restart(chain: Chain, job: int) -> NoRestart | None:
    record = read_record(chain.generation(job).no_restart, NoRestart)
    return record if isinstance(record, NoRestart) else None


def _exits(chain: Chain, job: int) -> list[LauncherExit]:
    paths = sorted(chain.generation(job).control.glob("launcher_exit.*.json"))
    records = [read_record(path, LauncherExit) for path in paths]
    return [record for record in records if isinstance(record, LauncherExit)]
