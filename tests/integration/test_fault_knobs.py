"""The established fault knobs do what they say, in ranks that are really killed, frozen or broken."""

from __future__ import annotations

from nvrx_chain.records.control import NoRestart
from nvrx_chain.records.files import read_record
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.workloads.events import Event, EventKind
from tests.integration.cluster import Cluster
from tests.integration.conftest import SubmitChain
from tests.integration.harness import ENDLESS, FT_LAUNCHER, Chain, Shape

ONE = Shape(train=1, hot=0, cold=0)
PACE = ("--step-seconds=0.1", "--save-interval=10", "--collective-timeout=10")


def knobs(**values: str) -> dict[str, str]:
    return {f"NVRX_{name.upper()}": value for name, value in values.items()}


def faults_of(chain: Chain) -> list[Event]:
    return [event for event in chain.events() if event.event is EventKind.FAULT]


def test_an_injected_sigkill_costs_a_cycle_and_the_no_restart_demo_ends_the_chain(
    submit: SubmitChain, cluster: Cluster
) -> None:
    chain = submit(
        FT_LAUNCHER,
        shape=ONE,
        target_iteration=ENDLESS,
        workload=PACE,
        environ=knobs(
            no_restart_demo="1", fault_types="SIGKILL", fault_delay="3", max_no_progress_cycles="2", fault_ranks="0"
        ),
    )
    first, *others = chain.jobs
    assert chain.wait_for_verdict(seconds=120) is Verdict.NO_RESTART
    chain.wait_until_gone(seconds=60)
    # Two cycles without progress, as asked for: the first fault was repaired, the second was the verdict.
    assert [event.restart_count for event in faults_of(chain)] == [0, 1]
    assert {event.fault for event in faults_of(chain)} == {"rank0-delay3-sigkill"}
    verdict = read_record(chain.generation(first).no_restart, NoRestart)
    assert isinstance(verdict, NoRestart)
    assert verdict.exit_code == 93
    assert chain.wait_for_outcome(first, seconds=1) is Outcome.NO_RESTART
    assert chain.started_jobs() == (first,)
    assert {row.state for job in others for row in chain.rows(job)} == {"CANCELLED"}
    # Training itself went on: the launcher was shown a file of ours.
    assert (chain.iteration() or 0) >= 10
    assert (chain.run_dir / "still_iteration.txt").read_text() == "1\n"
    cluster.assert_free()
