"""A dry run answers at once: it is typed often, and must never pay for importing torch."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tests.integration.harness import COMMAND, FT_LAUNCHER, TORCHRUN, Launcher
from tests.integration.measure import Figures

RUNS = 9


@pytest.mark.parametrize("real", [FT_LAUNCHER, TORCHRUN], ids=lambda real: real.name)
def test_a_dry_run_is_fast_and_never_imports_torch(
    cluster: Cluster, figures: Figures, tmp_path: Path, real: Launcher
) -> None:
    argv = [COMMAND, "submit", "--train-tasks=2", "--hot-spares=1", "--cold-spares=2", "--dry-run"]
    argv += [f"--launcher={real.kind.value}", f"--python={real.python}", "--allow-local-run-dir"]
    seconds = []
    for _ in range(RUNS):
        began = time.monotonic()
        done = cluster.run(argv, cwd=tmp_path)
        seconds.append(time.monotonic() - began)
    assert "sbatch" in done.stdout
    assert not list(tmp_path.iterdir()), "a dry run wrote something"
    assert not cluster.live_rows(), "a dry run queued something"
    imported = cluster.run(argv, cwd=tmp_path, environ={"PYTHONPROFILEIMPORTTIME": "1"}).stderr
    assert "nvrx_chain.submit" in imported
    assert not [line for line in imported.splitlines() if line.rpartition("|")[2].strip().split(".")[0] == "torch"]
    # Other work on the machine only ever adds to a run, so the best of them is the program's own time.
    figure = figures.add(
        "dry-run", real.name, min(seconds), f"best of {RUNS}, median {statistics.median(seconds):.2f} s"
    )
    assert figure.is_within, figure
