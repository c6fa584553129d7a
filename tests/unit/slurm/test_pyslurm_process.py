"""Whatever libslurm does in its child process, the process that asks lives on and hears why there is no answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import SlurmUnavailable, Unobserved, UsageError
from nvrx_chain.slurm.pyslurm_fields import JOB_FIELDS
from nvrx_chain.slurm.pyslurm_process import PySlurmProcess
from nvrx_chain.slurm.pyslurm_worker import Answer, Question
from tests.fakes.pyslurm_bench import STAND_IN, WORLD_FILE, StandIn, recorded

SOON = 20.0
SHORT = 1.0


class World:
    """What the stand-in shows; a test changes `faults`."""

    def __init__(self) -> None:
        self.shown = recorded("running")
        self.faults: dict[str, str] = {}

    def __call__(self) -> dict[str, Any]:
        return {**self.shown, "faults": self.faults}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def stand_in(tmp_path: Path, world: World) -> Iterator[StandIn]:
    made = StandIn(tmp_path, world)
    yield made
    made.process.close()


def jobs(stand_in: StandIn, seconds: float = SOON) -> Answer | Unobserved:
    return stand_in.ask(Question(ask="jobs", seconds=seconds))


def count(answer: Answer | Unobserved) -> int:
    assert isinstance(answer, Answer), answer
    assert answer.error is None
    return len(answer.records)


def reason(answer: Answer | Unobserved) -> str:
    assert isinstance(answer, Unobserved), answer
    return answer.reason


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_child_answers_many_questions(stand_in: StandIn) -> None:
    assert count(jobs(stand_in)) == 4
    pid = stand_in.process.pid
    assert count(jobs(stand_in)) == 4
    assert (stand_in.process.pid, pid) == (pid, stand_in.process.pid)
    assert pid is not None


def test_a_child_that_libslurm_ends_is_no_answer_with_its_last_words(stand_in: StandIn, world: World) -> None:
    assert count(jobs(stand_in)) == 4
    world.faults = {"jobs": "exit"}
    said = reason(jobs(stand_in))
    assert "exit code 1" in said
    assert "fatal: Unable to process configuration file" in said


def test_after_an_end_the_next_question_has_another_child(stand_in: StandIn, world: World) -> None:
    world.faults = {"jobs": "exit"}
    reason(jobs(stand_in))
    world.faults = {}
    assert count(jobs(stand_in)) == 4


def test_a_crash_is_no_answer(stand_in: StandIn, world: World) -> None:
    world.faults = {"jobs": "crash"}
    assert f"signal {int(signal.SIGSEGV)}" in reason(jobs(stand_in))


def test_an_error_that_nobody_foresees_is_no_answer(stand_in: StandIn, world: World) -> None:
    world.faults = {"jobs": "fail"}
    assert "something that nobody foresees" in reason(jobs(stand_in))


def test_a_child_that_hangs_is_given_up_at_the_deadline_and_ended(stand_in: StandIn, world: World) -> None:
    assert count(jobs(stand_in)) == 4
    pid = stand_in.process.pid
    assert pid is not None
    world.faults = {"jobs": "hang"}
    started = time.monotonic()
    assert "did not answer in 1 s" in reason(jobs(stand_in, SHORT))
    assert time.monotonic() - started < SHORT + 5
    assert is_gone(pid)
    world.faults = {}
    assert count(jobs(stand_in)) == 4


_PARENT = """
import sys, threading
from pathlib import Path
from nvrx_chain.slurm.pyslurm_process import PySlurmProcess
from nvrx_chain.slurm.pyslurm_worker import Question
process = PySlurmProcess({"FAKE_PYSLURM": sys.argv[1]}, search_path=(sys.argv[2],))
process.ask(Question(ask="nodes", seconds=20))
threading.Thread(target=process.ask, args=(Question(ask="jobs", seconds=3),), daemon=True).start()
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_that_hangs_ends_by_itself_when_its_parent_was_killed(tmp_path: Path, world: World) -> None:
    world.faults = {"jobs": "hang"}
    StandIn(tmp_path, world)
    argv = (sys.executable, "-c", _PARENT, str(tmp_path / WORLD_FILE), str(STAND_IN))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=Path(__file__).parents[3], **pipes) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        _wait((tmp_path / f"{WORLD_FILE}.hangs").exists, SOON)
        parent.kill()
        assert parent.wait(SOON) == -signal.SIGKILL
        assert not is_gone(child)
        _wait(lambda: is_gone(child), 3 + 10)


def test_a_child_that_was_killed_between_two_questions_is_replaced(stand_in: StandIn) -> None:
    assert count(jobs(stand_in)) == 4
    pid = stand_in.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", SOON)
    assert count(jobs(stand_in)) == 4
    assert stand_in.process.pid != pid


def test_an_answer_that_an_interrupt_left_behind_is_not_that_of_the_next_question(
    stand_in: StandIn, world: World, tmp_path: Path
) -> None:
    assert count(jobs(stand_in)) == 4
    pid = stand_in.process.pid
    assert pid is not None
    world.faults = {"jobs": "hang"}

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    def when_it_hangs() -> None:
        _wait((tmp_path / f"{WORLD_FILE}.hangs").exists, SOON)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    waiting = threading.Thread(target=when_it_hangs)
    waiting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            jobs(stand_in)
    finally:
        waiting.join(SOON)
        signal.signal(signal.SIGUSR1, before)
    assert is_gone(pid)
    world.faults = {}
    assert count(jobs(stand_in)) == 4


