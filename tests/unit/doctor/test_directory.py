"""The run directory as two machines see it; here both are processes of one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nvrx_chain.doctor import directory
from nvrx_chain.doctor.directory import (
    answer_node,
    nearest,
    read_chain,
    read_login_directory,
    read_node_directory,
    scratch_of,
    sweep,
)
from nvrx_chain.errors import RecordError
from nvrx_chain.records.files import encode_record
from tests.unit.submit.chains import make_config, make_plan

TOKEN = "0a1b2c"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that is not there yet, below one with a nasty name."""
    parent = tmp_path / "run & dir #1 'q' 100%"
    parent.mkdir()
    return parent / "chains" / "a"


def test_the_nearest_directory_that_is_there_is_tried(run: Path) -> None:
    seen = read_login_directory(run, TOKEN)
    assert (seen.path, seen.tested) == (str(run), str(run.parents[1]))
    assert nearest(run) == run.parents[1]
    assert seen.problem is None
    assert seen.first_wins is True
    assert 0 < (seen.write_seconds or 0) < 10
    assert (seen.free_bytes or 0) > 0
    assert not run.exists()


def test_a_directory_that_takes_no_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    seen = read_login_directory(Path("/proc/self"), TOKEN)
    assert "nothing can be made in /proc/self" in (seen.problem or "")


def test_links_that_are_not_there_are_a_problem(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_link)
    assert "hard links" in (read_login_directory(run, TOKEN).problem or "")


def test_what_one_machine_writes_the_other_answers(run: Path) -> None:
    tested = Path(read_login_directory(run, TOKEN).tested)
    login = threading.Thread(target=answer_node, args=(tested, TOKEN), kwargs={"seconds": 30.0})
    login.start()
    seen = read_node_directory(run, tested, TOKEN, seconds=30.0)
    login.join()
    assert seen.echo is not None
    assert seen.echo.node_wrote_at <= seen.echo.login_saw_at <= seen.echo.login_wrote_at <= seen.echo.node_saw_at
    assert abs(seen.echo.skew_seconds) <= seen.echo.round_trip_seconds
    assert (seen.problem, seen.echo_problem) == (None, None)


def test_a_node_that_gets_no_answer_says_so_and_tries_the_directory_all_the_same(run: Path) -> None:
    tested = Path(read_login_directory(run, TOKEN).tested)
    seen = read_node_directory(run, tested, TOKEN, seconds=0.3)
    assert seen.echo is None
    assert "did not answer" in (seen.echo_problem or "")
    assert seen.first_wins is True


def test_a_node_that_does_not_see_the_login_nodes_directory_says_for_how_long_it_looked(run: Path) -> None:
    seen = read_node_directory(run, run.parents[1], TOKEN, seconds=0.3)
    assert "what the login node wrote" in (seen.problem or "")
    assert "is not there, also after" in (seen.problem or "")
    away = read_node_directory(run, Path("/no/such/place"), TOKEN, seconds=0.1)
    assert (away.problem or "").startswith("/no/such/place is not there")


def test_a_node_that_may_not_read_it_does_not_wait(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(directory.os, "listdir", refuse)
    seen = read_node_directory(run, run.parents[1], TOKEN, seconds=600)
    assert "cannot be read: Permission denied" in (seen.problem or "")


def test_sweeping_leaves_nothing_and_touches_nothing_else(run: Path) -> None:
    tested = Path(read_login_directory(run, TOKEN).tested)
    (tested / "mine").write_text("kept")
    assert scratch_of(tested, TOKEN).is_dir()
    sweep(tested, TOKEN)
    assert [path.name for path in tested.iterdir()] == ["mine"]
    # Nothing was made: nothing to do.
    sweep(tested, TOKEN)


def test_a_chain_says_which_interpreters_and_how_many_tasks(run: Path) -> None:
    assert read_chain(run) is None
    manifest = make_plan(make_config(launcher="ft_launcher", python="/opt/train/bin/python")).manifest
    run.mkdir(parents=True)
    (run / "chain.json").write_bytes(encode_record(manifest))
    seen = read_chain(run)
    assert seen is not None
    assert (seen.launcher, seen.python, seen.tasks, seen.tasks_at_once) == (
        "ft_launcher",
        "/opt/train/bin/python",
        5,
        3,
    )


def test_a_chain_that_cannot_be_read_is_an_error(run: Path) -> None:
    run.mkdir(parents=True)
    (run / "chain.json").write_text("{")
    with pytest.raises(RecordError, match=r"chain\.json"):
        read_chain(run)
