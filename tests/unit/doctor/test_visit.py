"""The visit of a compute node: a job that gets a node, one that waits, one that fails, and a job is never left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvrx_chain.doctor.facts import Place, pack_place
from nvrx_chain.doctor.model import NodeVisit
from nvrx_chain.doctor.probe import MARK, ProbeRequest
from nvrx_chain.doctor.visit import GONE_SECONDS, JOB_NAME, Visitor, VisitRequest
from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.states import JobState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import Act, AfterDoing, FakeSlurm
from tests.unit.doctor.build import make_place
from tests.unit.slurm.programs import FakePrograms

TIMED_OUT = SlurmAmbiguous("submit a job", part="Socket timed out on send/recv operation")


class Clinic:
    """A fake Slurm, a stand-in for srun, and one visit."""

    def __init__(self, directory: Path, nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock, nodes=nodes)
        self.programs = FakePrograms(directory / "bin")
        self.srun_says(MARK.decode() + pack_place(make_place()).decode())

    def srun_says(self, text: str, *, code: int = 0, stream: int = 1) -> None:
        answer = self.programs.path("answer")
        answer.write_text(f"{text}\n")
        self.programs.put("srun", f"cat '{answer}' >&{stream}; exit {code}")

    def visit(self, node: str | None = None, wait: float = 60.0) -> NodeVisit:
        probe = ProbeRequest(part="all", directory="/scratch", token="abc", python="/p", tested="/scratch")
        visitor = Visitor(
            client=self.slurm, clock=self.clock, environ=self.programs.environ, user="alice", say=lambda _line: None
        )
        request = VisitRequest(
            node=node,
            partition="main",
            sbatch_args=("--account=ml",),
            wait_seconds=wait,
            interpreter="/opt/python",
            probe=probe,
        )
        return visitor.visit(request)

    def live(self) -> list[str]:
        queue = self.slurm.queue()
        assert not isinstance(queue, Unobserved)
        return [row.spec for row in queue.tasks if not row.state.is_terminal]


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


def test_a_node_is_looked_at_through_srun_and_the_job_is_cancelled_by_its_id(clinic: Clinic) -> None:
    seen = clinic.visit("n1")
    assert isinstance(seen.place, Place)
    assert (seen.job_id, seen.node, seen.problem, seen.left) == (1, "n1", None, None)
    assert [call.arguments for call in clinic.slurm.asked("cancel")] == [(("1",), False)]
    assert clinic.live() == []
    ((argv, environ),) = clinic.programs.calls("srun")
    assert argv[:2] == ["--jobid=1", "--overlap"]
    assert argv[argv.index("/opt/python") :][:4] == ["/opt/python", "-I", "-m", "nvrx_chain"]
    assert not [name for name in environ if name.startswith("SLURM_")]


def test_what_the_job_asks_for_is_small_and_ends_by_itself(clinic: Clinic) -> None:
    clinic.visit("n2")
    (argv,) = clinic.slurm.asked("submit")[0].arguments
    assert isinstance(argv, tuple)
    assert {"--nodes=1", "--no-requeue", "--partition=main", "--nodelist=n2", "--account=ml"} <= set(argv)
    assert "--exclusive" not in argv
    assert argv[-1] == "--wrap=exec sleep 135"
    assert "--time=4" in argv


def test_no_free_node_is_unknown_with_slurms_reason_and_the_job_is_gone(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path, nodes=("n1",))
    clinic.slurm.submit_as("bob", ["--time=60", "/bin/true"])
    seen = clinic.visit(wait=30.0)
    assert seen.problem is None
    assert isinstance(seen.place, Unobserved)
    assert seen.place.reason.startswith("no node free within 30 s, Slurm says ")
    assert clinic.clock.monotonic() >= 30.0
    assert [row for row in clinic.live() if row != "1"] == []
    assert clinic.programs.calls("srun") == []


def test_a_job_that_ends_by_itself_is_bad(clinic: Clinic) -> None:
    clinic.clock.after(0.4, lambda: None)
    queue, looked = clinic.slurm.queue, []

    def fail_first(user: str | None = None) -> object:
        if not looked:
            looked.append(True)
            clinic.slurm.finish("1", 1)
        return queue(user)

    clinic.slurm.queue = fail_first  # type: ignore[method-assign, assignment]
    seen = clinic.visit()
    assert "ended as FAILED" in (seen.problem or "")
    assert seen.left is None


def test_a_job_that_sbatch_refuses_is_bad_and_nothing_is_cancelled(clinic: Clinic) -> None:
    clinic.slurm.script("submit", SlurmError("submit a job", part="Invalid account"))
    seen = clinic.visit()
    assert "Invalid account" in (seen.problem or "")
    assert "--sbatch-arg" in (seen.mend or "")
    assert clinic.slurm.asked("cancel") == []


def test_a_job_whose_id_never_came_back_is_found_by_its_stamp_and_cancelled(clinic: Clinic) -> None:
    clinic.slurm.script("submit", AfterDoing(TIMED_OUT))
    seen = clinic.visit()
    assert isinstance(seen.place, Unobserved)
    assert (seen.problem, seen.left) == (None, None)
    assert clinic.live() == []


def test_a_submit_without_an_answer_and_without_a_job_is_told(clinic: Clinic) -> None:
    clinic.slurm.script("submit", TIMED_OUT)
    seen = clinic.visit()
    assert f"a job {JOB_NAME} all the same" in (seen.left or "")
    assert clinic.clock.monotonic() >= GONE_SECONDS


def test_a_cancel_is_repeated_until_a_reading_shows_it(clinic: Clinic) -> None:
    clinic.slurm.script("cancel", SlurmAmbiguous("cancel jobs"), Act.IGNORED, Act.NORMAL)
    assert clinic.visit().left is None
    assert len(clinic.slurm.asked("cancel")) == 3
    assert clinic.live() == []


def test_a_job_that_cannot_be_cancelled_is_told(clinic: Clinic) -> None:
    clinic.slurm.always("cancel", SlurmError("cancel jobs", part="Access/permission denied"))
    seen = clinic.visit()
    assert "job 1 may still be there" in (seen.left or "")
    assert "denied" in (seen.left or "")


def test_an_interrupt_cancels_the_job_and_goes_on(clinic: Clinic) -> None:
    queue, interrupted = clinic.slurm.queue, []

    def interrupt_once(user: str | None = None) -> object:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return queue(user)

    clinic.slurm.queue = interrupt_once  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        clinic.visit()
    assert clinic.live() == []


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("slurmstepd: error: execve(): /opt/python: No such file or directory", "/opt/python does not start there"),
        ("/opt/python: No module named nvrx_chain", "/opt/python does not start there"),
        ("srun: error: Unable to create step: Socket timed out", "Unable to create step"),
    ],
)
def test_an_srun_that_brings_no_answer_is_bad_with_its_words(clinic: Clinic, says: str, problem: str) -> None:
    clinic.srun_says(says, code=2, stream=2)
    seen = clinic.visit()
    assert problem in (seen.problem or "")
    assert clinic.live() == []


def test_an_answer_that_cannot_be_read_is_unknown(clinic: Clinic) -> None:
    clinic.srun_says(MARK.decode() + "{")
    seen = clinic.visit()
    assert isinstance(seen.place, Unobserved)
    assert seen.problem is None


def test_a_queue_that_never_shows_the_job_is_unknown(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    empty: Callable[..., object] = FakeSlurm(FakeClock()).queue
    monkeypatch.setattr(clinic.slurm, "queue", empty)
    seen = clinic.visit(wait=5.0)
    assert isinstance(seen.place, Unobserved)
    assert "a cache" in seen.place.reason
    assert len(clinic.slurm.asked("cancel")) == 1


def test_a_task_that_only_configures_its_node_is_waited_for(clinic: Clinic) -> None:
    states = iter([JobState.CONFIGURING, JobState.CONFIGURING, JobState.RUNNING])
    queue = clinic.slurm.queue

    def look(user: str | None = None) -> object:
        state = next(states, None)
        if state is not None:
            clinic.slurm.force_state("1", state)
        return queue(user)

    clinic.slurm.queue = look  # type: ignore[method-assign, assignment]
    assert isinstance(clinic.visit().place, Place)
