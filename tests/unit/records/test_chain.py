"""A chain as its run directory shows it: order of generations, verdict, hold; and what is not known of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.chain import ChainFiles, open_chain, read_manifest
from nvrx_chain.records.control import ChainOutcome, Closed, GenerationRecord, Hold, Rendezvous
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import (
    ChainManifest,
    Completion,
    CompletionKind,
    Launcher,
    LauncherKind,
    Shape,
    SubmissionId,
    SubmissionIntent,
)
from nvrx_chain.records.outcome import Outcome, Verdict

NOW = "2026-01-01T00:00:00Z"


def stamp(job: int) -> dict[str, object]:
    return {
        "array_job_id": job,
        "array_task_id": 0,
        "restart_count": 0,
        "host": "n1",
        "boot_id": "b",
        "pid": 7,
        "pid_started_at": 70,
    }


def verdict(chain_id: str) -> ChainOutcome:
    return ChainOutcome(
        chain_id=chain_id,
        verdict=Verdict.COMPLETED,
        array_job_id=10,
        by="10_0 on n1",
        why="done",
        evidence=("done",),
        decided_at=NOW,
    )


class Lab:
    """One run directory with a chain `c` in it."""

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory(path)
        self.chain = ChainFiles(self.run, "c")
        for directory in (self.run.submissions, self.run.generations):
            directory.mkdir(parents=True)

    def intend(self, sequence: int, chain_id: str = "c") -> None:
        intent = SubmissionIntent(
            chain_id=chain_id, sequence=sequence, stamp="s", argv=("--parsable",), intended_at=NOW
        )
        write_atomic(self.run.intent(sequence), encode_record(intent))

    def submit(self, sequence: int, job: int, chain_id: str = "c") -> None:
        self.intend(sequence, chain_id)
        record = SubmissionId(
            chain_id=chain_id,
            sequence=sequence,
            array_job_id=job,
            cluster=None,
            submitted_at=NOW,
            adopted=False,
            recorded_at=NOW,
        )
        write_atomic(self.run.submission_id(sequence), encode_record(record))

    def start(self, *jobs: int) -> None:
        for job in jobs:
            self.run.generation(job).control.mkdir(parents=True)

    def publish(self, job: int) -> None:
        record = Rendezvous(
            rendezvous_host="n1",
            rendezvous_port=20000,
            nonce="n",
            secret="s",
            published_at=NOW,
            started_at=None,
            members=(),
            present=(),
            **stamp(job),  # type: ignore[arg-type]
        )
        write_atomic(self.run.generation(job).rendezvous, encode_record(record))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "a b&c#'100%\"")


def test_generations_come_in_the_order_of_submission_and_not_of_the_id(lab: Lab) -> None:
    lab.submit(3, 5)
    lab.submit(1, 67_000_000)
    lab.submit(2, 67_000_001)
    assert [g.array_job_id for g in lab.chain.generations()] == [67_000_000, 67_000_001, 5]


def test_a_submission_of_an_older_chain_in_the_same_directory_is_none_of_ours(lab: Lab) -> None:
    lab.submit(1, 10, chain_id="old")
    lab.submit(2, 20)
    lab.intend(3, chain_id="old")
    lab.intend(4)
    assert [g.array_job_id for g in lab.chain.generations()] == [20]
    assert [intent.sequence for intent in lab.chain.open_intents()] == [4]


def test_an_intent_is_open_until_its_id_is_recorded(lab: Lab) -> None:
    lab.intend(1)
    assert [intent.sequence for intent in lab.chain.open_intents()] == [1]
    lab.submit(1, 10)
    assert lab.chain.open_intents() == ()


def test_left_over_temporary_names_and_damaged_ids_are_no_generations(lab: Lab) -> None:
    lab.submit(1, 10)
    (lab.run.submissions / ".0002.id.json.77.ab.tmp").write_text("{}")
    lab.run.submission_id(3).write_text("{")
    assert [g.array_job_id for g in lab.chain.generations()] == [10]


def test_no_submissions_is_known_to_be_none_and_an_unreadable_list_is_unknown(lab: Lab) -> None:
    assert lab.chain.list_generations() == ()
    lab.run.submissions.rmdir()
    assert lab.chain.list_generations() == ()
    lab.run.submissions.write_text("")
    assert isinstance(lab.chain.list_generations(), Unobserved)
    assert lab.chain.generations() == ()


def test_earlier_generations_are_those_that_started_newest_first(lab: Lab) -> None:
    for sequence, job in ((1, 10), (2, 20), (3, 30), (4, 40)):
        lab.submit(sequence, job)
    lab.start(10, 30, 40)
    assert lab.chain.earlier_generations(40) == (30, 10)
    assert lab.chain.earlier_generations(10) == ()
    assert lab.chain.earlier_generations(35) == (30, 10)


def test_a_generation_whose_id_was_never_recorded_is_fenced_all_the_same(lab: Lab) -> None:
    lab.submit(1, 10)
    lab.submit(3, 30)
    lab.start(10, 20, 30)
    assert lab.chain.earlier_generations(30) == (10,)
    assert lab.chain.directories_before(30) == (20, 10)


def test_a_generation_of_an_older_chain_in_this_directory_is_fenced_all_the_same(lab: Lab) -> None:
    lab.submit(1, 30)
    lab.start(5, 30)
    assert lab.chain.earlier_generations(30) == ()
    assert lab.chain.directories_before(30) == (5,)


def test_a_later_generation_is_never_fenced_by_an_earlier_one(lab: Lab) -> None:
    lab.submit(1, 20)
    lab.submit(2, 30)
    lab.submit(3, 4)
    lab.start(20, 30, 4, 50)
    assert lab.chain.directories_before(20) == ()
    assert lab.chain.directories_before(30) == (20,)
    # Not recorded: what is larger may be later.
    assert lab.chain.directories_before(25) == (20, 4)


def test_after_the_job_counter_wrapped_the_old_large_ids_come_last(lab: Lab) -> None:
    lab.submit(1, 66_999_998)
    lab.submit(2, 66_999_999)
    lab.submit(3, 3)
    lab.submit(4, 5)
    lab.start(66_999_998, 66_999_999, 3, 5)
    assert lab.chain.directories_before(5) == (3, 66_999_999, 66_999_998)
    assert lab.chain.directories_before(66_999_999) == (66_999_998,)


@pytest.mark.parametrize("name", ["submissions", "generations"])
def test_what_cannot_be_listed_is_unknown_and_not_without_predecessors(lab: Lab, name: str) -> None:
    lab.submit(1, 10)
    lab.submit(2, 20)
    lab.start(10, 20)
    assert lab.chain.directories_before(20) == (10,)
    path = lab.run.path / name
    path.rename(path.with_name("elsewhere"))
    path.write_text("")
    assert isinstance(lab.chain.directories_before(20), Unobserved)


def test_a_later_generation_counts_when_it_has_published(lab: Lab) -> None:
    for sequence, job in ((1, 10), (2, 20), (3, 30)):
        lab.submit(sequence, job)
    lab.start(10, 20, 30)
    assert lab.chain.later_generation(10) is None
    lab.publish(30)
    assert lab.chain.later_generation(10) == 30
    assert lab.chain.later_generation(20) == 30
    assert lab.chain.later_generation(30) is None
    assert lab.chain.later_generation(25) is None


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_a_later_generation_that_somebody_else_published_is_none(lab: Lab) -> None:
    lab.submit(1, 10)
    lab.submit(2, 20)
    lab.start(10, 20)
    lab.publish(20)
    os.chown(lab.run.generation(20).rendezvous, 4242, 4242)
    assert ChainFiles(lab.run, "c", os.getuid()).later_generation(10) is None
    os.chown(lab.run.generation(20).rendezvous, os.getuid(), -1)
    assert ChainFiles(lab.run, "c", os.getuid()).later_generation(10) == 20


def test_a_later_generation_whose_file_cannot_be_read_raises_nothing(lab: Lab) -> None:
    lab.submit(1, 10)
    lab.submit(2, 20)
    lab.start(10)
    lab.run.generation(20).path.mkdir()
    lab.run.generation(20).control.symlink_to(lab.run.generation(20).control)
    assert lab.chain.later_generation(10) is None


def test_the_verdict_on_another_chain_is_none_of_ours(lab: Lab) -> None:
    assert ChainFiles(lab.run, "old").decide(verdict("old"))
    assert lab.chain.outcome() is None
    assert ChainFiles(lab.run, "old").outcome() == verdict("old")


def test_the_first_verdict_stays(lab: Lab) -> None:
    assert lab.chain.decide(verdict("c"))
    assert not lab.chain.decide(verdict("c"))
    assert lab.chain.outcome() == verdict("c")


def test_a_verdict_that_cannot_be_read_is_unknown_to_who_asks_for_it(lab: Lab) -> None:
    lab.run.outcome.write_text("{")
    assert isinstance(lab.chain.look_for_outcome(), Unobserved)
    assert lab.chain.outcome() is None


def test_a_hold_is_replaced_and_belongs_to_its_chain(lab: Lab) -> None:
    hold = Hold(chain_id="c", by="brake", why="it fails", held_at=NOW, array_job_ids=(20,))
    lab.chain.write_hold(hold)
    assert lab.chain.hold() == hold
    lab.chain.write_hold(Hold(chain_id="c", by="alice", why="wait", held_at=NOW, array_job_ids=()))
    found = lab.chain.hold()
    assert found is not None
    assert found.by == "alice"
    assert ChainFiles(lab.run, "other").hold() is None
    lab.run.hold.write_text("")
    assert lab.chain.hold() is None


def test_a_closed_file_stamped_by_another_generation_counts_as_absent(lab: Lab) -> None:
    lab.start(10, 20)
    closed = Closed(
        outcome=Outcome.FAILED,
        exit_code=1,
        closed_by="10_0 on n1",
        closed_at=NOW,
        evidence=(),
        **stamp(10),  # type: ignore[arg-type]
    )
    write_atomic(lab.run.generation(20).closed, encode_record(closed))
    assert lab.chain.closed_of(20) is None
    write_atomic(lab.run.generation(10).closed, encode_record(closed))
    assert lab.chain.closed_of(10) == closed


def test_a_record_is_read_back_and_a_damaged_one_is_none(lab: Lab) -> None:
    lab.start(10)
    record = GenerationRecord(
        chain_id="c",
        started_at=NOW,
        launched_at=None,
        ended_at=None,
        outcome=None,
        exit_code=None,
        signalled=False,
        near_wall=False,
        iteration_at_start=None,
        iteration_at_end=None,
        cycles=None,
        run_seconds=None,
        **stamp(10),  # type: ignore[arg-type]
    )
    write_atomic(lab.run.generation(10).record, encode_record(record))
    assert lab.chain.record_of(10) == record
    lab.run.generation(10).record.write_bytes(encode_record(record)[:50])
    assert lab.chain.record_of(10) is None


MANIFEST = ChainManifest(
    chain_id="c",
    job_name="train",
    user="alice",
    uid=1001,
    cluster=None,
    run_directory="/scratch/c",
    submitted_at=NOW,
    package_version="0.1.0",
    interpreter="/usr/bin/python3",
    shape=Shape(train_tasks=2, hot_spares=1, cold_spares=2, nodes_per_task=1, gpus_per_node=8, procs_per_node=8),
    chain_depth=3,
    time_limit_seconds=None,
    launcher=Launcher(kind=LauncherKind.FT_LAUNCHER, python="/usr/bin/python3", max_restarts=3),
    workload=("train.py", "--lr", "1e-4"),
    checkpoint_iteration_file="/scratch/c/latest.txt",
    completion=Completion(kind=CompletionKind.EXIT_ZERO),
)


def test_a_manifest_opens_its_chain(lab: Lab) -> None:
    write_atomic(lab.run.manifest, encode_record(MANIFEST))
    assert read_manifest(lab.run) == MANIFEST
    assert open_chain(lab.run).chain_id == "c"
    assert lab.chain.manifest() == MANIFEST


def test_a_manifest_that_is_not_there_or_damaged_is_an_error_with_its_path(lab: Lab) -> None:
    with pytest.raises(RecordError, match=r"chain\.json.*no chain was submitted"):
        read_manifest(lab.run)
    lab.run.manifest.write_text("{}")
    with pytest.raises(RecordError, match=r"chain\.json"):
        open_chain(lab.run)
