"""How a job ended, for those who lost the host: the first word counts, and only of the same run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.launcher.events import Ended
from nvrx_chain.launcher.outcome_file import Bounded, read_outcome, write_outcome
from nvrx_chain.launcher.reasons import Reason

END = Ended(reason=Reason.NO_PROGRESS, exit_code=93, by="0-a", detail="stuck", at=1.5)


def test_what_was_written_is_read_as_the_event_that_the_others_heard(tmp_path: Path) -> None:
    path = tmp_path / "outcome.8.0.json"
    assert write_outcome(path, END, run_id="r", cycle=4)
    found = read_outcome(path, run_id="r")
    assert not isinstance(found, Unobserved)
    assert found is not None
    assert found.as_event() == END
    assert found.cycle == 4


def test_the_first_of_many_writers_wins_and_all_readers_agree(tmp_path: Path) -> None:
    path = tmp_path / "outcome.8.0.json"
    start = threading.Barrier(8)
    won: list[int] = []

    def write(number: int) -> None:
        start.wait(10)
        end = Ended(reason=Reason.FAILED, exit_code=number, by=f"{number}-a")
        if write_outcome(path, end, run_id="r", cycle=0):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_outcome(path, run_id="r")
    assert found is not None
    assert not isinstance(found, Unobserved)
    assert won == [found.exit_code]
    assert os.listdir(tmp_path) == [path.name]


def test_none_is_none_and_one_of_another_run_is_none(tmp_path: Path) -> None:
    path = tmp_path / "outcome.8.0.json"
    assert read_outcome(path, run_id="r") is None
    write_outcome(path, END, run_id="an earlier one", cycle=0)
    assert read_outcome(path, run_id="r") is None


@pytest.mark.parametrize(
    "content", ["", "{", '{"reason": "no_progress"}', '{"run_id": "r", "reason": "why not"}', "\0"]
)
def test_a_damaged_file_is_unknown_and_no_verdict(tmp_path: Path, content: str) -> None:
    path = tmp_path / "outcome.8.0.json"
    path.write_text(content)
    assert isinstance(read_outcome(path, run_id="r"), Unobserved)


def test_a_question_that_hangs_is_asked_once() -> None:
    answers, asked = threading.Event(), []

    def question() -> int:
        asked.append(1)
        answers.wait(30)
        return 7

    bounded = Bounded(question)
    began = time.monotonic()
    assert isinstance(bounded.ask(0.05), Unobserved)
    assert isinstance(bounded.ask(20.0), Unobserved)
    assert time.monotonic() - began < 5
    assert len(asked) == 1
    answers.set()
    deadline = time.monotonic() + 10
    while bounded.ask(5.0) != 7:
        assert time.monotonic() < deadline
