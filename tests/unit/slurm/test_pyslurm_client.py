"""The PySlurm client: what Slurm or PySlurm fails to tell is unobserved, and what PySlurm cannot do it does not do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.slurm.pyslurm_client import PySlurmClient
from nvrx_chain.slurm.states import JobState, NodeState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.pyslurm_bench import STAND_IN, StandIn, recorded
from tests.unit.slurm.programs import FakePrograms
from tests.unit.slurm.test_pyslurm_cluster import ACCOUNTED

LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
SILENT = "Unable to contact slurm controller (connect failure)"


class Desk:
    """A client on recorded objects; `commands` counts what went to Slurm's programs."""

    def __init__(self, directory: Path) -> None:
        self.world = recorded("running")
        self.faults: dict[str, str] = {}
        self.commands = FakeSlurm(FakeClock())
        self.stand_in = StandIn(directory, lambda: {**self.world, "faults": self.faults})
        self.client = PySlurmClient(
            clock=FakeClock(), process=self.stand_in, commands=self.commands, timeout_seconds=20.0
        )

    @property
    def asked_of_programs(self) -> list[str]:
        return [call.operation for call in self.commands.calls]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.stand_in.close()


def why(answer: Any) -> str:
    assert isinstance(answer, Unobserved), answer
    return answer.reason


def details(answer: Any) -> tuple[JobDetail, ...]:
    assert isinstance(answer, tuple), answer
    return answer


@pytest.mark.parametrize("fault", [SILENT, "exit", "crash", "fail"])
def test_a_slurm_that_does_not_answer_is_never_an_empty_answer(desk: Desk, fault: str) -> None:
    desk.faults = dict.fromkeys(("jobs", "job", "nodes", "accounting"), fault)
    client = desk.client
    answers = (
        client.queue(),
        client.queue("alice"),
        client.show_job(3),
        client.show_job(999),
        client.nodes([]),
        client.accounting([1], LONG_AGO),
    )
    for answer in answers:
        assert why(answer)
    # Only whether the site has accounting at all.
    assert desk.asked_of_programs == ["config"]


def test_an_unknown_job_is_none_because_slurm_says_so(desk: Desk) -> None:
    assert desk.client.show_job(999) is None


def test_a_job_that_is_only_not_listed_is_not_none(desk: Desk) -> None:
    # Private jobs, or a reading from before the job was there.
    desk.faults = {"job": "Access/permission denied"}
    assert "permission denied" in why(desk.client.show_job(999))


def test_a_job_is_shown_with_all_records_of_its_array(desk: Desk) -> None:
    desk.world["jobs"] = {name: one for name, one in desk.world["jobs"].items() if name != "1"}
    found = details(desk.client.show_job(1))
    assert [(one.job_id, one.array_task_id) for one in found] == [(3, 0), (4, 1)]
    assert desk.asked_of_programs == []


def test_an_array_of_which_tasks_wait_is_asked_of_scontrol_for_the_nodes_they_are_kept_from(desk: Desk) -> None:
    # Array 1 runs and depends on nothing any more; PySlurm shows no excluded nodes of its waiting rest.
    job = desk.commands.submit(["--job-name=llama_pretrain", "--array=0-4%2", "--hold"]).array_job_id
    assert job == 1
    desk.client.exclude("1", ["m2", "m3"])
    (waiting,) = details(desk.client.show_job(1))
    assert waiting.fields["ExcNodeList"] == "m[2-3]"
    assert desk.asked_of_programs == ["submit", "exclude", "show_job"]


def test_without_scontrol_an_array_of_which_tasks_wait_is_known_but_for_its_excluded_nodes(desk: Desk) -> None:
    desk.commands.always("show_job", Unobserved("scontrol is not on PATH"))
    found = details(desk.client.show_job(1))
    assert [(one.job_id, one.array_task_id) for one in found] == [(1, None), (3, 0), (4, 1)]
    assert not any("ExcNodeList" in one.fields for one in found)
    assert "not on PATH" in why(desk.client.show_job(2))


def test_a_task_is_shown_by_its_own_id(desk: Desk) -> None:
    assert [one.array_task_id for one in details(desk.client.show_job(4))] == [1]


def test_a_job_with_a_dependency_is_asked_of_scontrol(desk: Desk) -> None:
    # Of array 2, which was submitted as a singleton, PySlurm says that it is none.
    desk.commands.submit(["--job-name=llama_pretrain", "--array=0-4%2", "--hold"])
    desk.commands.submit(["--job-name=llama_pretrain", "--array=0-4%2", "--dependency=singleton"])
    (waiting,) = details(desk.client.show_job(2))
    assert waiting.dependency == "singleton(unfulfilled)"
    assert desk.asked_of_programs == ["submit", "submit", "show_job"]


def test_records_of_two_owners_under_one_id_are_not_believed(desk: Desk) -> None:
    desk.world["jobs"]["4"]["user_name"] = "mallory"
    assert "one owner" in why(desk.client.show_job(1))


