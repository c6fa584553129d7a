"""The checks that need both machines."""

from __future__ import annotations

import pytest

from nvrx_chain.doctor.checks_node import check_visit
from nvrx_chain.doctor.facts import Echo
from nvrx_chain.doctor.model import Grade
from nvrx_chain.errors import Unobserved
from tests.unit.doctor.build import ECHO, judge, make_directory, make_evidence, make_host, make_place, make_visit

NOBODY = Unobserved("no node free within 60 s, Slurm says Resources")


def test_a_node_that_never_came_is_unknown_and_one_that_failed_bad() -> None:
    assert judge(make_evidence(visit=make_visit(place=NOBODY, node=None)), "job").grade is Grade.UNKNOWN
    failed = make_visit(place=NOBODY, problem="a job of two lines ended as NODE_FAIL")
    assert judge(make_evidence(visit=failed), "job").grade is Grade.BAD


def test_a_job_that_may_be_left_is_said_with_the_command_that_ends_it() -> None:
    evidence = make_evidence(visit=make_visit(place=NOBODY, left="job 17 may still be there: squeue still shows it"))
    (line,) = [line for line in check_visit(evidence) if line.grade is Grade.WARN]
    assert line.mend == "scancel 17"


def test_a_directory_whose_files_the_other_does_not_see_is_bad() -> None:
    blind = make_directory(seen_after_seconds=0.0, echo_problem="the login node did not answer")
    assert judge(make_evidence(visit=make_visit(directory=blind)), "seen").grade is Grade.BAD
    away = make_directory(problem="/scratch is not there, also after 20 s")
    assert judge(make_evidence(visit=make_visit(directory=away)), "directory", "n7").grade is Grade.BAD


@pytest.mark.parametrize(("seconds", "grade"), [(5.0, Grade.OK), (5.5, Grade.WARN)])
def test_a_directory_that_shows_files_late_is_a_warning(seconds: float, grade: Grade) -> None:
    late = make_directory(seen_after_seconds=seconds, echo=ECHO)
    assert judge(make_evidence(visit=make_visit(directory=late)), "seen").grade is grade
    slow = Echo(node_wrote_at=0, login_saw_at=0, login_wrote_at=0, node_saw_at=seconds)
    directory = make_directory(seen_after_seconds=0.0, echo=slow)
    assert judge(make_evidence(visit=make_visit(directory=directory)), "seen").grade is grade


def test_one_path_on_two_kinds_of_file_system_is_a_warning() -> None:
    other = make_directory(kind="nfs4", seen_after_seconds=0.0, echo=ECHO)
    assert judge(make_evidence(visit=make_visit(directory=other)), "seen").grade is Grade.WARN


def test_another_package_there_is_bad_and_another_python_a_warning() -> None:
    old = make_visit(host=make_host(package_version="0.0.9"))
    assert judge(make_evidence(visit=old), "same-code").grade is Grade.BAD
    other = make_visit(host=make_host(python_version="3.12.1"))
    assert judge(make_evidence(visit=other), "same-code").grade is Grade.WARN
    silent = make_evidence(login=make_place(host=NOBODY), visit=make_visit())
    assert judge(silent, "same-code").grade is Grade.UNKNOWN


def test_clocks_are_compared_by_the_exchange_of_files() -> None:
    # The node is 100 s ahead; each file needs 0.5 s, and the login node takes 3 s to answer.
    echo = Echo(node_wrote_at=1100.0, login_saw_at=1000.5, login_wrote_at=1003.5, node_saw_at=1104.0)
    assert echo.skew_seconds == 100.0
    assert echo.round_trip_seconds == 1.0
    visit = make_visit(directory=make_directory(echo=echo, seen_after_seconds=0.0))
    assert judge(make_evidence(visit=visit), "clocks").grade is Grade.WARN


@pytest.mark.parametrize(("skew", "grade"), [(0.0, Grade.OK), (-2.9, Grade.OK), (-3.1, Grade.WARN), (242.0, Grade.BAD)])
def test_without_files_the_clocks_are_compared_to_the_length_of_the_step(skew: float, grade: Grade) -> None:
    visit = make_visit(
        host=make_host(read_at=1000.0 + skew),
        directory=make_directory(problem="/scratch is not there"),
        began_at=999.0,
        ended_at=1001.0,
    )
    assert judge(make_evidence(visit=visit), "clocks").grade is grade


def test_a_node_that_told_nothing_of_itself_has_no_known_clock() -> None:
    assert judge(make_evidence(visit=make_visit(host=NOBODY)), "clocks").grade is Grade.UNKNOWN
