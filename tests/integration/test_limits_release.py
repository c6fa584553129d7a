"""A finished chain frees every node at once, and nothing of it ever starts again."""

from __future__ import annotations

from datetime import datetime

from nvrx_chain.clock import parse_time
from nvrx_chain.records.control import LauncherExit
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Event, EventKind
from tests.integration import timeline
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import Chain, Launcher
from tests.integration.measure import Figures

TARGET = 60


def test_a_finished_chain_leaves_the_queue_and_frees_every_node(
    cluster: Cluster, submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = submit(launcher, target_iteration=TARGET)
    first, *others = chain.jobs
    last = _wait_for_last_step(chain, first)
    chain.wait_until_gone(seconds=60)
    gone_at = datetime.now().timestamp()

    own = _launcher_seconds(chain, first)
    figure = figures.add("release", launcher.name, gone_at - last.unix, f"{own:.1f} s of it the launcher's own end")
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.COMPLETED
    assert chain.wait_for_verdict(seconds=1) is Verdict.COMPLETED
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    assert chain.iteration() == TARGET
    cluster.assert_free()
    assert figure.is_within, figure


def _wait_for_last_step(chain: Chain, job: int) -> Event:
    def find() -> Event | None:
        found = [event for event in timeline.steps(chain.events(job)) if event.iteration == TARGET]
        return found[-1] if len(found) == chain.shape.train else None

    return wait_for(find, 120, f"iteration {TARGET} on every rank")


def _launcher_seconds(chain: Chain, job: int) -> float:
    """From the last rank's end to the exit of task 0's launcher, by its wrapper's record."""
    ends = [event.unix for event in chain.events(job) if event.event is EventKind.END]
    (path,) = chain.generation(job).control.glob("launcher_exit.0.*.json")
    record = read_record(path, LauncherExit)
    assert isinstance(record, LauncherExit)
    assert record.exit_code == 0, record
    ended_at = parse_time(record.ended_at)
    assert ended_at is not None
    return ended_at.timestamp() - max(ends)
