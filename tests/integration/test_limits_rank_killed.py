"""A killed rank is repaired inside the job: the next cycle of the same generation, no hand-off."""

from __future__ import annotations

from nvrx_chain.workloads.events import EventKind
from tests.integration import timeline
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, Launcher, seconds_between
from tests.integration.measure import Figures

REPAIR_SECONDS = 90.0


def test_a_killed_rank_costs_a_cycle_and_no_generation(
    submit: SubmitChain, launcher: Launcher, figures: Figures
) -> None:
    chain = submit(launcher, target_iteration=ENDLESS)
    first = chain.jobs[0]
    chain.wait_for_training(first)
    before = timeline.last_iteration(chain.events(first))
    fault = chain.kill_rank(first, 1)
    # A step that the other rank had just finished is no recovery: wait for one of the new life of the killed rank.
    restart = chain.wait_for(
        lambda: next(
            (
                event
                for event in chain.events(first)
                if event.event is EventKind.START and event.rank == 1 and event.unix > fault.hit_at.timestamp()
            ),
            None,
        ),
        REPAIR_SECONDS,
        "rank 1 to start again",
    )
    step = chain.wait_for_step(first, after=restart.unix)
    figures.add("rank-killed", launcher.name, seconds_between(fault, step), f"{before - restart.iteration} steps lost")
    assert 0 < restart.iteration <= before, "it did not resume from a checkpoint"
    assert {event.world_size for event in chain.events(first)} == {2}
    assert chain.started_jobs() == (first,)
    assert chain.closed(first) is None
    assert set(chain.running(first)) == {0, 1, 2}, "the spare and both training tasks are still there"
