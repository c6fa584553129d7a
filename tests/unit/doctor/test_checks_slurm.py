"""The checks of Slurm's programs and configuration: good, bad, and without an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nvrx_chain.doctor.checks import CHECKS
from nvrx_chain.doctor.facts import ChainFacts, Program, SlurmPrograms
from nvrx_chain.doctor.model import Grade, SlurmFacts
from nvrx_chain.errors import Unobserved
from tests.unit.doctor.build import judge, make_evidence, make_place, make_programs, make_site, make_visit
from tests.unit.submit.chains import make_cluster, make_partition

HUNG = Unobserved("scontrol did not answer in 4 s")
SILENT = make_site(config=HUNG, config_seconds=4.0, partitions=HUNG, accounting=HUNG)
OF_CONFIG = (
    "whole-nodes",
    "array-limits",
    "kill-wait",
    "silent-node",
    "requeue",
    "grace",
    "process-tracking",
    "private-data",
)


def with_program(name: str, **changes: Any) -> SlurmPrograms:
    seen = make_programs()
    programs = tuple(
        msgspec.structs.replace(program, **changes) if program.name == name else program for program in seen.programs
    )
    return msgspec.structs.replace(seen, programs=programs)


def grade_of(check: str, *, fields: dict[str, str] | None = None, **config: Any) -> Grade:
    site = make_site(fields=fields)
    assert not isinstance(site.config, Unobserved)
    return judge(make_evidence(slurm=replace(site, config=replace(site.config, **config))), check).grade


def test_a_healthy_site_has_no_line_but_ok() -> None:
    evidence = make_evidence(visit=make_visit())
    assert [line for check in CHECKS for line in check(evidence) if line.grade is not Grade.OK] == []


def test_everything_but_ok_says_how_to_mend_it_or_that_it_was_not_seen() -> None:
    sick = make_evidence(slurm=SILENT, login=make_place(slurm=make_programs(queue_problem="no")), visit=make_visit())
    lines = [line for check in CHECKS for line in check(sick)]
    assert [line for line in lines if line.grade in (Grade.WARN, Grade.BAD) and not line.mend] == []
    assert {line.grade for line in lines} == {Grade.OK, Grade.UNKNOWN, Grade.BAD}


@pytest.mark.parametrize("check", OF_CONFIG)
def test_a_configuration_that_was_not_shown_is_unknown_and_never_bad(check: str) -> None:
    assert judge(make_evidence(slurm=SILENT), check).grade is Grade.UNKNOWN


def test_a_controller_that_is_silent_is_bad_and_a_slow_one_a_warning() -> None:
    silent = judge(make_evidence(slurm=SILENT), "controller")
    assert (silent.grade, silent.seen) == (Grade.BAD, HUNG.reason)
    assert judge(make_evidence(slurm=make_site(config_seconds=2.5)), "controller").grade is Grade.WARN
    assert judge(make_evidence(slurm=make_site(config_seconds=2.0)), "controller").grade is Grade.OK


def test_a_program_that_is_missing_is_bad_but_sacct_is_not_needed() -> None:
    for name, grade in (("scancel", Grade.BAD), ("sacct", Grade.WARN)):
        seen = with_program(name, path=None, version=None, problem="not on PATH")
        line = judge(make_evidence(login=make_place(slurm=seen)), "slurm-programs")
        assert (line.grade, line.seen) == (grade, f"{name}: not on PATH")


def test_programs_with_one_complaint_stand_together() -> None:
    seen = make_programs(
        programs=tuple(Program(name=n, path=f"/b/{n}", problem="no config") for n in ("srun", "sinfo"))
    )
    line = judge(make_evidence(login=make_place(slurm=seen)), "slurm-programs")
    assert line.seen == "srun, sinfo: no config"
    assert "PATH" not in (line.mend or "")


@pytest.mark.parametrize(
    "changes",
    [{"version": "23.02.1"}, {"is_script": True}],
    ids=["another release", "a wrapper"],
)
def test_an_odd_program_is_a_warning_that_names_it(changes: dict[str, Any]) -> None:
    line = judge(make_evidence(login=make_place(slurm=with_program("squeue", **changes))), "slurm-programs")
    assert line.grade is Grade.WARN
    assert "squeue" in line.seen


def test_a_slurm_older_than_what_is_tested_is_a_warning() -> None:
    for version, grade in (("21.08.8", Grade.WARN), ("22.05.0", Grade.OK), ("26.05.5", Grade.OK)):
        seen = make_programs(programs=(Program(name="squeue", path="/b/squeue", version=version),))
        assert judge(make_evidence(login=make_place(slurm=seen)), "slurm-programs").grade is grade


def test_a_squeue_that_drops_our_options_is_bad_and_one_that_drops_others_a_warning() -> None:
    ours = make_programs(queue_problem="squeue: invalid option -- 'states'")
    assert judge(make_evidence(login=make_place(slurm=ours)), "squeue").grade is Grade.BAD
    typed = make_programs(typed_problem="squeue: invalid option -- 'r'")
    assert judge(make_evidence(login=make_place(slurm=typed)), "squeue").grade is Grade.WARN


def test_a_node_without_slurms_programs_is_bad_by_its_own_name() -> None:
    visit = make_visit(slurm=with_program("scontrol", path=None, problem="not on PATH"))
    assert judge(make_evidence(visit=visit), "slurm-programs", "n7").grade is Grade.BAD
    assert judge(make_evidence(visit=visit), "slurm-programs", "login").grade is Grade.OK


def test_programs_that_were_not_looked_at_are_unknown() -> None:
    evidence = make_evidence(login=make_place(slurm=Unobserved("no answer within 6 s")))
    assert judge(evidence, "slurm-programs").grade is Grade.UNKNOWN
    assert judge(evidence, "squeue").grade is Grade.UNKNOWN


def test_accounting_that_is_off_is_no_fault_but_one_that_is_down_is() -> None:
    def grade(site: SlurmFacts) -> Grade:
        return judge(make_evidence(slurm=site), "accounting").grade

    down = Unobserved("sacct failed with 1: Problem talking to the database")
    assert grade(make_site()) is Grade.OK
    assert grade(make_site(accounting=down)) is Grade.WARN
    assert grade(make_site(config=make_cluster(accounting=False), accounting=down)) is Grade.OK
    forgetful = make_cluster(accounting=False, min_job_age_seconds=5)
    assert grade(make_site(config=forgetful, accounting=down)) is Grade.WARN
    assert grade(SILENT) is Grade.UNKNOWN


@pytest.mark.parametrize(
    ("over_subscribe", "grade"),
    [("NO", Grade.OK), ("EXCLUSIVE", Grade.OK), ("YES:4", Grade.OK), ("FORCE:1", Grade.OK), ("FORCE:4", Grade.BAD)],
)
def test_a_partition_that_shares_by_force_is_bad(over_subscribe: str, grade: Grade) -> None:
    shared = make_partition(fields={"OverSubscribe": over_subscribe})
    assert judge(make_evidence(slurm=make_site(partitions=(shared,))), "whole-nodes").grade is grade


def test_only_the_partition_that_is_asked_for_counts() -> None:
    usual = make_partition(fields={"OverSubscribe": "NO"})
    shared = make_partition(name="debug", is_default=False, fields={"OverSubscribe": "FORCE:4"})
    site = make_site(partitions=(usual, shared))
    assert judge(make_evidence(slurm=site), "whole-nodes").grade is Grade.OK
    assert judge(make_evidence(slurm=site, partition="debug"), "whole-nodes").grade is Grade.BAD


def test_an_unknown_selection_plugin_is_a_warning() -> None:
    assert grade_of("whole-nodes", fields={"SelectType": "select/other"}) is Grade.WARN
    assert grade_of("whole-nodes", fields={"SelectType": "select/linear"}) is Grade.OK


def test_partitions_that_were_not_seen_leave_whole_nodes_unknown() -> None:
    assert judge(make_evidence(slurm=make_site(partitions=HUNG)), "whole-nodes").grade is Grade.UNKNOWN


def test_a_chain_that_the_array_limits_refuse_is_bad() -> None:
    chain = ChainFacts(
        interpreter="/p", python="/p", launcher="torchrun", tasks=101, tasks_at_once=99, chain_depth=3, gpus_per_node=8
    )

    def grade(largest: int, jobs: str) -> Grade:
        site = make_site(config=make_cluster(max_array_size=largest, fields={"MaxJobCount": jobs}))
        return judge(make_evidence(slurm=site, chain=chain), "array-limits").grade

    # The largest index is 100, and must be below MaxArraySize.
    assert grade(100, "100000") is Grade.BAD
    assert grade(101, "100000") is Grade.OK
    assert grade(1001, "302") is Grade.BAD
    assert grade(1001, "1000") is Grade.OK


def test_small_array_limits_are_a_warning_without_a_chain() -> None:
    assert grade_of("array-limits", max_array_size=50) is Grade.WARN
    assert grade_of("array-limits", fields={"MaxJobCount": "500"}) is Grade.WARN
    assert grade_of("array-limits") is Grade.OK


@pytest.mark.parametrize(("seconds", "grade"), [(9, Grade.WARN), (10, Grade.OK), (120, Grade.OK), (121, Grade.WARN)])
def test_a_kill_wait_that_is_too_short_or_too_long_is_a_warning(seconds: int, grade: Grade) -> None:
    assert grade_of("kill-wait", kill_wait_seconds=seconds) is grade
    assert grade_of("kill-wait", kill_wait_seconds=None) is Grade.UNKNOWN


@pytest.mark.parametrize(
    ("seconds", "grade"), [(0, Grade.WARN), (59, Grade.WARN), (60, Grade.OK), (900, Grade.OK), (901, Grade.WARN)]
)
def test_what_a_silent_node_costs_follows_from_slurmd_timeout(seconds: int, grade: Grade) -> None:
    assert grade_of("silent-node", slurmd_timeout_seconds=seconds) is grade
    assert grade_of("silent-node", slurmd_timeout_seconds=None) is Grade.UNKNOWN


def test_requeue_is_said_and_never_a_fault() -> None:
    assert grade_of("requeue", fields={"JobRequeue": "0"}) is Grade.OK
    assert grade_of("requeue", fields={"JobRequeue": ""}) is Grade.UNKNOWN


def test_a_preemption_without_grace_is_a_warning() -> None:
    def grade(mode: str, grace: str) -> Grade:
        partition = make_partition(fields={"GraceTime": grace, "PreemptMode": mode})
        site = make_site(config=make_cluster(preempt_mode=mode), partitions=(partition,))
        return judge(make_evidence(slurm=site), "grace").grade

    assert grade("CANCEL", "0") is Grade.WARN
    assert grade("CANCEL", "300") is Grade.OK
    assert grade("OFF", "0") is Grade.OK


def test_processes_that_slurm_cannot_follow_are_a_warning() -> None:
    assert grade_of("process-tracking", fields={"ProctrackType": "proctrack/linuxproc"}) is Grade.WARN
    assert grade_of("process-tracking", fields={"ProctrackType": ""}) is Grade.UNKNOWN


def test_hidden_nodes_are_a_warning_and_hidden_jobs_are_said() -> None:
    assert grade_of("private-data", fields={"PrivateData": "jobs,nodes"}) is Grade.WARN
    line = judge(make_evidence(slurm=make_site(fields={"PrivateData": "jobs,usage"})), "private-data")
    assert line.grade is Grade.OK
    assert "owner" in line.seen