def test_the_queue_of_one_user_has_his_tasks_alone(desk: Desk) -> None:
    desk.world["jobs"]["4"] |= {"user_id": 1002, "user_name": "bob"}
    desk.world["jobs"]["3"] |= {"user_id": None, "user_name": None}
    reading = desk.client.queue("alice")
    assert not isinstance(reading, Unobserved)
    assert {task.user for task in reading.tasks} == {"alice"}
    assert len(reading.tasks) == 3 + 5


def test_records_that_cannot_be_read_are_no_empty_queue(desk: Desk) -> None:
    for record in desk.world["jobs"].values():
        record["array_id"] = "what"
    assert "none that can be read" in why(desk.client.queue())


def test_one_record_that_cannot_be_read_makes_the_reading_partial(desk: Desk) -> None:
    desk.world["jobs"]["4"]["array_id"] = "what"
    reading = desk.client.queue("alice")
    assert not isinstance(reading, Unobserved)
    assert [len(reading.of(job)) for job in (1, 2)] == [4, 5]
    (unparsed,) = reading.unparsed
    assert "of which array job 4 is" in unparsed


def test_an_empty_cluster_is_an_empty_queue(desk: Desk) -> None:
    desk.world["jobs"] = {}
    reading = desk.client.queue()
    assert not isinstance(reading, Unobserved)
    assert (reading.tasks, reading.unparsed) == ((), ())


def test_nodes_by_name_and_a_word_that_is_no_name(desk: Desk) -> None:
    nodes = desk.client.nodes(["m1", "no-such-node"])
    assert not isinstance(nodes, Unobserved)
    assert {name: node.state for name, node in nodes.items()} == {"m1": NodeState.ALLOCATED}
    assert "no node name" in why(desk.client.nodes(["--all"]))


def test_accounting_is_read_with_its_steps(desk: Desk) -> None:
    steps = {"batch": {"id": "batch", "state": "FAILED", "exit_code": 221}, "0": ACCOUNTED["steps"][1]}
    desk.world["accounting"] = [{**ACCOUNTED, "steps": steps}]
    (task,) = details(desk.client.accounting([7], LONG_AGO))
    assert (task.array_task_id, task.state, task.step_exit_codes) == (0, JobState.FAILED, (93,))


def test_an_older_job_under_the_same_id_is_left_out(desk: Desk) -> None:
    desk.world["accounting"] = [{**ACCOUNTED, "steps": {}}]
    later = datetime.fromtimestamp(ACCOUNTED["submit_time"] + 60, timezone.utc)
    assert desk.client.accounting([7], later) == ()


def test_a_database_that_fails_is_not_a_site_without_accounting(desk: Desk) -> None:
    assert "disabled" not in why(desk.client.accounting([7], LONG_AGO))
    without = PySlurmClient(
        clock=FakeClock(),
        process=desk.stand_in,
        commands=FakeSlurm(FakeClock(), accounting=False),
        timeout_seconds=20.0,
    )
    assert "accounting storage is disabled" in why(without.accounting([7], LONG_AGO))


def test_what_a_submit_needs_of_the_limits_is_told_as_the_programs_tell_it(desk: Desk, tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin")
    told = ("ClusterName = c", "MaxJobCount = 12", "AccountingStorageEnforce = associations,limits")
    programs.put_plain("scontrol", "; ".join(f"echo '{line}'" for line in told))
    programs.put_plain("sacctmgr", "exit 1")
    commands = CommandLineClient(clock=FakeClock(), environ=programs.environ)
    client = PySlurmClient(clock=FakeClock(), process=desk.stand_in, commands=commands)
    config = client.config()
    assert not isinstance(config, Unobserved)
    assert (config.max_job_count, config.enforces_limits) == (12, True)
    assert "sacctmgr failed with 1" in why(client.submit_limits("alice"))


def test_whatever_changes_a_job_goes_to_the_programs(desk: Desk) -> None:
    client = desk.client
    client.submit(["--job-name=a", "--array=0-3%2"])
    client.cancel(["1_0"], pending_only=True)
    client.hold(["1"])
    client.release(["1"])
    client.nudge("1_0")
    client.partitions()
    client.config()
    client.exclude("1", [])
    assert desk.asked_of_programs == ["submit", "cancel", "hold", "release", "nudge", "partitions", "config", "exclude"]
    assert desk.commands.asked("cancel")[0].arguments == (("1_0",), True)


def test_nothing_here_calls_what_would_end_a_whole_array() -> None:
    # The stand-in has no such method, so a call would end the child; the sources must not have one either.
    sources = Path(__file__).parents[3] / "nvrx_chain" / "slurm"
    for path in (sources / "pyslurm_worker.py", sources / "pyslurm_process.py"):
        assert "cancel(" not in path.read_text()
    assert "def cancel" not in (STAND_IN / "pyslurm" / "__init__.py").read_text()
