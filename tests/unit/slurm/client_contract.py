"""What every SlurmClient must do, run on each of them: the fake here, the real programs in tests/integration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.identity import ChainIdentity, format_comment, verify_array
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState

NEVER_AN_ID = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A client on an empty cluster of at least three nodes, and how to wait there.

    `script` is the path of a batch script that runs until it is cancelled; `name` is a job name of this test alone.
    `wait_until` fails the test when the condition does not come true. `waiting_singleton` is the dependency that the
    client's queue shows of one.
    """

    client: SlurmClient
    user: str
    name: str
    script: str
    work_dir: str
    wait_until: Callable[[Callable[[], bool]], None]
    waiting_singleton: str = "singleton(unfulfilled)"

    def submit(self, *options: str, array: str | None = "0-3%2") -> int:
        """A chain-like submission; its array job id."""
        argv = [
            "--parsable",
            f"--job-name={self.name}",
            "--no-requeue",
            "--exclusive",
            "--time=60",
            f"--chdir={self.work_dir}",
            f"--comment={format_comment('contract', 1)}",
            "--output=/dev/null",
            *([f"--array={array}"] if array else []),
            *options,
            self.script,
        ]
        return self.client.submit(argv).array_job_id

    def tasks(self, job: int) -> tuple[QueuedTask, ...]:
        reading = self.client.queue(self.user)
        assert not isinstance(reading, Unobserved), reading.reason
        return reading.of(job)

    def indices(self, job: int, state: JobState) -> list[int | None]:
        """The array task ids of this array job in this state."""
        return [task.array_task_id for task in self.tasks(job) if task.state is state]

    def wait_for(self, job: int, state: JobState, indices: list[int | None]) -> None:
        self.wait_until(lambda: self.indices(job, state) == indices)


