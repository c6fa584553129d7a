"""A site that changes jobs on their way in is found out by reading one back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvrx_chain.errors import SlurmError, Unobserved
from nvrx_chain.records.manifest import SubmissionId
from tests.unit.submit.chains import Site, record, stamps


def changing(site: Site, change: Callable[[list[str]], list[str]], *, at: int = 1) -> None:
    submit, count = site.slurm.submit, [0]

    def changed(argv: Any) -> Any:
        count[0] += 1
        return submit(change(list(argv)) if count[0] == at else argv)

    site.slurm.submit = changed  # type: ignore[method-assign]


def without(option: str) -> Callable[[list[str]], list[str]]:
    return lambda argv: [word for word in argv if not word.startswith(option)]


def replacing(option: str, value: str) -> Callable[[list[str]], list[str]]:
    return lambda argv: [f"{option}={value}" if word.startswith(f"{option}=") else word for word in argv]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without("--no-requeue"), "--no-requeue: the job has Requeue"),
        (replacing("--job-name", "site-name"), "--job-name: the job is called 'site-name'"),
        (replacing("--comment", "site"), "--comment: the job has 'site'"),
        (replacing("--chdir", "/"), "--chdir: the job runs in '/'"),
        (replacing("--array", "0-4"), "--array: the job has the throttle none"),
        (replacing("--array", "0-4%1"), "--array: the job has the throttle 1"),
    ],
)
def test_a_changed_job_is_refused_by_the_option_that_was_changed(
    site: Site, change: Callable[[list[str]], list[str]], named: str
) -> None:
    changing(site, change)
    with pytest.raises(SlurmError) as caught:
        site.submit()
    assert named in str(caught.value)
    assert len(site.slurm.asked("submit")) == 1


def test_a_changed_job_is_taken_back_without_being_asked(site: Site) -> None:
    changing(site, without("--no-requeue"))
    with pytest.raises(SlurmError, match="rolled back: cancelled 1"):
        site.submit()
    assert site.stamps() == []


def test_a_second_generation_that_lost_its_singleton_beside_a_live_first_is_refused(site: Site) -> None:
    changing(site, without("--dependency"), at=2)
    with pytest.raises(SlurmError, match="--dependency: the job has none, not singleton"):
        site.submit()
    assert site.stamps() == []


def test_a_generation_whose_predecessor_has_ended_need_not_wait_any_more(site: Site) -> None:
    submit = site.slurm.submit

    def first_ends_at_once(argv: Any) -> Any:
        submitted = submit(argv)
        if submitted.array_job_id > 1:
            site.slurm.cancel(("1",))
        return submitted

    site.slurm.submit = first_ends_at_once  # type: ignore[method-assign]
    site.submit(chain_depth="2")
    assert site.stamps() == stamps(2)


def test_a_job_that_cannot_be_read_back_is_a_warning(site: Site) -> None:
    site.slurm.always("show_job", Unobserved("scontrol did not answer"))
    site.submit()
    assert site.stamps() == stamps(1, 2, 3)
    assert sum("could not be read back: scontrol did not answer" in line for line in site.said) == 3
    assert record(site.run.submission_id(1), SubmissionId).submitted_at is None
