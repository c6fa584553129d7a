"""Marks on disk, and how long a recovery took by them, whatever the clocks of the nodes say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.records.marks import Mark, MarkName, encode_mark, marks_path, parse_marks, read_marks
from nvrx_chain.records.recovery import STEPS, fold_marks

NOW = 1_790_000_000.0


def mark(
    name: MarkName,
    after: float,
    *,
    agent: str = "0-a",
    cycle: int = 1,
    skew: float = 0.0,
    rank: int | None = None,
    iteration: int | None = None,
    boot: str | None = None,
) -> Mark:
    """Noted so long after the failure, on a node whose wall clock is wrong by `skew` and whose uptime is its own."""
    uptime = 1000.0 * (1 + int(agent.split("-")[0]))
    return Mark(
        cycle=cycle,
        name=name,
        at=NOW + skew + after,
        monotonic=uptime + after,
        boot=boot or f"boot-{agent}",
        node=f"n{agent}",
        agent=agent,
        rank=rank,
        iteration=iteration,
    )


def recovery_of(agent: str, skew: float, late: float) -> list[Mark]:
    return [
        mark(MarkName.FAILURE_DETECTED, late / 10, agent=agent, skew=skew),
        mark(MarkName.WORKERS_STOPPED, 0.1 + late, agent=agent, skew=skew),
        mark(MarkName.JOINED, 0.2 + late, agent=agent, skew=skew),
        mark(MarkName.ROUND_FILLED, 0.3 + late, agent=agent, skew=skew),
        mark(MarkName.WORKERS_STARTED, 0.4 + late, agent=agent, skew=skew),
        mark(MarkName.FIRST_STEP, 0.9 + late, agent=agent, skew=skew, iteration=71),
    ]


def test_each_step_is_that_of_the_last_launcher_and_wrong_wall_clocks_change_nothing() -> None:
    marks = [*recovery_of("0-a", 0.0, 0.0), *recovery_of("1-b", -3600.0, 0.05), *recovery_of("2-c", 3600.0, 0.0)]
    (found,) = fold_marks(marks)
    seconds = {name: round(value, 3) for name, value in found.seconds.items()}
    # Of 1-b, from when it knew: 5 ms after the failure.
    assert seconds == {
        MarkName.WORKERS_STOPPED: 0.145,
        MarkName.JOINED: 0.245,
        MarkName.ROUND_FILLED: 0.345,
        MarkName.WORKERS_STARTED: 0.445,
        MarkName.FIRST_STEP: 0.945,
    }
    assert found.approximate == ()
    assert (found.is_recovered, found.iteration, found.launchers) == (True, 71, 3)


def test_processes_that_started_have_not_recovered_the_training() -> None:
    (found,) = fold_marks(recovery_of("0-a", 0.0, 0.0)[:-1])
    assert MarkName.WORKERS_STARTED in found.seconds
    assert not found.is_recovered


def test_a_spare_that_comes_minutes_later_is_not_what_the_round_waited_for() -> None:
    spare = [mark(MarkName.JOINED, 300.0, agent="7-s"), mark(MarkName.ROUND_FILLED, 300.1, agent="7-s")]
    (found,) = fold_marks([*recovery_of("0-a", 0.0, 0.0), *spare])
    assert found.seconds[MarkName.JOINED] == pytest.approx(0.2)
    assert found.launchers == 1


def test_a_node_that_came_after_the_failure_is_placed_by_wall_clock_and_called_approximate() -> None:
    late = [mark(MarkName.WORKERS_STARTED, 5.0, agent="3-d", skew=1.0)]
    (found,) = fold_marks([*recovery_of("0-a", 0.0, 0.0), *late])
    assert found.seconds[MarkName.WORKERS_STARTED] == pytest.approx(6.0)
    assert found.approximate == (MarkName.WORKERS_STARTED,)


def test_a_clock_that_is_behind_makes_no_step_earlier_than_the_failure() -> None:
    late = [mark(MarkName.WORKERS_STARTED, 5.0, agent="3-d", skew=-100.0)]
    (found,) = fold_marks([mark(MarkName.FAILURE_DETECTED, 0.0), *late])
    assert found.seconds[MarkName.WORKERS_STARTED] == 0.0


def test_whoever_saw_the_rank_fail_is_named_not_one_that_heard_of_it_with_an_early_clock() -> None:
    saw = mark(MarkName.FAILURE_DETECTED, 0.0, agent="1-b", rank=3)
    heard = mark(MarkName.FAILURE_DETECTED, 0.01, agent="0-a", skew=-50.0)
    (found,) = fold_marks([heard, saw])
    assert (found.node, found.rank) == ("n1-b", 3)


def test_the_first_cycle_is_counted_from_its_first_mark() -> None:
    marks = [
        mark(MarkName.JOINED, 0.0, cycle=0),
        mark(MarkName.WORKERS_STARTED, 1.5, cycle=0),
        mark(MarkName.FIRST_STEP, 4.0, cycle=0),
    ]
    (found,) = fold_marks(marks)
    assert (found.cycle, found.seconds[MarkName.FIRST_STEP], found.approximate) == (0, 4.0, ())


def test_a_node_that_was_rebooted_since_is_not_measured_across_the_boot() -> None:
    again = mark(MarkName.WORKERS_STARTED, 90.0, boot="another")
    (found,) = fold_marks([mark(MarkName.FAILURE_DETECTED, 0.0), again])
    assert found.approximate == (MarkName.WORKERS_STARTED,)


_MARKS = st.builds(
    lambda name, after, agent, cycle, skew: mark(name, after, agent=f"{agent}-x", cycle=cycle, skew=skew),
    st.sampled_from(list(MarkName)),
    st.floats(0, 1000),
    st.integers(0, 5),
    st.integers(0, 3),
    st.floats(-1e6, 1e6),
)


@given(st.lists(_MARKS, max_size=40))
def test_any_marks_fold_to_one_entry_per_cycle_and_no_negative_time(marks: list[Mark]) -> None:
    found = fold_marks(marks)
    assert [recovery.cycle for recovery in found] == sorted({mark.cycle for mark in marks})
    for recovery in found:
        assert all(seconds >= 0 for seconds in recovery.seconds.values())
        assert list(recovery.seconds) == [name for name in STEPS if name in recovery.seconds]
        assert recovery.is_recovered == any(
            mark.cycle == recovery.cycle and mark.name is MarkName.FIRST_STEP for mark in marks
        )


def test_torn_foreign_and_senseless_lines_are_left_out() -> None:
    good = encode_mark(mark(MarkName.JOINED, 0.0))
    lines = [
        good,
        b"\n",
        b"[]\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        good.replace(b'"joined"', b'"of a later version"'),
        good.replace(b'"cycle":1', b'"cycle":-1'),
        good.replace(b'"cycle":1', b'"cycle":1e400'),
        good.replace(b'"at":1790000000.0', b'"at":1e300'),
        good.replace(b'"at":1790000000.0', b'"at":-5'),
        good,
        good[:40],
    ]
    assert len(lines) == len(set(lines)) + 1, "a replacement did nothing"
    assert list(parse_marks(b"".join(lines))) == [mark(MarkName.JOINED, 0.0)] * 2


def test_only_files_of_marks_are_read_and_what_is_no_file_is_told(tmp_path: Path) -> None:
    assert read_marks(tmp_path / "none") is None
    marks_path(tmp_path, "0-a").write_bytes(encode_mark(mark(MarkName.JOINED, 0.0)))
    (tmp_path / "notes.txt").write_bytes(encode_mark(mark(MarkName.JOINED, 1.0)))
    marks_path(tmp_path, "1-b").symlink_to("/etc/passwd")
    os.mkfifo(marks_path(tmp_path, "2-c"))
    marks_path(tmp_path, "3-d").mkdir()
    found = read_marks(tmp_path)
    assert found is not None
    marks, problems = found
    assert marks == (mark(MarkName.JOINED, 0.0),)
    assert len(problems) == 3


def test_of_a_file_that_grew_for_weeks_the_newest_marks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [encode_mark(mark(MarkName.JOINED, float(number), cycle=number)) for number in range(100)]
    marks_path(tmp_path, "0-a").write_bytes(b"".join(lines))
    monkeypatch.setattr("nvrx_chain.records.marks.MAX_FILE_BYTES", 10 * len(lines[-1]) + 7)
    found = read_marks(tmp_path)
    assert found is not None
    assert [found_mark.cycle for found_mark in found[0]] == list(range(90, 100))


def test_no_name_of_a_launcher_leads_out_of_the_directory(tmp_path: Path) -> None:
    for agent in ("../../x", "a/b", "", "x" * 500, "a\nb"):
        assert marks_path(tmp_path, agent).parent == tmp_path
