"""A chain that cannot be resolved is counted, tried again after pauses, and costs the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, NvrxError, RecordError
from nvrx_watch.discovery import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, MOST_HANGING, Discovery
from nvrx_watch.layout import OwnLayout
from nvrx_watch.resolve.all_mine import Mine
from nvrx_watch.resolve.watched import Watched
from tests.fakes.fake_clock import FakeClock
from tests.unit.watch import build


def mine(job: int, *, is_live: bool = True) -> Mine:
    return Mine(chain_id=f"c{job}", array_job_id=job, is_live=is_live)


def watched(job: int) -> Watched:
    layout = OwnLayout(run_directory=Path("/w"), chain_id=f"c{job}", owner_uid=build.UID)
    return Watched(subject=build.subject(key=f"c{job}", chain_id=f"c{job}"), layout=layout, asked_job_id=job)


class Site:
    """Job ids that can be resolved but for those that fail or hang."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.failing: dict[int, NvrxError] = {}
        self.hanging: set[int] = set()
        self.released = threading.Event()
        self.asked: list[int] = []
        self.discovery = Discovery(self._resolve, self.clock, deadline_seconds=0.1)

    def _resolve(self, job: int) -> Watched:
        self.asked.append(job)
        if job in self.hanging:
            self.released.wait(60)
        if job in self.failing:
            raise self.failing[job]
        return watched(job)

    def find(self, *jobs: int) -> list[str]:
        return [one.subject.key for one in self.discovery.find([mine(job) for job in jobs])]


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.released.set()


def test_one_that_fails_keeps_none_of_the_others(site: Site) -> None:
    site.failing[1] = RecordError("reading the chain", part="Input/output error")
    assert site.find(1, 2) == ["c2"]
    assert site.discovery.unwatched == {"c1": "reading the chain: Input/output error"}


def test_what_failed_is_tried_again_after_growing_pauses(site: Site) -> None:
    site.failing[1] = RecordError("reading the chain")
    for _ in range(20):
        site.find(1)
        site.clock.advance(FIRST_WAIT_SECONDS)
    # After 0, 1, 3, 7 and 15 minutes; the next one is due after 31.
    assert len(site.asked) == 5
    site.clock.advance(LONGEST_WAIT_SECONDS)
    del site.failing[1]
    assert site.find(1) == ["c1"]
    assert site.discovery.unwatched == {}


def test_a_pause_does_not_make_a_chain_a_watched_one(site: Site) -> None:
    site.failing[1] = RecordError("reading the chain")
    site.find(1)
    site.find(1)
    assert list(site.discovery.unwatched) == ["c1"]


def test_a_chain_that_the_queue_no_longer_shows_is_no_trouble_any_more(site: Site) -> None:
    site.failing[1] = RecordError("reading the chain")
    site.find(1)
    site.find()
    assert site.discovery.unwatched == {}


def test_one_that_hangs_is_not_seen_and_the_others_are(site: Site) -> None:
    site.hanging.add(1)
    assert site.find(1, 2) == ["c2"]
    assert "not done within" in site.discovery.unwatched["c1"]


def test_tries_that_hang_never_pile_up(site: Site) -> None:
    site.hanging.update(range(1, 100))
    for _ in range(5):
        site.find(*range(1, 100))
        site.clock.advance(LONGEST_WAIT_SECONDS)
    assert len(site.asked) == MOST_HANGING
    assert len(site.discovery.unwatched) == 99


def test_a_live_chain_that_is_not_what_it_says_is_trouble_and_an_ended_one_is_over(site: Site) -> None:
    site.failing.update({1: IdentityError("another chain"), 2: IdentityError("another chain")})
    site.discovery.find([mine(1), mine(2, is_live=False)])
    assert list(site.discovery.unwatched) == ["c1"]
