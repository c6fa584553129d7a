"""Which logs are shown, and a follower that goes on across hand-offs and ends with the chain."""

from __future__ import annotations

import threading

import pytest

from nvrx_chain.errors import RecordError, UsageError
from nvrx_chain.ops.logs import QUIET_SECONDS, Follower, LogRequest, choose_logs, print_tail
from nvrx_chain.ops.resolve import Resolved
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.unit.ops.conftest import ChainOnDisk, World, give_away

Emitted = list[tuple[str, str]]


def tail(chain: ChainOnDisk, **request: int) -> Emitted:
    emitted: Emitted = []
    print_tail(chain.open(), LogRequest(**request), lambda label, line: emitted.append((label, line)))
    return emitted


def test_the_newest_generation_with_a_log_is_shown(chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.log(11, "task_0.log", b"old\n")
    chain.log(15, "task_0.log", b"new\n")
    assert tail(chain) == [("15/task_0", "new")]
    assert tail(chain, array_job_id=11) == [("11/task_0", "old")]


def test_the_last_lines_of_each_log_with_its_unfinished_line(chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.log(11, "task_0.log", b"1\n2\n3\n4")
    chain.log(11, "task_1.log", b"5\n")
    assert sorted(tail(chain, lines=2)) == [("11/task_0", "3"), ("11/task_0", "4"), ("11/task_1", "5")]
    assert tail(chain, lines=0) == []


def test_a_generation_without_logs_is_an_error_that_names_it(chain: ChainOnDisk) -> None:
    chain.submit_three()
    with pytest.raises(RecordError, match="chain train has no log yet"):
        tail(chain)
    chain.log(11, "task_0.log", b"x\n")
    with pytest.raises(RecordError, match="generation 15 has no log yet"):
        tail(chain, array_job_id=15)
    with pytest.raises(RecordError, match="has no log of task 3 yet"):
        tail(chain, array_task_id=3)


def test_a_job_that_names_the_chain_names_the_generation_and_the_task(chain: ChainOnDisk) -> None:
    chain.submit_three()
    found = Resolved(chain=chain.open(), array_job_id=15, array_task_id=2)
    assert choose_logs(found, None, None, 5) == LogRequest(array_job_id=15, array_task_id=2, lines=5)
    assert choose_logs(found, 11, None, 5) == LogRequest(array_job_id=11, array_task_id=None, lines=5)
    assert choose_logs(found, None, 4, 5) == LogRequest(array_job_id=15, array_task_id=4, lines=5)
    assert choose_logs(Resolved(chain=chain.open()), None, None, 5) == LogRequest(lines=5)


def test_a_generation_that_the_chain_does_not_have_is_refused(chain: ChainOnDisk) -> None:
    jobs = chain.submit_three()
    with pytest.raises(UsageError, match=f"has no generation 99.*{' '.join(map(str, jobs))}"):
        choose_logs(Resolved(chain=chain.open()), 99, None, 5)


class Scene:
    """A follower on a fake clock: what is planned `at` a second happens while it waits."""

    def __init__(self, world: World, chain: ChainOnDisk) -> None:
        self.world, self.chain = world, chain
        self.emitted: list[tuple[float, str, str]] = []

    def append(self, seconds: float, job: int, name: str, text: bytes) -> None:
        def write() -> None:
            path = self.chain.run.generation(job).logs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as stream:
                stream.write(text)

        self.world.clock.after(seconds, write)

    def follow(self, **request: int) -> Emitted:
        Follower(
            chain=self.chain.open(),
            request=LogRequest(**request),
            clock=self.world.clock,
            emit=lambda label, line: self.emitted.append((self.world.clock.monotonic(), label, line)),
            wake=threading.Event(),
        ).run()
        return [(label, line) for _, label, line in self.emitted]


@pytest.fixture
def scene(world: World, chain: ChainOnDisk) -> Scene:
    return Scene(world, chain)


def test_what_comes_is_shown_until_the_chain_has_ended_and_is_quiet(
    world: World, chain: ChainOnDisk, scene: Scene
) -> None:
    job = chain.submit(1)
    chain.submit(2)
    chain.log(job, "task_0.log", b"a\nb\nc\n")
    scene.append(5, job, "task_0.log", b"d\n")
    scene.append(40, job, "launcher_0.log", b"new file\n")
    world.clock.after(60, lambda: chain.decide(Verdict.COMPLETED))
    scene.append(64, job, "task_0.log", b"afterthought")
    assert scene.follow(lines=2) == [
        ("11/task_0", "b"),
        ("11/task_0", "c"),
        ("11/task_0", "d"),
        ("11/launcher_0", "new file"),
        ("11/task_0", "afterthought"),
    ]
    assert 64 + QUIET_SECONDS <= world.clock.monotonic() <= 64 + QUIET_SECONDS + 5


def test_a_line_is_shown_within_a_second(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    job = chain.submit(1)
    scene.append(7.3, job, "task_0.log", b"x\n")
    world.clock.after(20, lambda: chain.decide(Verdict.COMPLETED))
    scene.follow()
    assert [7.3 <= at <= 8.5 for at, _, _ in scene.emitted] == [True]


def test_the_next_generation_is_followed_too(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    first, second = chain.submit(1), chain.submit(2)
    chain.log(first, "task_0.log", b"one\n")
    world.clock.after(10, lambda: chain.close(first, Outcome.FAILED))
    scene.append(50, second, "task_0.log", b"two\n")
    world.clock.after(60, lambda: chain.close(second, Outcome.FAILED))
    assert scene.follow() == [("11/task_0", "one"), ("15/task_0", "two")]


def test_earlier_generations_are_not_shown(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    first, second = chain.submit(1), chain.submit(2)
    chain.log(first, "task_0.log", b"one\n")
    chain.log(second, "task_0.log", b"two\n")
    chain.decide(Verdict.COMPLETED)
    assert scene.follow() == [("15/task_0", "two")]


def test_one_generation_is_followed_until_it_is_closed(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    first, second = chain.submit(1), chain.submit(2)
    chain.log(first, "task_0.log", b"one\n")
    world.clock.after(20, lambda: chain.close(first, Outcome.FAILED))
    scene.append(21, second, "task_0.log", b"two\n")
    assert scene.follow(array_job_id=first) == [("11/task_0", "one")]
    assert world.clock.monotonic() < 40


def test_it_waits_for_the_first_log(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    job = chain.submit(1)
    scene.append(300, job, "task_0.log", b"at last\n")
    world.clock.after(310, lambda: chain.decide(Verdict.COMPLETED))
    assert scene.follow() == [("11/task_0", "at last")]


def test_a_chain_with_an_open_submission_is_not_over(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    job = chain.submit(1)
    chain.intend(2)
    chain.log(job, "task_0.log", b"one\n")
    chain.close(job, Outcome.FAILED)
    world.clock.after(100, lambda: chain.decide(Verdict.CANCELLED))
    scene.follow()
    assert world.clock.monotonic() >= 100


def test_a_log_that_may_not_be_read_does_not_keep_it_going(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    job = chain.submit(1)
    if give_away(chain.log(job, "task_0.log", b"x\n")) != 0:
        pytest.skip("only root can give a file away")
    chain.decide(Verdict.COMPLETED)
    assert scene.follow() == []
    assert world.clock.monotonic() < 20


def test_a_damaged_verdict_is_no_end(world: World, chain: ChainOnDisk, scene: Scene) -> None:
    chain.submit(1)
    chain.run.outcome.write_text("{")
    world.clock.after(50, lambda: chain.decide(Verdict.COMPLETED))
    scene.follow()
    assert world.clock.monotonic() >= 50


def emitted(chain: ChainOnDisk, request: LogRequest) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    print_tail(chain.open(), request, lambda label, line: seen.append((label, line)))
    return seen


def test_a_cycle_chooses_the_logs_of_that_cycle_of_every_task(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    for name, line in (
        ("app_0_cycle1.log", b"one\n"),
        ("app_1_cycle1.log", b"two\n"),
        ("app_0_cycle11.log", b"eleven\n"),
        ("app_cycle1.log", b"plain\n"),
        ("app_0_n1_cycle1.log", b"of a node\n"),
        ("task_0.log", b"not the workload\n"),
    ):
        chain.log(job, name, line)
    assert sorted(line for _, line in emitted(chain, LogRequest(cycle=1))) == ["of a node", "one", "plain", "two"]
    assert emitted(chain, LogRequest(cycle=1, array_task_id=1)) == [(f"{job}/app_1_cycle1", "two")]


def test_a_cycle_that_is_not_there_names_those_that_are(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    for cycle in (0, 1, 2, 5):
        chain.log(job, f"app_0_cycle{cycle}.log", b"x\n")
    with pytest.raises(RecordError, match=f"generation {job} has no log of cycle 7; it has those of 0-2,5"):
        emitted(chain, LogRequest(array_job_id=job, cycle=7))


def test_a_launcher_without_logs_by_cycle_is_said(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.log(job, "launcher_0.log", b"x\n")
    with pytest.raises(RecordError, match="no log of a single cycle: its launcher keeps none"):
        emitted(chain, LogRequest(array_job_id=job, cycle=0))


def test_following_one_cycle_goes_across_a_hand_off(world: World, chain: ChainOnDisk) -> None:
    first, second, _ = chain.submit_three()
    chain.log(first, "app_0_cycle0.log", b"first\n")
    chain.log(first, "app_0_cycle1.log", b"another cycle\n")
    world.clock.after(5, lambda: chain.log(second, "app_0_cycle0.log", b"second\n"))
    world.clock.after(9, lambda: chain.decide(Verdict.COMPLETED))
    seen: list[str] = []
    Follower(
        chain=chain.open(),
        request=LogRequest(cycle=0),
        clock=world.clock,
        emit=lambda _, line: seen.append(line),
        wake=threading.Event(),
    ).run()
    assert seen == ["first", "second"]