class SlurmClientContract:
    """Inherit it and give a fixture `bench`."""

    def test_a_queue_without_jobs_is_empty_and_not_unobserved(self, bench: Bench) -> None:
        assert bench.tasks(NEVER_AN_ID) == ()

    def test_an_array_is_shown_task_by_task_with_its_identity(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        tasks = bench.tasks(job)
        assert [task.array_task_id for task in tasks] == [0, 1, 2, 3]
        assert {task.name for task in tasks} == {bench.name}
        assert {task.user for task in tasks} == {bench.user}
        assert all(task.is_array for task in tasks)
        assert [task.spec for task in tasks] == [f"{job}_{index}" for index in range(4)]
        assert [bool(task.nodelist) for task in tasks] == [True, True, False, False]
        assert tasks[3].reason == "JobArrayTaskLimit"
        assert tasks[0].started_at is not None
        assert tasks[3].started_at is None
        submitted_at = tasks[0].submitted_at
        assert submitted_at is not None
        assert submitted_at.utcoffset() == timedelta(0)
        reading = bench.client.queue(bench.user)
        assert not isinstance(reading, Unobserved)
        identity = ChainIdentity(
            chain_id="contract", job_name=bench.name, user=bench.user, submitted_at={job: submitted_at}
        )
        assert verify_array(reading, job, identity) == reading.of(job)

    def test_a_job_that_is_no_array_is_its_own_task_0(self, bench: Bench) -> None:
        job = bench.submit(array=None)
        bench.wait_for(job, JobState.RUNNING, [0])
        (task,) = bench.tasks(job)
        assert (task.is_array, task.spec, task.job_id) == (False, str(job), job)

    def test_a_singleton_waits_for_its_namesake_and_follows_it(self, bench: Bench) -> None:
        first = bench.submit("--dependency=singleton")
        second = bench.submit("--dependency=singleton")
        bench.wait_for(first, JobState.RUNNING, [0, 1])
        bench.wait_until(lambda: {task.reason for task in bench.tasks(second)} == {"Dependency"})
        assert {task.dependency for task in bench.tasks(second)} == {bench.waiting_singleton}
        details = bench.client.show_job(second)
        assert details is not None
        assert not isinstance(details, Unobserved)
        assert {detail.dependency for detail in details} == {"singleton(unfulfilled)"}
        bench.client.cancel([str(first)])
        bench.wait_for(second, JobState.RUNNING, [0, 1])

    def test_cancelling_pending_tasks_leaves_the_running_ones(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        bench.client.cancel([str(job)], pending_only=True)
        bench.wait_until(lambda: bench.indices(job, JobState.PENDING) == [])
        assert bench.indices(job, JobState.RUNNING) == [0, 1]

    def test_the_cancelled_rest_of_an_array_is_never_task_0(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        bench.client.cancel([str(job)], pending_only=True)
        bench.wait_for(job, JobState.CANCELLED, [None])
        assert bench.indices(job, JobState.RUNNING) == [0, 1]

    def test_one_task_is_cancelled_by_its_spec(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        bench.client.cancel([f"{job}_0"])
        bench.wait_until(lambda: 0 not in bench.indices(job, JobState.RUNNING))
        bench.wait_for(job, JobState.RUNNING, [1, 2])

    def test_cancelling_what_is_gone_is_no_error(self, bench: Bench) -> None:
        job = bench.submit()
        bench.client.cancel([str(job)])
        bench.wait_until(lambda: all(task.state.is_terminal for task in bench.tasks(job)))
        bench.client.cancel([str(job), f"{job}_0", str(NEVER_AN_ID)])
        bench.client.cancel([str(NEVER_AN_ID)], pending_only=True)
        bench.client.cancel([])

    @pytest.mark.parametrize("word", ["--user=root", "", "12 13", "12_", "x", "12;ls", "-1"])
    def test_a_word_that_is_no_id_is_refused_before_slurm_sees_it(self, bench: Bench, word: str) -> None:
        job = bench.submit()
        for change in (bench.client.cancel, bench.client.hold, bench.client.release):
            with pytest.raises(SlurmError):
                change([str(job), word])
        with pytest.raises(SlurmError):
            bench.client.nudge(word)
        assert all(not task.state.is_terminal for task in bench.tasks(job))

    def test_a_hold_keeps_waiting_tasks_back_until_the_release(self, bench: Bench) -> None:
        first = bench.submit("--dependency=singleton")
        second = bench.submit("--dependency=singleton")
        bench.wait_for(first, JobState.RUNNING, [0, 1])
        bench.client.hold([str(second)])
        bench.wait_until(lambda: all(task.reason.startswith("JobHeld") for task in bench.tasks(second)))
        bench.client.cancel([str(first)])
        bench.wait_until(lambda: all(task.state.is_terminal for task in bench.tasks(first)))
        assert bench.indices(second, JobState.PENDING) == [0, 1, 2, 3]
        bench.client.release([str(second)])
        bench.wait_for(second, JobState.RUNNING, [0, 1])

    def test_a_nudge_harms_nobody(self, bench: Bench) -> None:
        job = bench.submit(array="0-1")
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        bench.client.nudge(f"{job}_0")
        bench.client.nudge(str(NEVER_AN_ID))
        assert bench.indices(job, JobState.RUNNING) == [0, 1]

    def test_a_refused_submit_is_not_ambiguous(self, bench: Bench) -> None:
        with pytest.raises(SlurmError, match="Invalid job array specification") as caught:
            bench.submit(array="0-4000000")
        assert not isinstance(caught.value, SlurmAmbiguous)

    def test_the_batch_script_is_shown_as_it_was_submitted(self, bench: Bench) -> None:
        job = bench.submit()
        shown = bench.client.batch_script(job)
        assert isinstance(shown, str)
        assert shown.rstrip("\n") == Path(bench.script).read_text().rstrip("\n")

    def test_the_batch_script_of_an_unknown_id_is_none(self, bench: Bench) -> None:
        assert bench.client.batch_script(NEVER_AN_ID) is None

    def test_show_job_of_an_unknown_id_is_none(self, bench: Bench) -> None:
        assert bench.client.show_job(NEVER_AN_ID) is None

    def test_show_job_tells_where_a_job_belongs(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        details = bench.client.show_job(job)
        assert details is not None
        assert not isinstance(details, Unobserved)
        assert sorted(str(detail.array_task_id) for detail in details) == ["0", "1", "None"]
        running = next(detail for detail in details if detail.array_task_id == 0)
        assert running.array_job_id == job
        assert (running.name, running.user, running.work_dir) == (bench.name, bench.user, bench.work_dir)
        assert (running.comment, running.requeue) == (format_comment("contract", 1), False)
        assert (running.state, running.exit_code, running.ended_at) == (JobState.RUNNING, None, None)
        assert (running.array_task_throttle, running.time_limit_seconds) == (2, 3600)
        assert running.batch_host

    def test_show_job_by_the_own_id_of_a_task_shows_that_task(self, bench: Bench) -> None:
        job = bench.submit()
        bench.wait_for(job, JobState.RUNNING, [0, 1])
        task = bench.tasks(job)[1]
        details = bench.client.show_job(task.job_id)
        assert details is not None
        assert not isinstance(details, Unobserved)
        assert [(detail.array_job_id, detail.array_task_id) for detail in details] == [(job, 1)]

    def test_a_cancelled_task_shows_its_signal(self, bench: Bench) -> None:
        job = bench.submit(array="0-0")
        bench.wait_for(job, JobState.RUNNING, [0])
        bench.client.cancel([str(job)])
        bench.wait_for(job, JobState.CANCELLED, [0])
        details = bench.client.show_job(job)
        assert details is not None
        assert not isinstance(details, Unobserved)
        # TERM killed the shell, or the shell reported that TERM killed its child; a task whose script had not begun
        # yet does not hear TERM, and gets KILL.
        ended = (details[0].exit_code, details[0].exit_signal)
        assert ended in {(0, 15), (143, 0), (0, 9)}, details[0].fields
        assert details[0].ended_at is not None

    def test_nodes_are_those_asked_for_and_known(self, bench: Bench) -> None:
        everything = bench.client.nodes([])
        assert not isinstance(everything, Unobserved)
        assert len(everything) >= 3
        name = sorted(everything)[0]
        some = bench.client.nodes([name, "no-such-node"])
        assert not isinstance(some, Unobserved)
        assert list(some) == [name]
        assert some[name].responding
        assert not some[name].state.is_drained
        assert (some[name].reason, some[name].reason_by, some[name].reason_at) == ("", "", None)

    def test_the_configuration_and_the_partitions_are_told(self, bench: Bench) -> None:
        config = bench.client.config()
        assert not isinstance(config, Unobserved)
        assert config.max_array_size == 1001
        assert config.kill_wait_seconds is not None
        assert config.version
        partitions = bench.client.partitions()
        assert not isinstance(partitions, Unobserved)
        (default,) = [partition for partition in partitions if partition.is_default]
        assert default.available
        assert default.node_count >= 3
        assert default.gpus_per_node is not None

    def test_accounting_without_ids_asks_nothing(self, bench: Bench) -> None:
        assert bench.client.accounting([], datetime(2020, 1, 1, tzinfo=timezone.utc)) == ()

    def test_accounting_knows_an_ended_task_or_says_that_it_cannot_look(self, bench: Bench) -> None:
        job = bench.submit(array="0-0")
        bench.wait_for(job, JobState.RUNNING, [0])
        bench.client.cancel([str(job)])
        bench.wait_for(job, JobState.CANCELLED, [0])
        config = bench.client.config()
        assert not isinstance(config, Unobserved)
        since = datetime(2020, 1, 1, tzinfo=timezone.utc)
        if not config.accounting:
            answer = bench.client.accounting([job], since)
            assert isinstance(answer, Unobserved)
            assert "accounting storage is disabled" in answer.reason
            return

        def is_accounted() -> bool:
            rows = bench.client.accounting([job], since)
            assert not isinstance(rows, Unobserved)
            return [(row.array_task_id, row.state) for row in rows] == [(0, JobState.CANCELLED)]

        bench.wait_until(is_accounted)
