"""The chains of a watcher: found in the queue, kept while something can still be said of them, and let go."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nvrx_chain.slurm.model import JobDetail, QueueReading
from nvrx_watch.hang_guard import Hangs
from nvrx_watch.state_store import StateStore
from nvrx_watch.subjects import Subjects
from tests.unit.ops.conftest import World
from tests.unit.watch.test_config import build


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def subjects_of(world: World, *, seconds: float = 60.0, **options: object) -> Subjects:
    config = build(**{"run_dir": None, "state_dir": world.root / "state dir", **options})
    return Subjects(
        config,
        world.slurm,
        StateStore(config.state_directory),
        read_script=lambda job: None,
        here=world.root,
        user="alice",
        clock=world.clock,
        resolve_seconds=seconds,
    )


def all_mine(world: World) -> Subjects:
    return subjects_of(world, all_mine=True)


def look(subjects: Subjects) -> list[str]:
    """One reading of the queue; the ids of the chains that this pass looks at."""
    reading = subjects.read_queue()
    assert isinstance(reading, QueueReading)
    return sorted(str(watch.subject.chain_id) for watch in subjects.watches(reading))


def test_a_chain_that_has_just_ended_is_looked_at(world: World) -> None:
    job = world.make_chain(world.root / "1", chain_id="one").submit(1)
    world.slurm.cancel([str(job)])
    assert look(all_mine(world)) == ["one"]


def test_a_chain_that_was_let_go_comes_back_with_a_live_job_only(world: World) -> None:
    chain = world.make_chain(world.root / "1", chain_id="one")
    world.slurm.cancel([str(chain.submit(1))])
    subjects = all_mine(world)
    assert look(subjects) == ["one"]
    subjects.leave("one")
    assert look(subjects) == []
    chain.submit(2)
    assert look(subjects) == ["one"]


def test_an_ended_chain_whose_directory_holds_a_newer_one_is_nothing_to_look_at(world: World) -> None:
    old = world.make_chain(world.root / "1", chain_id="old")
    world.slurm.cancel([str(old.submit(1))])
    new = world.make_chain(world.root / "1", chain_id="new")
    new.submit(2)
    assert look(all_mine(world)) == ["new"]


def test_a_chain_that_cannot_be_found_is_said_and_counted_apart(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.make_chain(world.root / "1", chain_id="good").submit(1)
    lost = world.make_chain(world.root / "2", chain_id="lost")
    lost.submit(1)
    lost.run.manifest.unlink()
    subjects = all_mine(world)
    assert look(subjects) == ["good"]
    assert list(subjects.unwatched) == ["lost"]
    assert "chain_id=lost" in caplog.text


def test_a_chain_that_takes_for_ever_to_find_was_not_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(job_id: int) -> tuple[JobDetail, ...]:
        released.wait(60)
        raise AssertionError("nobody waits for this")

    monkeypatch.setattr(world.slurm, "show_job", hang)
    subjects = subjects_of(world, jobid="11", seconds=0.05)
    try:
        with pytest.raises(Hangs, match="not seen"):
            subjects.resolve_named()
        assert subjects.watches(None) == []
    finally:
        released.set()


def test_what_was_asked_for_has_one_word_however_it_is_put(world: World) -> None:
    forms = ("123", "123_0", "123_[2-4%2]")
    assert {subjects_of(world, jobid=form).asked_for for form in forms} == {"job/123"}
    directories = (world.root / "a b", world.root / "x" / ".." / "a b")
    assert len({subjects_of(world, run_dir=path).asked_for for path in directories}) == 1


def test_what_else_was_asked_for_has_another_word(world: World) -> None:
    asked = (
        {"all_mine": True},
        {"jobid": "1"},
        {"jobid": "2"},
        {"run_dir": world.root},
        {"job_name": "train"},
        {"job_name": "train", "work_dir": world.root},
    )
    assert len({subjects_of(world, **one).asked_for for one in asked}) == len(asked)
