"""Chains in run directories with awkward names, queued on a FakeSlurm; and accounts of users that no machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_watch.resolve.by_job import resolve_job
from nvrx_watch.resolve.watched import Account, ForeignHints, Watched
from tests.unit.ops.conftest import ChainOnDisk, World

NOBODY = ForeignHints()


@dataclass
class Desk:
    """A user at a terminal in `here`, on a machine with the accounts of alice (who runs pytest) and mallory."""

    world: World
    here: Path
    scripts: dict[int, str | Unobserved] = field(default_factory=dict)
    asked_scripts: list[int] = field(default_factory=list)

    def account(self, user: str) -> Account | None:
        home = str(self.here / "home" / user)
        return {"alice": Account(uid=os.getuid(), home=home), "mallory": Account(uid=54321, home=home)}.get(user)

    def read_script(self, job_id: int) -> str | Unobserved | None:
        self.asked_scripts.append(job_id)
        return self.scripts.get(job_id)

    def resolve(self, text: str | int, hints: ForeignHints = NOBODY) -> Watched:
        return resolve_job(
            str(text),
            self.world.slurm,
            hints,
            read_script=self.read_script,
            here=self.here,
            find_account=self.account,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def chain(world: World) -> ChainOnDisk:
    return world.make_chain()


@pytest.fixture
def desk(world: World, tmp_path: Path) -> Desk:
    here = tmp_path / "elsewhere & #1"
    here.mkdir()
    return Desk(world, here)
