"""Root on the chain of another user: only where it was asked for, and only with that user's rights."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, RecordError
from nvrx_chain.ops.cancel import cancel_chain
from nvrx_chain.ops.chain import Operator, open_run_directory
from nvrx_chain.ops.operator import Account, act_for_owner, find_account
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.files import read_record
from tests.forged import PLANTS, forge, put_in_place, read_victim
from tests.unit.ops.conftest import USER, ChainOnDisk, World

ALICE = os.getuid()
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="gives files away")


class Becoming:
    """Stands in for the change of user, and remembers it."""

    def __init__(self) -> None:
        self.became: list[tuple[str, int, int]] = []

    def __call__(self, user: str, uid: int, gid: int) -> None:
        self.became.append((user, uid, gid))


def account(user: str) -> Account | None:
    return Account(user=user, uid=ALICE, gid=99) if user == USER else None


def test_the_chains_own_user_stays_who_he_is(world: World, chain: ChainOnDisk) -> None:
    becoming, desk = Becoming(), world.desk()
    assert act_for_owner(chain.open(), desk, find_account=account, become=becoming) is desk
    assert becoming.became == []


@NEEDS_ROOT
def test_root_becomes_the_user_of_the_chain_and_the_record_names_root(world: World) -> None:
    chain = world.make_chain(uid=4242)
    chain.submit_three()
    os.chown(chain.run.manifest, 4242, 4242)
    os.chown(chain.run.path, 4242, 4242)
    becoming = Becoming()
    desk = replace(world.desk(), operator=Operator(user="root", uid=0, host="login"))

    def find(user: str) -> Account:
        return Account(user=user, uid=4242, gid=7)

    acting = act_for_owner(chain.open(), desk, find_account=find, become=becoming)
    assert becoming.became == [(USER, 4242, 7)]
    assert (acting.operator.uid, acting.operator.signature) == (4242, "root on login")
    cancel_chain(chain.open(), acting, seconds=5)
    verdict = read_record(chain.run.outcome, ChainOutcome)
    assert isinstance(verdict, ChainOutcome)
    assert (verdict.by, verdict.why) == ("root on login", "cancelled by an operator")


def test_nobody_but_root_acts_for_another_user(world: World, chain: ChainOnDisk) -> None:
    becoming = Becoming()
    desk = replace(world.desk(), operator=Operator(user="bob", uid=ALICE + 1, host="login"))
    with pytest.raises(IdentityError, match="--act-as-operator is for root"):
        act_for_owner(chain.open(), desk, find_account=account, become=becoming)
    assert becoming.became == []


@NEEDS_ROOT
@pytest.mark.parametrize("uid_of_the_name", [None, 4243])
def test_a_name_that_is_not_the_owners_is_never_acted_for(world: World, uid_of_the_name: int | None) -> None:
    chain = world.make_chain(uid=4242)
    os.chown(chain.run.manifest, 4242, 4242)
    becoming = Becoming()
    desk = replace(world.desk(), operator=Operator(user="root", uid=0, host="login"))

    def find(user: str) -> Account | None:
        return None if uid_of_the_name is None else Account(user=user, uid=uid_of_the_name, gid=7)

    with pytest.raises(IdentityError, match="not known here as uid 4242"):
        act_for_owner(chain.open(), desk, find_account=find, become=becoming)
    assert becoming.became == []


@NEEDS_ROOT
def test_a_change_of_user_that_fails_ends_the_command(world: World) -> None:
    chain = world.make_chain(uid=4242)
    os.chown(chain.run.manifest, 4242, 4242)

    def refuse(user: str, uid: int, gid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    desk = replace(world.desk(), operator=Operator(user="root", uid=0, host="login"))
    with pytest.raises(IdentityError, match="becoming alice: Operation not permitted"):
        act_for_owner(chain.open(), desk, find_account=lambda user: Account(user=user, uid=4242, gid=7), become=refuse)


def test_root_is_an_account_and_an_impossible_name_is_none() -> None:
    assert find_account("root") == Account(user="root", uid=0, gid=0)
    assert find_account("no such\0user") is None


# Forged run directories


@NEEDS_ROOT
@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"uid": 0, "user": "root"},
        {"uid": 61002},
        {"uid": 61002, "user": "mallory"},
    ],
    ids=["the victim", "root", "the victim's name and the own uid", "the forger"],
)
def test_a_forged_manifest_cancels_nothing(world: World, claims: dict[str, object], tmp_path: Path) -> None:
    chain = world.make_chain()
    chain.submit_three()
    directory = forge(tmp_path / "forged", read_victim(chain.run.path), owner=61002, **claims)
    before = world.slurm.queue(USER)
    for desk in (world.desk(), replace(world.desk(), operator=Operator(user="mallory", uid=61002, host="login"))):
        try:
            cancel_chain(open_run_directory(directory), desk, seconds=3)
        except (IdentityError, RecordError):
            continue
        # In his own name the forger may decide about his own directory, which changes nothing in the queue.
        assert (desk.operator.user, claims.get("user")) == ("mallory", "mallory")
    assert not world.slurm.asked("cancel")
    assert world.slurm.queue(USER) == before


@NEEDS_ROOT
def test_files_that_belong_to_the_victim_in_a_directory_of_the_forger_are_a_copy(world: World, tmp_path: Path) -> None:
    chain = world.make_chain()
    chain.submit_three()
    directory = forge(tmp_path / "forged", read_victim(chain.run.path), owner=61002)
    (directory / "chain.json").unlink()
    os.link(chain.run.manifest, directory / "chain.json")
    with pytest.raises(IdentityError, match="is a copy of its directory"):
        cancel_chain(open_run_directory(directory), world.desk(), seconds=3)
    assert not world.slurm.asked("cancel")


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_what_is_no_file_in_place_of_the_manifest_is_an_error(world: World, chain: ChainOnDisk, plant: str) -> None:
    chain.submit_three()
    put_in_place(chain.run.manifest, plant)
    with pytest.raises(RecordError, match="reading the chain"):
        chain.open()
    assert not world.slurm.asked("cancel")


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_what_is_no_file_in_place_of_a_submission_cancels_nothing_else(
    world: World, chain: ChainOnDisk, plant: str
) -> None:
    first, second, third = chain.submit_three()
    foreign = world.slurm.submit_as("bob", chain.argv(2))
    put_in_place(chain.run.submission_id(2), plant)
    report = cancel_chain(chain.open(), world.desk(), seconds=3)
    assert set(report.asked) <= {first, second, third}
    assert second in report.left_alone or second in report.asked
    assert not world.slurm.task(f"{foreign}_0").state.is_terminal
