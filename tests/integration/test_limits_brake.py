"""A launcher that fails at once costs two generations, not the chain; the operator mends it and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.clock import parse_time
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import FT_LAUNCHER, TORCHRUN, Chain, Launcher
from tests.integration.measure import Figures
from tests.integration.stand_ins import sabotaged, shell_launcher

DEPTH = 4
TARGET = 20


def test_a_launcher_that_fails_at_once_spends_two_generations_and_release_goes_on(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    launcher = shell_launcher(tmp_path / "launcher.sh", f"[ ! -e {broken} ] || exit 3")
    chain = submit(launcher, depth=DEPTH, options=["--complete-on-exit-zero"])
    _assert_held_after_two(chain, launcher, figures)
    broken.unlink()
    _assert_release_goes_on(chain)
    cluster.assert_free()


@pytest.mark.slow
@pytest.mark.parametrize("real", [FT_LAUNCHER, TORCHRUN], ids=lambda real: real.name)
def test_a_broken_environment_of_a_real_launcher_is_braked_the_same_way(
    cluster: Cluster, submit: SubmitChain, figures: Figures, tmp_path: Path, real: Launcher
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    launcher = sabotaged(
        real, tmp_path, f'[ ! -e {broken} ] || {{ echo "ImportError: libnccl.so.2: cannot open" >&2; exit 1; }}'
    )
    chain = submit(launcher, depth=DEPTH, target_iteration=TARGET)
    _assert_held_after_two(chain, launcher, figures)
    broken.unlink()
    _assert_release_goes_on(chain)
    cluster.assert_free()


def _assert_held_after_two(chain: Chain, launcher: Launcher, figures: Figures) -> None:
    first, second, *rest = chain.jobs
    hold = wait_for(chain.hold, 120, "the brake")
    wait_for(lambda: _all_held(chain, rest), 30, f"generations {rest} to be held")
    wait_for(lambda: not chain.live_rows(second), 30, "the second generation to leave")
    assert [chain.wait_for_outcome(job, seconds=1) for job in (first, second)] == [Outcome.FAILED] * 2
    assert chain.started_jobs() == (first, second)
    assert chain.verdict() is None, "held is not over"
    # Nothing was taken from the queue: every array task of the others is still there.
    assert {job: len(chain.live_rows(job)) for job in rest} == dict.fromkeys(rest, chain.shape.total)
    status = chain.cli("status")
    assert hold.why in status, f"the reason is not in:\n{status}"
    record, held_at = chain.record(first), parse_time(hold.held_at)
    began = parse_time(record.started_at) if record else None
    assert began is not None
    assert held_at is not None
    figures.add(
        "fails-at-once", launcher.name, (held_at - began).total_seconds(), "2 generations spent, from start to hold"
    )


def _all_held(chain: Chain, jobs: list[int]) -> bool:
    rows = [row for job in jobs for row in chain.live_rows(job)]
    return bool(rows) and all(row.is_pending and row.reason.startswith("JobHeld") for row in rows)


def _assert_release_goes_on(chain: Chain) -> None:
    chain.cli("release")
    third = chain.jobs[2]
    assert chain.wait_for_outcome(third, seconds=120) is Outcome.COMPLETED
    assert chain.wait_for_verdict(seconds=10) is Verdict.COMPLETED
    chain.wait_until_gone(seconds=60)
    assert chain.started_jobs() == chain.jobs[:3]
