"""Each check: quiet, firing, at its limit, and with its fact unobserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import PreflightError, Unobserved
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.slurm.model import QueueReading
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState, read_directory
from nvrx_chain.submit.facts import SubmitFacts
from nvrx_chain.submit.interpreters import ModuleProbe
from nvrx_chain.submit.mounts import FileSystem, Reach
from nvrx_chain.submit.preflight import find_problems, refuse_errors
from nvrx_chain.submit.problem import Problem, Severity
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.submit.chains import UNSEEN, make_cluster, make_config, make_facts, make_partition


def problems(config: ChainConfig, facts: SubmitFacts, *, dry_run: bool = False) -> list[Problem]:
    """What is found, without the notes."""
    return [p for p in find_problems(config, facts, dry_run=dry_run) if p.severity is not Severity.NOTE]


def notes(config: ChainConfig, facts: SubmitFacts, *, dry_run: bool = False) -> str:
    found = find_problems(config, facts, dry_run=dry_run)
    return "\n".join(p.message for p in found if p.severity is Severity.NOTE)


def only(config: ChainConfig, facts: SubmitFacts, severity: Severity = Severity.ERROR) -> str:
    found = problems(config, facts)
    assert [p.severity for p in found] == [severity], found
    assert found[0].hint
    return found[0].message


def queue_of(user: str, *names: str, comment: str = "") -> QueueReading:
    slurm = FakeSlurm(FakeClock(), user=user)
    for name in names:
        slurm.submit([f"--job-name={name}", f"--comment={comment}", "x"])
    queue = slurm.queue()
    assert isinstance(queue, QueueReading)
    return queue


def test_a_chain_that_fits_has_no_problem() -> None:
    config = make_config(command=("train.py",), target_iteration="10", time_limit="60")
    assert find_problems(config, make_facts(program_exists=True), dry_run=False) == ()


def test_errors_come_first_and_the_notes_last() -> None:
    found = find_problems(make_config(segment="3", partition="nope"), make_facts(), dry_run=False)
    order = [problem.severity for problem in found]
    assert order == sorted(order, key=list(Severity).index)


@pytest.mark.parametrize(("limit", "fits"), [(5, True), (4, False)])
def test_the_largest_index_must_be_below_max_array_size(limit: int, fits: bool) -> None:
    config, facts = make_config(), make_facts(cluster=make_cluster(max_array_size=limit))
    if fits:
        assert problems(config, facts) == []
    else:
        assert only(config, facts) == "the largest array index would be 4, and MaxArraySize of this cluster is 4"


def test_an_unknown_max_array_size_is_no_problem() -> None:
    assert problems(make_config(), make_facts(cluster=make_cluster(max_array_size=None))) == []


@pytest.mark.parametrize(("segment", "fits"), [("2", True), ("4", True), ("3", False), ("8", False)])
def test_training_nodes_must_divide_into_segments(segment: str, fits: bool) -> None:
    config = make_config(nodes_per_task="2", segment=segment, launcher="ft_launcher")
    if fits:
        assert problems(config, make_facts()) == []
    else:
        assert f"4 training nodes do not divide into segments of {segment}" in only(config, make_facts())


def test_a_launcher_without_segments_is_a_warning() -> None:
    message = only(make_config(segment="2", launcher="torchrun"), make_facts(), Severity.WARNING)
    assert message == "torchrun knows no segments"


def local(reach: Reach) -> SubmitFacts:
    return make_facts(file_system=FileSystem(mount_point="/", kind="ext4", reach=reach))


def test_a_run_directory_that_only_this_machine_sees_is_an_error_unless_allowed() -> None:
    assert "which only this machine sees" in only(make_config(), local(Reach.TEMPORARY))
    assert problems(make_config(allow_local_run_dir=True), local(Reach.TEMPORARY)) == []


def test_a_run_directory_on_a_disk_of_this_machine_is_a_warning_unless_allowed() -> None:
    assert "a disk of this machine" in only(make_config(), local(Reach.LOCAL_DISK), Severity.WARNING)
    assert problems(make_config(allow_local_run_dir=True), local(Reach.LOCAL_DISK)) == []


def test_a_file_system_that_could_not_be_seen_is_a_note() -> None:
    facts = make_facts(file_system=Unobserved("no table"))
    assert problems(make_config(), facts) == []
    assert "was not checked: no table" in notes(make_config(), facts)


@pytest.mark.parametrize("owner", [0, 4711])
def test_a_run_directory_of_somebody_else_is_an_error(owner: int) -> None:
    facts = make_facts(directory=DirectoryState(exists=True, owner_uid=owner))
    assert f"belongs to uid {owner}" in only(make_config(), facts)


@pytest.mark.parametrize("who", ["everybody", "its group"])
def test_a_run_directory_that_others_may_write_in_is_a_warning(who: str) -> None:
    facts = make_facts(directory=DirectoryState(exists=True, owner_uid=make_facts().uid, open_to=who))
    assert f"{who} may write in the run directory" in only(make_config(), facts, Severity.WARNING)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o777, "everybody"), (0o1777, "everybody"), (0o775, "its group"), (0o755, None)]
)
def test_who_may_write_in_a_run_directory_is_read_from_its_mode(tmp_path: Path, mode: int, who: str | None) -> None:
    tmp_path.chmod(mode)
    assert read_directory(RunDirectory(tmp_path)).open_to == who


@pytest.mark.parametrize("name", ["mine", "MINE", "Mine"])
def test_a_name_in_use_by_another_live_job_is_an_error_in_any_case(name: str) -> None:
    facts = make_facts(queue=queue_of("alice", name))
    assert f"job 1 is called {name}" in only(make_config(name="mine"), facts)


def test_another_users_job_and_another_name_do_not_count() -> None:
    assert problems(make_config(name="mine"), make_facts(queue=queue_of("bob", "mine"))) == []
    assert problems(make_config(name="mine"), make_facts(queue=queue_of("alice", "mine2"))) == []


def test_an_ended_job_of_that_name_does_not_count() -> None:
    slurm = FakeSlurm(FakeClock())
    slurm.submit(["--job-name=mine", "x"])
    slurm.finish("1")
    assert problems(make_config(name="mine"), make_facts(queue=slurm.queue())) == []


def test_own_generations_do_not_count_against_their_name() -> None:
    facts = make_facts(queue=queue_of("alice", "mine", comment="nvrx-chain:0123456789ab/1"))
    assert problems(make_config(name="mine"), facts) == []


def test_a_partition_must_exist() -> None:
    facts = make_facts(partitions=(make_partition(), make_partition(name="long", is_default=False)))
    assert only(make_config(partition="lang"), facts) == "there is no partition lang"
    assert problems(make_config(partition="long"), facts) == []
    assert only(make_config(partition="main,lang"), facts) == "there is no partition lang"


def test_without_a_partition_the_default_one_is_judged_and_must_be_there() -> None:
    facts = make_facts(partitions=(make_partition(is_default=False),))
    assert only(make_config(), facts) == "this cluster has no default partition"


@pytest.mark.parametrize(("limit", "fits"), [("60", True), ("61", False), ("UNLIMITED", False), (None, True)])
def test_the_time_limit_must_be_within_max_time(limit: str | None, fits: bool) -> None:
    facts = make_facts(partitions=(make_partition(max_time_seconds=3600),))
    config = make_config(time_limit=limit)
    if fits:
        assert problems(config, facts) == []
    else:
        assert "is above MaxTime of partition main, 60 minutes" in only(config, facts)


@pytest.mark.parametrize(
    ("gpus", "known", "fits"), [("8", 8, True), ("9", 8, False), ("9", None, True), ("0", 0, True)]
)
def test_a_node_must_have_the_gpus(gpus: str, known: int | None, fits: bool) -> None:
    facts = make_facts(partitions=(make_partition(gpus_per_node=known),))
    config = make_config(gpus_per_node=gpus)
    if fits:
        assert problems(config, facts) == []
    else:
        assert only(config, facts) == "partition main has 8 GPUs per node, 9 are asked for"


def test_too_few_nodes_for_training_is_an_error_and_for_the_spares_a_warning() -> None:
    config = make_config()
    assert problems(config, make_facts(partitions=(make_partition(node_count=3),))) == []
    assert "hot spares need 3" in only(config, make_facts(partitions=(make_partition(node_count=2),)), Severity.WARNING)
    assert "training tasks need 2" in only(config, make_facts(partitions=(make_partition(node_count=1),)))


def test_of_several_partitions_one_that_fits_is_enough() -> None:
    small, large = make_partition(name="small", node_count=1), make_partition(name="large")
    facts = make_facts(partitions=(small, large))
    assert problems(make_config(partition="small,large"), facts) == []


def test_a_partition_that_is_down_is_a_warning() -> None:
    facts = make_facts(partitions=(make_partition(available=False),))
    assert only(make_config(), facts, Severity.WARNING) == "partition main is not up"


@pytest.mark.parametrize("fact", ["cluster", "partitions", "queue"])
def test_a_slurm_that_does_not_answer_refuses_a_submit_and_is_a_note_of_a_dry_run(fact: str) -> None:
    facts = make_facts(**{fact: UNSEEN})
    assert "Slurm does not answer" in only(make_config(), facts)
    assert problems(make_config(), facts, dry_run=True) == []
    assert notes(make_config(), facts, dry_run=True).count("the cluster was not checked") == 1


def probe(needed: tuple[str, ...], *found: str) -> dict[str, Any]:
    return {"probes": (ModuleProbe(interpreter="/py", needed=needed, found=dict.fromkeys(found, "1")),)}


def test_an_interpreter_that_lacks_a_module_is_an_error() -> None:
    needed = ("torch", "nvidia_resiliency_ext")
    assert problems(make_config(), make_facts(**probe(needed, *needed))) == []
    assert only(make_config(), make_facts(**probe(needed))) == "/py cannot import torch and nvidia_resiliency_ext"
    assert only(make_config(), make_facts(**probe(needed, "torch"))) == "/py cannot import nvidia_resiliency_ext"


def test_the_hint_for_a_missing_launcher_names_the_other_one() -> None:
    config = make_config(launcher="ft_launcher")
    found = problems(config, make_facts(**probe(("torch", "nvidia_resiliency_ext"), "torch")))
    assert "--launcher torchrun" in str(found[0].hint)


def test_an_interpreter_that_does_not_start_is_an_error_and_one_nobody_tried_a_note() -> None:
    assert only(make_config(), make_facts(probes=(Unobserved("starting /py: no such file"),))).startswith(
        "starting /py"
    )
    assert "was not checked" in notes(make_config(), make_facts(probes=None))


def test_a_script_that_is_not_there_is_an_error() -> None:
    config = make_config(command=("train.py",))
    assert "train.py is not there" in only(config, make_facts(program_exists=False))
    assert problems(config, make_facts(program_exists=True)) == []


def test_the_built_in_workload_and_the_missing_criterion_are_said() -> None:
    said = notes(make_config(), make_facts())
    assert "built-in mock training" in said
    assert "two generations in a row exit 0" in said
    assert notes(make_config(command=("x.py",), done_file="d"), make_facts(program_exists=True)) == ""


def test_a_chain_on_a_path_that_no_test_runs_is_told_so_in_one_line() -> None:
    assert "never run" not in notes(make_config(), make_facts())
    used = notes(make_config(gpus_per_node="8", container_image="x"), make_facts())
    assert used.count("never run by the tests of nvrx-chain: containers (pyxis), GPUs") == 1


def test_refusing_names_every_error_and_no_warning() -> None:
    found = find_problems(make_config(partition="nope", segment="3"), local(Reach.LOCAL_DISK), dry_run=False)
    with pytest.raises(PreflightError) as caught:
        refuse_errors(found)
    message = str(caught.value)
    assert "no partition nope" in message
    assert "segments of 3" in message
    assert "disk of this machine" not in message


def test_warnings_and_notes_refuse_nothing() -> None:
    refuse_errors(find_problems(make_config(), local(Reach.LOCAL_DISK), dry_run=False))


def test_a_problem_prints_as_one_line() -> None:
    problem = Problem(severity=Severity.ERROR, message="this is wrong", hint="do that")
    assert str(problem) == "error: this is wrong (do that)"
    assert str(Problem(severity=Severity.NOTE, message="so it is")) == "note: so it is"
