"""A watcher with all its real parts but Slurm: what it keeps, and what it lets go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.slurm.client import SlurmClient
from nvrx_watch.watcher import Watcher
from tests.unit.ops.conftest import World
from tests.unit.watch.test_config import build


class Site:
    """A FakeSlurm with chains on disk, and the watchers that look at it."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.root = root
        self.made: list[Watcher] = []

    def resume(self, chain_id: str) -> int:
        """What `submit --resume` leaves: another chain in the directory of the first one, and a job of it."""
        chain = self.world.make_chain(self.root / "1", chain_id=chain_id)
        return chain.submit(7)

    def watcher(self, **options: Any) -> Watcher:
        slurm = self.world.slurm

        class OnFakeSlurm(Watcher):
            @property
            def _client(self) -> SlurmClient:
                return slurm

        settings = {"run_dir": None, "state_dir": self.root / "state dir", "interval": 60.0, "user": "alice"}
        watcher = OnFakeSlurm(build(**{**settings, **options}))
        self.made.append(watcher)
        return watcher


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for watcher in made.made:
        watcher.__exit__(None, None, None)


def test_nothing_is_kept_of_a_chain_that_was_let_go(site: Site) -> None:
    chain = site.world.make_chain(site.root / "1", chain_id="one")
    job = chain.submit(1)
    watcher = site.watcher(all_mine=True, leave_after=0.0)
    assert [one.snapshot.subject.key for one in watcher.run_pass()] == ["one"]
    site.world.slurm.cancel([str(job)])
    site.world.clock.advance(3600)
    passes = [len(watcher.run_pass()) for _ in range(10)]
    # Five passes that saw the end; the pass before may have been needed to report it.
    assert passes[:5] == [1] * 5
    assert passes[-1] == 0
    assert watcher._reader._views == {}
    assert watcher._store._written == {}
    assert watcher._parts.gatherer._facts is not None
    assert watcher._parts.gatherer._facts._settled == {}


def chains(watcher: Watcher) -> list[str]:
    return [one.snapshot.subject.key for one in watcher.run_pass()]


def test_a_watcher_of_a_directory_goes_on_with_the_chain_that_was_resumed_in_it(site: Site) -> None:
    old = site.world.make_chain(site.root / "1", chain_id="old")
    job = old.submit(1)
    watcher = site.watcher(run_dir=old.run.path)
    watcher.resolve()
    assert chains(watcher) == ["old"]
    site.world.slurm.cancel([str(job)])
    newest = site.resume("new")
    (last,) = watcher.run_pass()
    assert last.is_degraded
    # In the pass after that the end of the old one has been told, and there is one chain again.
    assert chains(watcher) == ["old", "new"]
    (result,) = watcher.run_pass()
    assert result.snapshot.subject.key == "new"
    assert [one.array_job_id for one in result.snapshot.generations] == [newest]
    assert not result.is_degraded


def test_a_watcher_of_a_job_says_once_that_its_chain_is_over(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    job = site.world.make_chain(site.root / "1", chain_id="old").submit(1)
    watcher = site.watcher(jobid=str(job))
    watcher.resolve()
    assert chains(watcher) == ["old"]
    site.resume("new")
    for _ in range(3):
        (result,) = watcher.run_pass()
        assert result.exit_code == 1
        assert result.run.findings == ()
    assert caplog.text.count("its run directory holds another one") == 1


def test_all_chains_of_a_user_go_on_with_the_resumed_one(site: Site) -> None:
    job = site.world.make_chain(site.root / "1", chain_id="old").submit(1)
    watcher = site.watcher(all_mine=True)
    assert chains(watcher) == ["old"]
    site.world.slurm.cancel([str(job)])
    site.resume("new")
    for _ in range(3):
        seen = watcher.run_pass()
    assert [one.snapshot.subject.key for one in seen] == ["new"]
    assert not seen[0].is_degraded
