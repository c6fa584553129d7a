"""An sbatch without a clear answer, and a submit that died half way: in the end exactly K generations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import PreflightError, SlurmAmbiguous, Unobserved
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.manifest import SubmissionId
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit import enqueue
from tests.fakes.fake_slurm import Act, AfterDoing
from tests.unit.submit.chains import CHAIN_ID, OTHER_ID, TIMED_OUT, Site, record, stamps


def test_a_job_that_was_queued_without_an_answer_is_adopted_and_not_queued_again(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, AfterDoing(TIMED_OUT))
    result = site.submit()
    assert site.stamps() == stamps(1, 2, 3)
    assert len(site.slurm.asked("submit")) == 3
    assert record(site.run.submission_id(2), SubmissionId).adopted
    assert any("was adopted" in line for line in site.said)
    assert len(set(result.array_job_ids)) == 3


def test_a_job_that_was_not_queued_is_tried_again(site: Site) -> None:
    site.slurm.script("submit", TIMED_OUT, TIMED_OUT)
    site.submit()
    assert site.stamps() == stamps(1, 2, 3)
    assert len(site.slurm.asked("submit")) == 5


def test_three_answers_that_are_none_end_the_submit(site: Site) -> None:
    site.slurm.always("submit", TIMED_OUT)
    with pytest.raises(SlurmAmbiguous, match="no clear answer 3 times"):
        site.submit()
    assert len(site.slurm.asked("submit")) == 3


def test_a_queue_that_answers_late_is_waited_for(site: Site) -> None:
    silent = Unobserved("squeue did not answer")
    site.slurm.script("submit", AfterDoing(TIMED_OUT))
    # The first look is the preflight's.
    site.slurm.script("queue", Act.NORMAL, silent, silent, silent)
    site.submit()
    assert site.stamps() == stamps(1, 2, 3)


def test_while_the_queue_is_silent_nothing_is_submitted_again(site: Site) -> None:
    site.slurm.script("submit", AfterDoing(TIMED_OUT))
    site.slurm.script("queue", Act.NORMAL, *[Unobserved("squeue did not answer")] * 5)
    with pytest.raises(SlurmAmbiguous, match="may be queued, and squeue does not answer"):
        site.submit()
    assert len(site.slurm.asked("submit")) == 1


def test_the_same_command_again_then_ends_with_exactly_all_generations(site: Site) -> None:
    test_while_the_queue_is_silent_nothing_is_submitted_again(site)
    result = site.submit(chain_id=OTHER_ID)
    assert result.chain_id == CHAIN_ID
    assert site.stamps() == stamps(1, 2, 3)
    assert len(site.slurm.asked("submit")) == 3


def test_a_request_that_arrives_after_its_repetition_is_found_and_the_younger_job_cancelled(site: Site) -> None:
    submit, count = site.slurm.submit, [0]

    def late(argv: Any) -> Any:
        count[0] += 1
        if count[0] == 1:
            raise TIMED_OUT
        if count[0] == 2:
            site.slurm.submit_as(site.slurm.user, argv)
        return submit(argv)

    site.slurm.submit = late  # type: ignore[method-assign]
    result = site.submit()
    assert sorted(site.stamps()) == stamps(1, 2, 3)
    assert any("queued twice" in line for line in site.said)
    kept = record(site.run.submission_id(1), SubmissionId).array_job_id
    assert kept == result.array_job_ids[0]
    assert kept == site.array_jobs()[0]
    assert site.slurm.task(f"{kept}_0").state is JobState.RUNNING


def die_before(name: str, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """Raise KeyboardInterrupt in the submit at the `at`-th write of such a record."""
    write_first, count = enqueue.write_first, [0]

    def die(path: Path, content: bytes) -> bool:
        if path.name.endswith(name):
            count[0] += 1
            if count[0] == at:
                raise KeyboardInterrupt
        return write_first(path, content)

    monkeypatch.setattr(enqueue, "write_first", die)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("name", [".id.json", ".json"])
def test_a_submit_that_was_killed_anywhere_is_completed_by_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    with monkeypatch.context() as patch:
        die_before(name, patch, at=at)
        with pytest.raises(KeyboardInterrupt):
            site.submit()
    result = site.submit(chain_id=OTHER_ID)
    assert result.chain_id == CHAIN_ID
    assert any("an earlier submit left half queued" in line for line in site.said)
    assert site.stamps() == stamps(1, 2, 3)
    assert len(site.slurm.asked("submit")) == 3
    ids = [record(site.run.submission_id(sequence), SubmissionId).array_job_id for sequence in (1, 2, 3)]
    assert tuple(ids) == result.array_job_ids


def test_a_generation_that_came_and_went_unrecorded_is_known_by_its_own_record(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        die_before(".id.json", patch, at=1)
        with pytest.raises(KeyboardInterrupt):
            site.submit()
    job = site.array_jobs()[0]
    site.slurm.cancel((str(job),))
    site.clock.advance(1000)
    generation = site.run.generation(job)
    generation.path.mkdir()
    write_atomic(generation.record, encode_record(ended_generation(job)))
    result = site.submit(chain_id=OTHER_ID)
    assert result.array_job_ids[0] == job
    assert site.stamps() == stamps(2, 3)


def ended_generation(job: int) -> GenerationRecord:
    return GenerationRecord(
        array_job_id=job,
        array_task_id=0,
        restart_count=0,
        host="n1",
        boot_id="b",
        pid=1,
        pid_started_at=1,
        chain_id=CHAIN_ID,
        started_at="2026-01-01T00:00:00Z",
        launched_at=None,
        ended_at=None,
        outcome=None,
        exit_code=None,
        signalled=False,
        near_wall=False,
        iteration_at_start=None,
        iteration_at_end=None,
        cycles=None,
        run_seconds=None,
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"hot_spares": "0"}, "shape"),
        ({"chain_depth": "4"}, "chain_depth"),
        ({"name": "other"}, "job_name"),
        ({"sbatch_arg": ("--nice=100",)}, "sbatch options"),
        ({"max_restarts": "9"}, "launcher"),
    ],
)
def test_a_half_submitted_chain_is_completed_as_it_was_begun(
    site: Site, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], named: str
) -> None:
    with monkeypatch.context() as patch:
        die_before(".id.json", patch, at=2)
        with pytest.raises(KeyboardInterrupt):
            site.submit()
    with pytest.raises(PreflightError, match=f"with other settings: .*{named}"):
        site.submit(chain_id=OTHER_ID, **flags)
    assert len(site.slurm.asked("submit")) == 2
