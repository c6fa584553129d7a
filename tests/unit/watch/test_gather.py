"""A snapshot is complete, costs a bounded number of questions, and never turns silence into absence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.model import QueuedTask, QueueReading
from nvrx_watch import memory as names
from nvrx_watch.gather import LEAST_FILE_SECONDS, Gatherer, Target
from nvrx_watch.layout import Layout, NvrxLayout, OwnLayout
from nvrx_watch.memory import Memory, Seen
from nvrx_watch.model import Generation, LogActivity, Queue, Snapshot, Source, Subject, Unavailable
from nvrx_watch.reading_model import RunReading
from nvrx_watch.slurm_facts import SlurmFacts
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_slurm import FakeSlurm
from tests.unit.watch import build

LAYOUT = OwnLayout(run_directory=build.RUN_DIRECTORY, chain_id=build.CHAIN_ID, owner_uid=build.UID)


@dataclass
class Files:
    """A reader that hands out what the test put there."""

    answer: RunReading | Unobserved
    by_layout: Mapping[Layout, RunReading | Unobserved] = field(default_factory=dict)

    def read(
        self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        return self.by_layout.get(layout, self.answer)


@dataclass
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    slurm: FakeSlurm = field(init=False)
    jobs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm(self.clock, user=build.USER, first_job_id=11)

    def submit(self, sequence: int, *, comment: str | None = None, name: str = build.NAME) -> int:
        stamp = comment if comment is not None else f"{build.COMMENT}/{sequence}"
        argv = ["--parsable", f"--job-name={name}", "--array=0-4%3", "--dependency=singleton", f"--comment={stamp}"]
        job = self.slurm.submit([*argv, "/w/x.sbatch"]).array_job_id
        self.jobs.append(job)
        return job

    def generation(self, job: int, sequence: int, **more: object) -> Generation:
        return Generation(array_job_id=job, sequence=sequence, submitted_at=self.clock.now(), **more)  # type: ignore[arg-type]

    def reading(self, **changes: object) -> RunReading:
        generations = tuple(self.generation(job, at) for at, job in enumerate(self.jobs, start=1))
        values: dict[str, object] = {"manifest": build.manifest(), "generations": generations, "iteration": 100}
        return RunReading(**{**values, **changes})  # type: ignore[arg-type]

    def gather(
        self,
        reading: RunReading | Unobserved | None = None,
        *,
        memory: Memory | None = None,
        subject: Subject | None = None,
        layout: Layout = LAYOUT,
        uid: int = build.UID,
        queue: QueueReading | None = None,
    ) -> Snapshot:
        files = Files(reading if reading is not None else self.reading())
        gatherer = Gatherer(reader=files, facts=SlurmFacts(self.slurm), clock=self.clock, watcher_uid=uid)
        target = Target(subject=subject or build.subject(), layout=layout, asked_job_id=None, memory=memory or Memory())
        (snapshot,) = gatherer.gather([target], queue)
        return snapshot


@pytest.fixture
def world() -> World:
    return World()


def seen_queue(snapshot: Snapshot) -> Queue:
    assert isinstance(snapshot.queue, Queue)
    return snapshot.queue


def test_a_healthy_chain_is_seen_whole(world: World) -> None:
    first, second = world.submit(1), world.submit(2)
    snapshot = world.gather()
    queue = seen_queue(snapshot)
    assert len(queue.running(first)) == 3
    assert len(queue.pending(second)) == 5
    assert not isinstance(snapshot.nodes, Unobserved)
    assert sorted(snapshot.nodes) == ["n1", "n2", "n3"]
    assert snapshot.iteration == 100
    assert snapshot.sources.unobserved == {}
    assert [one.array_job_id for one in snapshot.queued()] == [second]


def test_a_pass_asks_slurm_three_times_at_most_however_long_the_chain_is(world: World) -> None:
    jobs = [world.submit(number) for number in range(1, 31)]
    for job in jobs[:20]:
        for task in range(5):
            world.clock.advance(1)
            if not world.slurm.task(f"{job}_{task}").state.is_pending:
                world.slurm.finish(f"{job}_{task}", 1)
    world.slurm.calls.clear()
    world.gather()
    assert sorted(call.operation for call in world.slurm.calls) in (
        ["accounting", "nodes", "queue"],
        ["accounting", "queue"],
    )


def test_two_chains_of_one_user_share_the_questions(world: World) -> None:
    world.submit(1)
    gatherer = Gatherer(
        reader=Files(world.reading()), facts=SlurmFacts(world.slurm), clock=world.clock, watcher_uid=build.UID
    )
    target = Target(subject=build.subject(), layout=LAYOUT, asked_job_id=None, memory=Memory())
    world.slurm.calls.clear()
    assert len(gatherer.gather([target, target])) == 2
    assert [call.operation for call in world.slurm.calls] == ["queue", "nodes"]


@dataclass
class SlowFiles:
    """A reader of chains that take all the time they get, but for the quick ones, and what each of them got."""

    world: World
    quick: frozenset[Layout] = frozenset()
    got: list[tuple[Layout, float]] = field(default_factory=list)

    def read(
        self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        self.got.append((layout, deadline_seconds))
        if layout in self.quick:
            return self.world.reading()
        self.world.clock.advance(deadline_seconds)
        return Unobserved("no answer")


def layout_of(number: int) -> OwnLayout:
    return OwnLayout(run_directory=Path(f"/dead mount/{number}"), chain_id=f"c{number}", owner_uid=build.UID)


def targets_of(layouts: list[OwnLayout]) -> list[Target]:
    return [Target(subject=build.subject(), layout=one, asked_job_id=None, memory=Memory()) for one in layouts]


def test_fifty_chains_on_dead_mounts_share_the_time_for_files(world: World) -> None:
    files = SlowFiles(world)
    gatherer = Gatherer(
        reader=files,
        facts=None,
        clock=world.clock,
        watcher_uid=build.UID,
        file_deadline_seconds=20,
        file_budget_seconds=60,
    )
    gatherer.gather(targets_of([layout_of(number) for number in range(50)]))
    assert [seconds for _, seconds in files.got[:3]] == [20, 20, 20]
    assert {seconds for _, seconds in files.got[3:]} == {LEAST_FILE_SECONDS}
    assert world.clock.monotonic() == 60 + 47 * LEAST_FILE_SECONDS


def test_a_chain_that_gave_no_answer_is_read_after_the_others(world: World) -> None:
    dead, good = layout_of(1), layout_of(2)
    files = SlowFiles(world, quick=frozenset({good}))
    gatherer = Gatherer(reader=files, facts=None, clock=world.clock, watcher_uid=build.UID)
    first, second = (gatherer.gather(targets_of([dead, good])) for _ in range(2))
    assert [layout for layout, _ in files.got] == [dead, good, good, dead]
    for snapshots in (first, second):
        assert [isinstance(one.iteration, Unobserved) for one in snapshots] == [True, False]


def test_a_silent_queue_is_unobserved_and_remembers_nothing(world: World) -> None:
    world.submit(1)
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    snapshot = world.gather()
    assert isinstance(snapshot.queue, Unobserved)
    assert Source.QUEUE in snapshot.sources.unobserved
    assert snapshot.memory.value(names.QUEUE_EMPTY_NAME) is None
    assert snapshot.memory.value(names.ITERATION_NAME) == 100


def test_files_that_cannot_be_read_make_the_queue_unknown_too(world: World) -> None:
    world.submit(1)
    snapshot = world.gather(Unobserved("the run directory hangs"))
    assert isinstance(snapshot.queue, Unobserved)
    assert {Source.RECORDS, Source.CYCLES, Source.ITERATION, Source.QUEUE} <= set(snapshot.sources.unobserved)


def test_unreadable_submissions_make_the_queue_unknown_too(world: World) -> None:
    world.submit(1)
    snapshot = world.gather(world.reading(generations=Unobserved("listing submissions: Input/output error")))
    assert isinstance(snapshot.queue, Unobserved)


def test_an_empty_queue_is_remembered_as_empty_and_a_full_one_not(world: World) -> None:
    job = world.submit(1)
    assert world.gather().memory.value(names.QUEUE_EMPTY_NAME) == "no"
    world.slurm.cancel([str(job)])
    world.clock.advance(3600)
    assert world.gather().memory.value(names.QUEUE_EMPTY_NAME) == "yes"


def test_a_chain_that_was_to_end_and_is_gone_has_its_verdict(world: World) -> None:
    job = world.submit(1)
    reading = world.reading(ending=build.ending(array_job_id=job))
    running = world.gather(reading)
    assert (running.verdict, running.ending) == (None, build.ending(array_job_id=job))
    world.slurm.cancel([str(job)])
    world.clock.advance(60)
    verdict = world.gather(reading).verdict
    assert isinstance(verdict, ChainOutcome)
    assert (verdict.verdict, verdict.by) == (Verdict.CANCELLED, "ann on login1")
    world.clock.advance(3600)
    assert isinstance(world.gather(reading).verdict, ChainOutcome)
    assert world.gather(reading, uid=4711).verdict is None, "nothing of the user is seen: it may all be hidden"
    world.slurm.always("queue", Unobserved("away"))
    assert world.gather(reading).verdict is None


def test_a_job_that_is_doubtful_keeps_the_queue_from_being_empty(world: World) -> None:
    job = world.submit(1, comment="nvrx-chain:another/1")
    snapshot = world.gather()
    assert job in seen_queue(snapshot).doubtful
    assert seen_queue(snapshot).rows(job) == ()
    assert snapshot.memory.value(names.QUEUE_EMPTY_NAME) == "no"


def test_a_lost_reply_of_sbatch_is_adopted_by_its_stamp(world: World) -> None:
    first = world.submit(1)
    reading = world.reading()
    second = world.submit(2)
    snapshot = world.gather(
        RunReading(manifest=reading.manifest, generations=reading.generations, open_stamps=(f"{build.COMMENT}/2",))
    )
    assert [(one.array_job_id, one.sequence) for one in snapshot.generations] == [(first, 1), (second, 2)]
    assert len(seen_queue(snapshot).rows(second)) == 5


@dataclass
class FilesOnRequest:
    """A reader that tells of a generation that is not on record when it is asked to, as the real one does."""

    world: World
    on_record: tuple[int, ...]
    asked: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    def read(self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()) -> RunReading:
        self.asked.append(adopted)
        known = [self.world.generation(job, at) for at, job in enumerate(self.on_record, start=1)]
        known += [Generation(array_job_id=job, sequence=at, has_directory=True) for job, at in adopted]
        return self.world.reading(generations=tuple(known), open_stamps=(f"{build.COMMENT}/2",))


def test_the_files_of_an_adopted_generation_are_read_at_once_and_from_then_on(world: World) -> None:
    first, second = world.submit(1), world.submit(2)
    files = FilesOnRequest(world, on_record=(first,))
    gatherer = Gatherer(reader=files, facts=SlurmFacts(world.slurm), clock=world.clock, watcher_uid=build.UID)
    for _ in range(2):
        (snapshot,) = gatherer.gather(targets_of([LAYOUT]))
        assert [(one.array_job_id, one.has_directory) for one in snapshot.generations] == [
            (first, False),
            (second, True),
        ]
    assert files.asked == [(), ((second, 2),), ((second, 2),)]


def test_the_files_of_a_job_that_only_seems_to_be_the_chains_are_not_read(world: World) -> None:
    first = world.submit(1)
    world.submit(2, name="another name")
    files = FilesOnRequest(world, on_record=(first,))
    gatherer = Gatherer(reader=files, facts=SlurmFacts(world.slurm), clock=world.clock, watcher_uid=build.UID)
    gatherer.gather(targets_of([LAYOUT]))
    assert files.asked == [()]


def test_a_stranger_with_the_chains_name_is_in_the_way(world: World) -> None:
    world.submit(1)
    reading = world.reading()
    stranger = world.submit(9, comment="a human")
    snapshot = world.gather(reading)
    assert {task.array_job_id for task in seen_queue(snapshot).foreign} == {stranger}
    assert stranger not in seen_queue(snapshot).arrays


def test_another_users_job_of_the_same_name_is_nobodys_business(world: World) -> None:
    world.submit(1)
    reading = world.reading()
    world.slurm.submit_as("bob", ["--parsable", f"--job-name={build.NAME}", "--array=0-1", "/w/x.sbatch"])
    assert seen_queue(world.gather(reading)).foreign == ()


def test_an_empty_queue_means_nothing_to_a_watcher_who_may_not_see_the_user(world: World) -> None:
    queue = QueueReading(tasks=(), read_at=world.clock.now())
    world.submit(1)
    hidden = world.gather(uid=4711, queue=queue)
    assert isinstance(hidden.queue, Unobserved)
    assert Source.QUEUE in hidden.sources.unobserved
    assert seen_queue(world.gather(uid=build.UID, queue=queue)).arrays == {}
    # A chain with a verdict has nothing left to be seen.
    assert seen_queue(world.gather(world.reading(verdict=build.verdict()), uid=4711, queue=queue)).arrays == {}


def test_a_task_0_that_slurm_has_dropped_from_the_queue_is_looked_up_in_accounting(world: World) -> None:
    job = world.submit(1)
    world.slurm.finish(f"{job}_0", 1)
    reading = world.slurm.queue(build.USER)
    assert isinstance(reading, QueueReading)
    others = tuple(task for task in reading.tasks if task.array_task_id != 0)
    snapshot = world.gather(queue=QueueReading(tasks=others, read_at=world.clock.now()))
    assert not isinstance(snapshot.accounting, Unobserved)
    assert [task.array_task_id for task in snapshot.accounting[job] if task.state.is_terminal] == [0]


def test_ids_that_sacct_was_not_asked_about_blind_the_chains_that_have_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvrx_watch.slurm_facts.MOST_ACCOUNTED", 1)
    monkeypatch.setattr("nvrx_watch.slurm_facts.MOST_CALLS", 1)
    first, second = world.submit(1), world.submit(2)
    world.slurm.finish(f"{first}_0", 1)
    world.slurm.cancel([str(second)])
    readings = [
        world.reading(generations=(world.generation(job, at),)) for at, job in enumerate((first, second), start=1)
    ]
    layouts = [layout_of(1), layout_of(2)]
    files = Files(world.reading(), by_layout=dict(zip(layouts, readings, strict=True)))
    gatherer = Gatherer(reader=files, facts=SlurmFacts(world.slurm), clock=world.clock, watcher_uid=build.UID)
    left_out, seen = gatherer.gather(targets_of(layouts))
    assert "not asked" in left_out.sources.unobserved[Source.ACCOUNTING]
    assert isinstance(left_out.accounting, Unobserved)
    assert seen.sources.unobserved == {}


def test_jobs_that_scontrol_was_not_asked_about_are_noted_and_blind_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slurm.always("accounting", Unobserved("Slurm accounting storage is disabled"))
    facts = SlurmFacts(world.slurm)
    facts.accounting([[1]])
    monkeypatch.setattr("nvrx_watch.slurm_facts.MOST_CALLS", 0)
    job = world.submit(1)
    world.slurm.finish(f"{job}_0", 1)
    gatherer = Gatherer(reader=Files(world.reading()), facts=facts, clock=world.clock, watcher_uid=build.UID)
    (snapshot,) = gatherer.gather(targets_of([LAYOUT]))
    assert snapshot.sources.unobserved == {}
    assert any(f"job {job}" in note for note in snapshot.sources.notes)


def test_a_damaged_control_file_of_the_running_generation_blinds_the_pass(world: World) -> None:
    job = world.submit(1)
    damaged = world.generation(job, 1, has_directory=True, closed=Unobserved("closed.json is no Closed"))
    snapshot = world.gather(world.reading(generations=(damaged,)))
    assert "closed.json" in snapshot.sources.unobserved[Source.RECORDS]


def test_a_log_that_cannot_be_read_blinds_the_pass(world: World) -> None:
    job = world.submit(1)
    begun = world.generation(job, 1, has_directory=True, log=Unobserved("reading its log: permission denied"))
    snapshot = world.gather(world.reading(generations=(begun,)))
    assert "permission denied" in snapshot.sources.unobserved[Source.CYCLES]


def test_a_directory_that_now_holds_another_chain_blinds_the_pass(world: World) -> None:
    world.submit(1)
    snapshot = world.gather(world.reading(manifest=build.manifest(chain_id="another")))
    assert "another" in snapshot.sources.unobserved[Source.RECORDS]
    assert snapshot.successor == "another"


def test_a_manifest_that_cannot_be_read_names_no_successor(world: World) -> None:
    world.submit(1)
    snapshot = world.gather(world.reading(manifest=Unobserved("Input/output error")))
    assert snapshot.successor is None
    assert world.gather().successor is None


def test_names_of_a_damaged_memory_break_nothing(world: World) -> None:
    world.submit(1)
    odd = ("job/²/x", "job/" + "9" * 5000 + "/x", "job/x/lease")
    snapshot = world.gather(memory=Memory(seen=dict.fromkeys(odd, Seen(value=1, since="x", looked_at="y"))))
    assert snapshot.sources.unobserved == {}


def test_a_reading_that_the_caller_made_is_not_made_again(world: World) -> None:
    world.submit(1)
    reading = world.slurm.queue(build.USER)
    assert isinstance(reading, QueueReading)
    world.slurm.calls.clear()
    world.gather(queue=reading)
    assert world.slurm.asked("queue") == []


def test_leases_and_logs_are_remembered_and_age(world: World) -> None:
    job = world.submit(1)
    seen = (
        world.generation(
            job, 1, has_directory=True, leases={0: build.lease(job, 0, 7)}, log=LogActivity(bytes=10, newest="/l")
        ),
    )
    first = world.gather(world.reading(generations=seen))
    world.clock.advance(40)
    second = world.gather(world.reading(generations=seen), memory=first.memory)
    assert second.memory.steady_seconds(names.lease_name(job, 0), world.clock.now()) == 40.0
    assert second.memory.value(names.log_name(job)) == 10


def test_the_best_iteration_outlives_a_step_back_and_a_gap(world: World) -> None:
    memory = Memory()
    for iteration in (100, 50, Unobserved("not a number"), None):
        memory = world.gather(world.reading(iteration=iteration), memory=memory).memory
    assert memory.value(names.BEST_ITERATION_NAME) == 100
    assert memory.value(names.ITERATION_NAME) is None


def test_what_ended_long_ago_is_forgotten(world: World) -> None:
    generations = tuple(world.generation(job, job) for job in range(1, 40))
    snapshot = world.gather(world.reading(generations=generations))
    old = Memory(seen={**snapshot.memory.seen, names.task_zero_name(1): snapshot.memory.seen[names.task_zero_name(39)]})
    again = world.gather(world.reading(generations=generations), memory=old)
    assert names.task_zero_name(1) not in again.memory.seen
    assert names.task_zero_name(39) in again.memory.seen


def test_without_a_scheduler_nothing_is_blind_and_nothing_is_asked(world: World) -> None:
    gatherer = Gatherer(reader=Files(world.reading()), facts=None, clock=world.clock, watcher_uid=0)
    target = Target(subject=build.subject(), layout=LAYOUT, asked_job_id=None, memory=Memory())
    (snapshot,) = gatherer.gather([target])
    assert isinstance(snapshot.queue, Unavailable)
    assert snapshot.sources.unobserved == {}
    assert {Source.QUEUE, Source.NODES, Source.ACCOUNTING} <= set(snapshot.sources.unavailable)
    assert world.slurm.calls == []


def test_a_foreign_chain_is_every_job_of_that_name_and_user(world: World) -> None:
    jobs = [world.submit(0, comment=""), world.submit(0, comment="")]
    world.submit(0, comment="", name="another")
    layout = NvrxLayout(cycle_info_glob=None, iteration_file=None, owner_uid=None, work_directory=Path("/w"))
    reading = RunReading(manifest=None, generations=(Generation(array_job_id=3, sequence=1, has_directory=True),))
    snapshot = world.gather(reading, subject=build.foreign_subject(), layout=layout)
    assert [one.array_job_id for one in snapshot.generations] == [3, *jobs]
    assert [one.sequence for one in snapshot.generations] == [1, 2, 3]
    assert sorted(seen_queue(snapshot).arrays) == jobs


def test_an_id_that_now_belongs_to_another_job_is_no_generation_of_a_foreign_chain(world: World) -> None:
    job = world.submit(0, comment="", name="another")
    reading = RunReading(manifest=None, generations=(Generation(array_job_id=job, sequence=1),))
    layout = NvrxLayout(cycle_info_glob=None, iteration_file=None, owner_uid=None)
    snapshot = world.gather(reading, subject=build.foreign_subject(), layout=layout)
    assert seen_queue(snapshot).arrays == {}


def test_an_id_that_was_given_out_again_is_doubtful(world: World) -> None:
    job = world.submit(1)
    earlier = datetime(2020, 1, 1, tzinfo=world.clock.now().tzinfo)
    generations = (Generation(array_job_id=job, sequence=1, submitted_at=earlier),)
    snapshot = world.gather(world.reading(generations=generations))
    assert "given out again" in seen_queue(snapshot).doubtful[job]


def test_a_nodelist_that_is_none_asks_for_no_node(world: World) -> None:
    world.submit(1)
    rows = tuple(
        QueuedTask(**{**_fields(task), "nodelist": "n[1-"})
        for task in world.slurm.queue().tasks  # type: ignore[union-attr]
    )
    snapshot = world.gather(queue=QueueReading(tasks=rows, read_at=world.clock.now()))
    assert snapshot.nodes == {}


def _fields(task: QueuedTask) -> dict[str, object]:
    return {name: getattr(task, name) for name in QueuedTask.__slots__}
