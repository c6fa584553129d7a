"""Reading a chain's directory and queue into evidence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nvrx_chain.demo.gather import ASK_SLURM_SECONDS, Gatherer
from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.control import Closed
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.outcome import Outcome, Verdict
from nvrx_chain.sandbox import FaultKind
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit.chain import SubmitResult
from nvrx_chain.workloads.events import Event
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.demo.story import Story


class Place:
    """A run directory and a Slurm that a test writes into, and the gatherer that reads them."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock)
        argv = ("--parsable", "--job-name=demo", "--array=0-1%2", "--nodes=1", "--exclusive", "script")
        self.jobs = (self.slurm.submit(argv).array_job_id, self.slurm.submit(argv).array_job_id)
        self.foreign = self.slurm.submit_as("bob", argv)
        self.run = RunDirectory(path / "run & 'dir' #1 100%")
        chain = SubmitResult(
            chain_id="c",
            name="demo",
            run_directory=self.run.path,
            array_job_ids=self.jobs,
            cluster=None,
            queued_tasks=4,
            notes=(),
        )
        self.gatherer = Gatherer(chain, self.slurm, self.clock)

    def write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)

    def write_events(self, rank: int, *events: Event) -> Path:
        path = self.run.path / "events" / f"rank{rank}.jsonl"
        self.write(path, b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_chain_that_has_only_been_queued_is_no_error(place: Place) -> None:
    evidence = place.gatherer.read()
    assert [(seen.sequence, seen.array_job_id, seen.has_run) for seen in evidence.generations] == [
        (1, place.jobs[0], False),
        (2, place.jobs[1], False),
    ]
    assert (evidence.events, evidence.outcome, evidence.tracked(), evidence.reference) == ((), None, None, None)
    assert evidence.queue is not None
    assert {task.array_job_id for task in evidence.queue} == set(place.jobs)
    assert evidence.nodes is not None
    assert len(evidence.nodes) == 8


def test_records_become_generations_and_a_verdict(place: Place) -> None:
    story = Story()
    story.queued(*place.jobs)
    story.says_no_restart(place.jobs[0], "n2")
    story.closed(place.jobs[0], Outcome.NO_RESTART)
    story.decided(Verdict.NO_RESTART, place.jobs[0])
    seen = story.generations[place.jobs[0]]
    directory = place.run.generation(place.jobs[0])
    assert seen.closed is not None
    assert seen.no_restart is not None
    assert story.outcome is not None
    place.write(directory.closed, encode_record(seen.closed))
    place.write(directory.no_restart, encode_record(seen.no_restart))
    place.write(place.run.outcome, encode_record(story.outcome))
    evidence = place.gatherer.read()
    first, second = evidence.generations
    assert (first.has_run, first.closed, first.no_restart) == (True, seen.closed, seen.no_restart)
    assert (second.has_run, second.closed) == (False, None)
    assert evidence.outcome == story.outcome


def test_a_closed_file_of_another_generation_counts_as_absent(place: Place) -> None:
    story = Story()
    story.queued(*place.jobs)
    story.closed(place.jobs[1], Outcome.COMPLETED)
    closed = story.generations[place.jobs[1]].closed
    assert isinstance(closed, Closed)
    place.write(place.run.generation(place.jobs[0]).closed, encode_record(closed))
    assert place.gatherer.read().generations[0].closed is None


def test_lines_of_all_ranks_come_in_the_order_of_time(place: Place) -> None:
    story = Story()
    story.trains(place.jobs[0], 0, 3, at=10.0)
    for rank in (0, 1):
        place.write_events(rank, *(event for event in story.events if event.rank == rank))
    moments = [event.monotonic for event in place.gatherer.read().events]
    assert moments == sorted(moments)
    assert len(moments) == 8


def test_a_line_that_is_being_written_is_left_out_and_a_broken_one_is_an_error(place: Place) -> None:
    story = Story()
    story.trains(place.jobs[0], 0, 2, at=10.0, hosts=("n1",))
    path = place.write_events(0, *story.events)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(place.gatherer.read().events) == 2
    path.write_bytes(whole[:-20] + b"\n")
    with pytest.raises(RecordError, match="is no event"):
        place.gatherer.read()


def test_the_tracker_is_noted_when_it_changes(place: Place) -> None:
    place.gatherer.read()
    for iteration in (20, 20, 40):
        place.clock.advance(1.0)
        place.write(place.run.default_iteration_file, b"%d\n" % iteration)
        evidence = place.gatherer.read()
    assert [(sample.at, sample.iteration) for sample in evidence.tracker] == [(1.0, 20), (3.0, 40)]


def test_slurm_is_asked_in_turns_and_at_once_on_demand(place: Place) -> None:
    for _ in range(3):
        place.gatherer.read()
    assert len(place.slurm.asked("queue")) == 1
    place.gatherer.read(ask_now=True)
    assert len(place.slurm.asked("queue")) == 2
    place.clock.advance(ASK_SLURM_SECONDS)
    place.gatherer.read()
    assert len(place.slurm.asked("queue")) == 3


def test_a_slurm_that_does_not_answer_leaves_what_was_known(place: Place) -> None:
    known = place.gatherer.read().queue
    assert known
    place.slurm.always("queue", Unobserved("no answer"))
    place.slurm.always("nodes", Unobserved("no answer"))
    evidence = place.gatherer.read(ask_now=True)
    assert evidence.queue == known
    assert evidence.nodes is not None


def test_a_slurm_that_never_answered_has_no_queue_and_not_an_empty_one(place: Place) -> None:
    place.slurm.always("queue", Unobserved("no answer"))
    assert place.gatherer.read().queue is None


def test_the_queue_is_read_with_its_states(place: Place) -> None:
    place.slurm.cancel([str(place.jobs[1])])
    queue = place.gatherer.read().queue
    assert queue is not None
    assert {task.state for task in queue if task.array_job_id == place.jobs[1]} == {JobState.CANCELLED}


def test_faults_that_were_done_are_part_of_later_evidence(place: Place) -> None:
    story = Story()
    story.fault(FaultKind.KILL_NODE, place.jobs[0], "n1", 5.0)
    place.gatherer.add_fault(story.faults[0])
    assert place.gatherer.read().fault(FaultKind.KILL_NODE) == story.faults[0]
    assert place.gatherer.read().fault(FaultKind.KILL_RANK) is None