def test_what_libslurm_prints_does_not_get_between_the_answers(stand_in: StandIn, world: World) -> None:
    world.faults = {"jobs": "talk"}
    assert count(jobs(stand_in)) == 4


def test_an_error_of_slurm_is_an_answer(stand_in: StandIn, world: World) -> None:
    world.faults = {"jobs": "Unable to contact slurm controller (connect failure)"}
    answer = jobs(stand_in)
    assert isinstance(answer, Answer)
    assert answer.error == "Unable to contact slurm controller (connect failure)"


def test_threads_take_turns_and_each_gets_its_own_answer(stand_in: StandIn, world: World) -> None:
    got: dict[int, int] = {}

    def ask(job: int) -> None:
        answer = stand_in.process.ask(Question(ask="job", seconds=SOON, ids=(job,)))
        assert isinstance(answer, Answer)
        got[job] = answer.records[0]["id"]

    threads = [threading.Thread(target=ask, args=(job,)) for job in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert got == {2: 2, 3: 3, 4: 4}


def test_an_attribute_that_cannot_be_computed_costs_itself_alone(stand_in: StandIn, world: World) -> None:
    world.shown["jobs"]["3"]["raises"] = ["comment", "dependencies"]
    answer = jobs(stand_in)
    assert isinstance(answer, Answer)
    task_0 = next(record for record in answer.records if record["id"] == 3)
    assert "comment" not in task_0
    assert task_0["name"] == "llama_pretrain"


def test_thousands_of_jobs_come_through(stand_in: StandIn, world: World) -> None:
    task_0 = {field: value for field, value in world.shown["jobs"]["3"].items() if field in JOB_FIELDS}
    world.shown["jobs"] = {str(number): {**task_0, "id": number} for number in range(1, 3_001)}
    assert count(jobs(stand_in)) == 3_000


def test_jobs_of_one_user_and_those_of_nobody_known_are_asked_for(stand_in: StandIn, world: World) -> None:
    task_0 = world.shown["jobs"]["3"]
    world.shown["jobs"] = {
        "1": {**task_0, "id": 1, "user_id": 1001, "user_name": "alice"},
        "2": {**task_0, "id": 2, "user_id": 1002, "user_name": "bob"},
        "3": {**task_0, "id": 3, "user_id": None, "user_name": None},
    }
    answer = stand_in.ask(Question(ask="jobs", seconds=SOON, user="alice"))
    assert isinstance(answer, Answer)
    assert [record["id"] for record in answer.records] == [1, 3]


def test_start_gives_the_version(stand_in: StandIn) -> None:
    assert stand_in.process.start(SOON) == "25.11.2"


def test_a_pyslurm_that_is_not_installed_is_a_wrong_choice(tmp_path: Path) -> None:
    process = PySlurmProcess({}, search_path=(str(tmp_path),))
    with pytest.raises(UsageError, match=r"No module named 'pyslurm'.*go without --slurm-client pyslurm"):
        process.start(SOON)
    assert "No module named 'pyslurm'" in reason(process.ask(Question(ask="jobs", seconds=SOON)))
    assert process.pid is None


def test_an_import_that_ends_the_process_ends_the_child_alone(tmp_path: Path, world: World) -> None:
    world.faults = {"import": "exit"}
    stand_in = StandIn(tmp_path, world)
    with pytest.raises(SlurmUnavailable, match=r"fatal: Unable to process configuration file.*SLURM_CONF"):
        stand_in.process.start(SOON)
    assert "fatal: Unable to process" in reason(jobs(stand_in))


def test_an_import_that_hangs_is_given_up_at_the_deadline(tmp_path: Path, world: World) -> None:
    world.faults = {"import": "hang"}
    stand_in = StandIn(tmp_path, world)
    with pytest.raises(SlurmUnavailable, match="it did not start in 1 s"):
        stand_in.process.start(SHORT)


def test_variables_that_bend_slurms_answers_do_not_reach_the_child(tmp_path: Path, world: World) -> None:
    stand_in = StandIn(tmp_path, world, SLURM_CLUSTERS="other", SLURM_BITSTR_LEN="8", SLURM_CONF="/etc/slurm.conf")
    stand_in.process.start(SOON)
    seen = Path(f"/proc/{stand_in.process.pid}/environ").read_bytes().split(b"\0")
    stand_in.close()
    assert b"SLURM_BITSTR_LEN=0" in seen
    assert b"SLURM_CONF=/etc/slurm.conf" in seen
    assert not [word for word in seen if word.startswith(b"SLURM_CLUSTERS")]


def test_a_module_in_the_current_directory_does_not_win(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a stray module')")
    (tmp_path / "msgspec.py").write_text("raise SystemExit('a stray module')")
    monkeypatch.chdir(tmp_path)
    stand_in = StandIn(tmp_path, world)
    assert count(jobs(stand_in)) == 4
    stand_in.close()


def test_the_child_ends_with_the_last_reference(tmp_path: Path, world: World) -> None:
    stand_in = StandIn(tmp_path, world)
    assert count(jobs(stand_in)) == 4
    pid = stand_in.process.pid
    assert pid is not None
    del stand_in
    _wait(lambda: is_gone(pid), SOON)


def test_the_stand_in_is_not_what_this_process_would_import() -> None:
    assert not any(Path(entry) == STAND_IN for entry in sys.path)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "the condition did not come true"
        time.sleep(0.02)
