"""Every task counts as a job. A limit that is not known never blocks, one that is passed for certain does."""

from __future__ import annotations

from typing import Any

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import AssociationLimit, QueueReading, SubmitLimits
from nvrx_chain.submit.facts import gather_facts
from nvrx_chain.submit.preflight import find_problems
from nvrx_chain.submit.problem import Severity
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.submit.chains import make_cluster, make_config, make_facts
from tests.unit.submit.conftest import Site

WANTED = 15
"""Three generations of five tasks."""


def said(severity: Severity, flags: dict[str, Any] | None = None, **facts: Any) -> str:
    found = find_problems(make_config(**(flags or {})), make_facts(**facts), dry_run=False)
    return "\n".join(map(str, (problem for problem in found if problem.severity is severity)))


def association(limit: int | None, account: str = "phys", partition: str = "", qos: str = "normal") -> AssociationLimit:
    return AssociationLimit(account=account, partition=partition, default_qos=qos, max_submit=limit)


def limits(*rows: AssociationLimit, **by_qos: int | None) -> dict[str, Any]:
    return {"limits": SubmitLimits(associations=rows, by_qos=by_qos)}


def own_jobs(count: int) -> QueueReading:
    slurm = FakeSlurm(FakeClock(), user="alice")
    slurm.submit(["--job-name=other", f"--array=0-{count - 1}", "x"])
    queue = slurm.queue()
    assert isinstance(queue, QueueReading)
    return queue


@pytest.mark.parametrize(("limit", "fits"), [(WANTED, True), (WANTED - 1, False), (None, True)])
def test_all_tasks_of_all_generations_count_against_max_job_count(limit: int | None, fits: bool) -> None:
    lines = said(Severity.ERROR, cluster=make_cluster(max_job_count=limit))
    assert ("3 generations of 5 tasks are 15 jobs" in lines) is not fits


def test_own_jobs_count_against_it_too() -> None:
    facts = {"cluster": make_cluster(max_job_count=WANTED + 3)}
    assert said(Severity.ERROR, queue=own_jobs(3), **facts) == ""
    assert "with 4 of yours that is more than MaxJobCount" in said(Severity.ERROR, queue=own_jobs(4), **facts)


@pytest.mark.parametrize(("limit", "fits"), [(WANTED, True), (WANTED - 1, False), (None, True)])
def test_an_association_and_a_qos_limit_them(limit: int | None, fits: bool) -> None:
    assert ("MaxSubmitJobs of account phys" in said(Severity.ERROR, **limits(association(limit)))) is not fits
    by_qos = limits(association(None), normal=limit)
    assert ("MaxSubmitJobsPerUser of QOS normal" in said(Severity.ERROR, **by_qos)) is not fits


def test_what_others_of_mine_take_is_a_warning_because_their_account_is_not_known() -> None:
    facts = {**limits(association(WANTED + 3)), "queue": own_jobs(4)}
    assert said(Severity.ERROR, **facts) == ""
    assert "4 of yours are there, and MaxSubmitJobs of account phys allows 18" in said(Severity.WARNING, **facts)


def test_only_the_limits_that_are_sure_to_hold_are_taken() -> None:
    few, many = association(1, "few"), association(100, "many")
    assert said(Severity.ERROR, **limits(few, many)) == ""
    assert "account few allows 1" in said(Severity.ERROR, {"account": "few"}, **limits(few, many))
    assert said(Severity.ERROR, {"account": "many"}, **limits(few, many)) == ""
    elsewhere = association(1, partition="debug")
    assert said(Severity.ERROR, **limits(elsewhere, association(100))) == ""
    assert said(Severity.ERROR, {"qos": "long"}, **limits(association(None), normal=1, long=100)) == ""


def test_a_chain_that_is_half_queued_needs_only_the_rest(site: Site) -> None:
    site.submit()
    facts = gather_facts(site.config(), site.slurm, user=site.slurm.user, uid=0, probe=False)
    found = find_problems(make_config(), make_facts(directory=facts.directory, **limits(association(1))), dry_run=False)
    assert not [problem for problem in found if "are 15 jobs" in problem.message]


def test_limits_that_cannot_be_read_are_said_and_block_nothing() -> None:
    unseen = {"limits": Unobserved("sacctmgr failed with 1")}
    assert said(Severity.ERROR, **unseen) == ""
    assert "was not looked at: sacctmgr failed" in said(Severity.NOTE, **unseen)
    assert "account" not in said(Severity.NOTE, limits=None)


@pytest.mark.parametrize(
    ("enforce", "holds"), [("none", False), ("associations", False), ("associations,limits,qos", True), ("safe", True)]
)
def test_only_a_cluster_that_enforces_limits_is_asked_for_them(enforce: str, holds: bool) -> None:
    assert make_cluster(enforce=enforce).enforces_limits is holds
