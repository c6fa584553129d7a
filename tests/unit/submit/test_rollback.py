"""A rejected generation, and what is taken back."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.outcome import Verdict
from tests.fakes.fake_slurm import Act
from tests.unit.submit.chains import CHAIN_ID, LIMIT, OTHER_ID, Site, record, stamps


def test_at_a_rejection_the_submit_stops_and_says_what_is_queued_and_how_to_go_on(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError, match="AssocMaxSubmitJobLimit") as caught:
        site.submit()
    hint = str(caught.value.hint)
    first, second = site.array_jobs()
    assert f"queued: {first} {second}, of 3 generations with 15 array tasks" in hint
    assert f"--run-dir {shlex.quote(str(site.directory))} queues the rest" in hint
    assert "submitting generation 3 of 3: sbatch refused it" in str(caught.value)
    assert site.stamps() == stamps(1, 2)
    assert site.submit(chain_id=OTHER_ID).array_job_ids[:2] == (first, second)
    assert site.stamps() == stamps(1, 2, 3)


def test_with_rollback_nothing_stays_and_the_directory_takes_a_new_chain(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError, match=r"rolled back: cancelled \d+ \d+\)"):
        site.submit(rollback=True)
    assert site.stamps() == []
    assert not site.run.manifest.exists()
    assert record(site.run.history / CHAIN_ID / "chain_outcome.json", ChainOutcome).verdict is Verdict.CANCELLED
    site.submit(chain_id=OTHER_ID)
    assert site.stamps() == stamps(1, 2, 3, chain_id=OTHER_ID)


def test_a_rollback_cancels_the_last_generation_first_so_that_none_starts(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError):
        site.submit(rollback=True)
    order = [int(call.arguments[0][0]) for call in site.slurm.asked("cancel")]  # type: ignore[index]
    assert order == sorted(order, reverse=True)
    assert len(order) == 2
    assert site.slurm.task(f"{order[0]}_0").nodelist == ""


def test_a_rollback_repeats_a_cancel_that_did_nothing(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, Act.NORMAL, LIMIT)
    site.slurm.script("cancel", Act.IGNORED, SlurmAmbiguous("cancel jobs", part="scancel did not end in 25 s"))
    with pytest.raises(SlurmError, match=r"rolled back: cancelled \d+ \d+\)"):
        site.submit(rollback=True)
    assert site.stamps() == []


def test_a_rollback_that_could_not_be_verified_says_so_and_keeps_the_outcome(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, LIMIT)
    site.slurm.always("cancel", Act.IGNORED)
    with pytest.raises(SlurmError, match=r"rolled back: job 1 may still be queued: PENDING, RUNNING\)"):
        site.submit(rollback=True)
    assert record(site.run.outcome, ChainOutcome).verdict is Verdict.CANCELLED
    assert site.run.manifest.exists()


def test_a_rollback_leaves_what_an_earlier_call_has_queued(site: Site) -> None:
    site.slurm.script("submit", Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError):
        site.submit()
    site.slurm.script("submit", Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError, match=r"rolled back: cancelled \d+\)"):
        site.submit(chain_id=OTHER_ID, rollback=True)
    assert site.stamps() == stamps(1)
    site.submit(chain_id=OTHER_ID)
    assert site.stamps() == stamps(1, 2, 3)


@pytest.mark.parametrize("owner", ["mallory", None])
def test_another_job_under_a_reused_id_is_not_rolled_back(site: Site, owner: str | None) -> None:
    submit, count = site.slurm.submit, [0]

    def first_is_lost(argv: Any) -> Any:
        count[0] += 1
        if count[0] == 1:
            return submit(argv)
        site.slurm.submit_as(owner or site.slurm.user, ["--job-name=innocent", "x"])
        raise LIMIT

    site.slurm.script("submit", Act.IGNORED)
    site.slurm.submit = first_is_lost  # type: ignore[method-assign]
    site.slurm.always("show_job", Unobserved("no answer"))
    with pytest.raises(SlurmError, match="rolled back"):
        site.submit(rollback=True)
    innocent = site.slurm.task("1")
    assert innocent.name == "innocent"
    assert not innocent.state.is_terminal
    assert site.slurm.asked("cancel") == []


def test_a_job_that_slurm_lost_right_after_accepting_it_is_no_success(site: Site) -> None:
    site.slurm.script("submit", Act.IGNORED)
    with pytest.raises(SlurmAmbiguous, match="Slurm does not know it"):
        site.submit()
    site.submit(chain_id=OTHER_ID)
    assert site.stamps() == stamps(1, 2, 3)
