"""The checks of one machine: its run directory, launcher, GPUs, name and limits."""

from __future__ import annotations

from typing import Any

import pytest

from nvrx_chain.doctor.facts import ChainFacts, Gpus, Launcher
from nvrx_chain.doctor.model import Grade
from nvrx_chain.errors import Unobserved
from tests.unit.doctor.build import judge, make_directory, make_evidence, make_host, make_place, make_visit

LATE = Unobserved("no answer within 6 s")


def of_directory(check: str, **changes: Any) -> Grade:
    return judge(make_evidence(login=make_place(directory=make_directory(**changes))), check).grade


def of_launcher(**changes: Any) -> Grade:
    values: dict[str, Any] = {"python": "/opt/python", "versions": {"torchrun": "2.8"}, "kind": "torchrun", **changes}
    return judge(make_evidence(login=make_place(launcher=Launcher(**values))), "launcher").grade


def test_a_directory_that_cannot_be_written_or_links_twice_is_bad() -> None:
    assert of_directory("directory", problem="nothing can be made in /scratch: Read-only file system") is Grade.BAD
    assert of_directory("directory", first_wins=False) is Grade.BAD


def test_a_directory_that_hangs_is_bad_and_named() -> None:
    line = judge(make_evidence(login=make_place(directory=LATE)), "directory")
    assert line.grade is Grade.BAD
    assert "run & dir #1" in line.seen


@pytest.mark.parametrize(
    ("seconds", "grade"), [(0.5, Grade.OK), (0.6, Grade.WARN), (5.0, Grade.WARN), (5.1, Grade.BAD)]
)
def test_a_write_that_takes_longer_than_a_lease_interval_is_bad(seconds: float, grade: Grade) -> None:
    assert of_directory("directory", write_seconds=seconds) is grade


def test_a_file_system_of_this_machine_is_a_warning_until_a_node_was_asked() -> None:
    local = make_place(directory=make_directory(kind="tmpfs", reach="local and temporary"))
    assert judge(make_evidence(login=local), "shared").grade is Grade.WARN
    assert judge(make_evidence(login=make_place(directory=make_directory(reach=None))), "shared").grade is Grade.UNKNOWN
    with pytest.raises(AssertionError, match=r"\[\]"):
        judge(make_evidence(login=local, visit=make_visit()), "shared")


def test_a_file_system_that_is_nearly_full_is_a_warning_and_a_full_one_bad() -> None:
    assert of_directory("space", free_bytes=5 << 30) is Grade.WARN
    assert of_directory("space", free_bytes=50 << 20) is Grade.BAD
    assert of_directory("space", free_files=0) is Grade.BAD
    assert of_directory("space", free_files=500) is Grade.WARN
    # Btrfs counts no files.
    assert of_directory("space", free_files=None) is Grade.OK
    assert of_directory("space", free_bytes=None) is Grade.UNKNOWN


def test_a_launcher_that_was_asked_for_and_is_not_there_is_bad() -> None:
    assert of_launcher(kind="ft_launcher") is Grade.BAD
    assert of_launcher(kind=None, versions={}) is Grade.WARN


def test_an_import_that_fails_is_bad_and_one_that_takes_too_long_unknown() -> None:
    assert of_launcher(problem="ImportError: libcudart.so.12") is Grade.BAD
    assert of_launcher() is Grade.UNKNOWN
    assert of_launcher(import_seconds=31.0) is Grade.WARN
    assert of_launcher(import_seconds=30.0) is Grade.OK


def test_an_interpreter_that_does_not_answer_is_unknown() -> None:
    assert judge(make_evidence(login=make_place(launcher=LATE)), "launcher").grade is Grade.UNKNOWN


def test_a_launcher_command_of_the_users_own_is_not_looked_at() -> None:
    assert judge(make_evidence(login=make_place(launcher=LATE), launcher="command"), "launcher").grade is Grade.OK


def test_no_gpus_is_a_fact_and_gpus_without_nvml_a_warning() -> None:
    def line(gpus: Gpus | Unobserved) -> tuple[Grade, str]:
        found = judge(make_evidence(login=make_place(gpus=gpus)), "gpus")
        return found.grade, found.seen

    assert line(Gpus(count=0, source="driver", note="pynvml is not installed")) == (Grade.OK, "no GPUs")
    grade, seen = line(Gpus(count=8, source="driver", note="NVML: Driver/library version mismatch"))
    assert grade is Grade.WARN
    assert "mismatch" in seen
    assert line(Gpus(count=2, names=("H100", "H100"), driver="570", source="NVML")) == (
        Grade.OK,
        "2 GPUs H100, driver 570",
    )
    assert line(LATE)[0] is Grade.UNKNOWN


def test_a_node_whose_name_peers_cannot_reach_is_bad_and_the_login_nodes_name_does_not_matter() -> None:
    loopback = make_host(name="n7", name_problem="resolving the rendezvous host n7: 127.0.1.1")
    evidence = make_evidence(login=make_place(host=loopback), visit=make_visit(host=loopback))
    assert judge(evidence, "name").grade is Grade.BAD
    taken = make_visit(host=make_host(port=None, port_problem="200 ports are all taken"))
    assert judge(make_evidence(visit=taken), "name").grade is Grade.BAD
    assert judge(make_evidence(visit=make_visit(host=LATE)), "name").grade is Grade.UNKNOWN


def test_few_open_files_are_a_warning_on_either_machine() -> None:
    evidence = make_evidence(login=make_place(host=make_host(open_files=1024)), visit=make_visit(host=LATE))
    assert judge(evidence, "open-files", "login").grade is Grade.WARN
    assert judge(evidence, "open-files", "n7").grade is Grade.UNKNOWN


def test_little_shared_memory_on_a_node_is_a_warning() -> None:
    def grade(size: int | None) -> Grade:
        visit = make_visit(host=make_host(shared_memory_bytes=size))
        return judge(make_evidence(visit=visit), "shared-memory").grade

    assert grade(64 << 20) is Grade.WARN
    assert grade(1 << 30) is Grade.OK
    assert grade(None) is Grade.UNKNOWN


def test_a_chain_that_cannot_be_read_is_bad_and_one_that_can_is_described() -> None:
    assert judge(make_evidence(chain=Unobserved("chain.json is no ChainManifest")), "chain").grade is Grade.BAD
    chain = ChainFacts(
        interpreter="/p", python="/p", launcher="torchrun", tasks=5, tasks_at_once=3, chain_depth=3, gpus_per_node=8
    )
    assert judge(make_evidence(chain=chain), "chain").grade is Grade.OK
