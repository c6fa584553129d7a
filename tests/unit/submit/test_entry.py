"""What a submit does with the chain that a directory holds. What cannot be shown to have ended counts as alive."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.manifest import SubmissionId, SubmissionIntent
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.entry import Entry, Refusal, decide_entry, find_differences
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.submit.chains import CHAIN_ID, OTHER_ID, UNSEEN, make_cluster, make_config, make_facts, make_plan

NO_JOBS = QueueReading(tasks=(), read_at=FakeClock().now())


def holding(*, ids: tuple[int, ...] = (1, 2, 3), **more: Any) -> DirectoryState:
    """A directory with a chain of three generations, of which these have an array job on record."""
    recorded = {
        sequence: SubmissionId(
            chain_id=CHAIN_ID,
            sequence=sequence,
            array_job_id=100 + sequence,
            cluster="c1",
            submitted_at=None,
            adopted=False,
            recorded_at="2026-01-01T00:00:00Z",
        )
        for sequence in ids
    }
    return DirectoryState(exists=True, owner_uid=1001, manifest=make_plan(make_config()).manifest, ids=recorded, **more)


def ended(chain_id: str = CHAIN_ID) -> ChainOutcome:
    return ChainOutcome(
        chain_id=chain_id,
        verdict=Verdict.COMPLETED,
        array_job_id=101,
        by="x",
        why="y",
        evidence=(),
        decided_at="2026-01-01T00:00:00Z",
    )


def queue_with(state: JobState, chain_id: str = CHAIN_ID) -> QueueReading:
    slurm = FakeSlurm(FakeClock())
    slurm.submit([f"--comment={format_comment(chain_id, 1)}", "x"])
    queue = slurm.queue()
    assert isinstance(queue, QueueReading)
    return dataclasses.replace(queue, tasks=tuple(dataclasses.replace(task, state=state) for task in queue.tasks))


def decide(
    directory: DirectoryState, queue: QueueReading | Unobserved = NO_JOBS, *, resume: bool = False
) -> Entry | Refusal:
    return decide_entry(make_config(chain_id=OTHER_ID, resume=resume), directory, queue, make_cluster())


def test_a_directory_without_a_chain_takes_a_new_one_even_when_slurm_is_silent() -> None:
    assert decide(DirectoryState()) is Entry.NEW
    assert decide(DirectoryState(exists=True), UNSEEN) is Entry.NEW
    assert decide(DirectoryState(), resume=True) is Entry.NEW


@pytest.mark.parametrize("ids", [(), (1,), (1, 2), (1, 3)])
def test_a_chain_with_generations_missing_is_completed(ids: tuple[int, ...]) -> None:
    assert decide(holding(ids=ids)) is Entry.COMPLETE
    assert decide(holding(ids=ids), queue_with(JobState.RUNNING)) is Entry.COMPLETE


def test_a_half_submitted_chain_may_be_given_up_when_nothing_of_it_lives() -> None:
    assert decide(holding(ids=(1,)), resume=True) is Entry.RESUME
    assert isinstance(decide(holding(ids=(1,)), queue_with(JobState.PENDING), resume=True), Refusal)


@pytest.mark.parametrize(
    "state", [JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN]
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_live_chain_is_refused_whatever_is_asked(state: JobState, resume: bool) -> None:
    refused = decide(holding(outcome=ended()), queue_with(state), resume=resume)
    assert isinstance(refused, Refusal)
    assert "live chain" in refused.message


@pytest.mark.parametrize("resume", [False, True])
def test_a_chain_that_nobody_can_see_counts_as_alive(resume: bool) -> None:
    refused = decide(holding(), UNSEEN, resume=resume)
    assert isinstance(refused, Refusal)
    assert "may be alive" in refused.message


def test_an_ended_chain_is_resumed_when_that_is_asked_for() -> None:
    refused = decide(holding(outcome=ended()))
    assert isinstance(refused, Refusal)
    assert "has ended: completed" in refused.message
    assert "--resume" in refused.hint
    assert decide(holding(outcome=ended()), resume=True) is Entry.RESUME


def test_the_jobs_of_another_chain_and_ended_jobs_do_not_make_it_alive() -> None:
    assert decide(holding(), queue_with(JobState.RUNNING, OTHER_ID), resume=True) is Entry.RESUME
    assert decide(holding(), queue_with(JobState.CANCELLED), resume=True) is Entry.RESUME


def test_the_outcome_of_another_chain_says_nothing_about_this_one() -> None:
    assert decide(holding(ids=(1,), outcome=ended(OTHER_ID))) is Entry.COMPLETE


def test_an_ended_chain_is_never_completed() -> None:
    assert isinstance(decide(holding(ids=(1,), outcome=ended())), Refusal)


def test_a_chain_of_another_cluster_is_refused_and_an_unknown_cluster_is_not() -> None:
    elsewhere = decide_entry(make_config(), holding(), NO_JOBS, make_cluster(cluster_name="c2"))
    assert isinstance(elsewhere, Refusal)
    assert "a chain of cluster c1" in elsewhere.message
    unknown = decide_entry(make_config(resume=True), holding(), NO_JOBS, Unobserved("no answer"))
    assert unknown is Entry.RESUME


def test_an_equal_plan_has_no_differences_and_versions_do_not_count() -> None:
    plan = make_plan(make_config())
    manifest = msgspec.structs.replace(
        plan.manifest, package_version="0.0.1", launcher=msgspec.structs.replace(plan.manifest.launcher, version="9")
    )
    assert find_differences(plan, DirectoryState(manifest=manifest)) is None
    assert find_differences(plan, DirectoryState()) is None


def test_an_intent_with_other_options_is_a_difference() -> None:
    plan = make_plan(make_config())
    intent = SubmissionIntent(
        chain_id=CHAIN_ID, sequence=2, stamp="s", argv=("--qos=x",), intended_at="2026-01-01T00:00:00Z"
    )
    found = find_differences(plan, DirectoryState(manifest=plan.manifest, intents={2: intent}))
    assert found is not None
    assert "sbatch options" in found.message


def test_the_facts_without_a_fault_hold_no_chain() -> None:
    facts = make_facts()
    assert decide_entry(make_config(), facts.directory, facts.queue, facts.cluster) is Entry.NEW
