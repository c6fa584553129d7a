"""What the tests of hand-offs share: a chain that trains without end, and what its next generation must do."""

from __future__ import annotations

from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.sandbox import FaultReport
from nvrx_chain.workloads.events import Event, EventKind
from tests.integration import timeline
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, START_SECONDS, Chain, Launcher

JOINED = "attempts to join the next round of the rendezvous"
"""What ft_launcher 0.7.0 logs when it has reached the store of the host."""
HAND_OFF_SECONDS = 200.0
"""A hand-off that takes longer is not waited for; the bound is asserted afterwards, so that the figure is printed."""


def start_endless(submit: SubmitChain, launcher: Launcher, **options: object) -> Chain:
    """A chain that trains without end, has a checkpoint, and whose spare stands by where the launcher has it."""
    chain = submit(launcher, target_iteration=ENDLESS, **options)
    first = chain.jobs[0]
    chain.wait_for_training(first)
    if launcher.kind is LauncherKind.FT_LAUNCHER:
        # On two cores the third launcher may still be importing torch when the others train, and would then not even
        # know the host that is about to die.
        logs = [chain.generation(first).launcher_log(task) for task in range(chain.shape.train + chain.shape.hot)]
        chain.wait_for(lambda: all(JOINED in log.read_text() for log in logs), START_SECONDS, "every launcher to join")
    return chain


def next_step(chain: Chain, fault: FaultReport) -> Event:
    """The first step of the second generation, which must resume from a checkpoint of the first one."""
    first, second = chain.jobs[:2]
    step = chain.wait_for_step(second, seconds=HAND_OFF_SECONDS)
    before = [event for event in timeline.steps(chain.events(first)) if event.unix <= fault.hit_at.timestamp()]
    (started,) = {event.iteration for event in chain.events(second) if event.event is EventKind.START}
    assert 0 < started <= timeline.last_iteration(chain.events(first)), "it did not resume from a checkpoint"
    assert before, "nothing had trained when the fault came"
    chain.assert_no_overlap()
    assert chain.started_jobs() == (first, second)
    return step


def lost_steps(chain: Chain, step: Event) -> str:
    """How far the first generation was beyond the checkpoint that the second one resumed from."""
    return f"{timeline.last_iteration(chain.events(chain.jobs[0])) - step.iteration + 1} steps lost"
