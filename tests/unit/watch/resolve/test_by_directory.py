from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import IdentityError, RecordError
from nvrx_watch.layout import NvrxLayout, OwnLayout
from nvrx_watch.resolve.by_directory import resolve_run_directory
from nvrx_watch.resolve.watched import Account
from tests.unit.ops.conftest import ChainOnDisk, World


def test_a_run_directory_needs_no_scheduler(chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chain.run.path.parent)
    watched = resolve_run_directory(Path(chain.run.path.name))
    assert watched.layout == OwnLayout(run_directory=chain.run.path, chain_id="c0ffee", owner_uid=os.getuid())
    assert (watched.subject.key, watched.asked_job_id) == ("c0ffee", None)


def test_the_newer_chain_of_a_directory_is_watched_by_it(world: World, chain: ChainOnDisk) -> None:
    world.make_chain(chain.run.path, chain_id="newer")
    assert resolve_run_directory(chain.run.path).subject.chain_id == "newer"


def test_a_directory_with_neither_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no chain was submitted"):
        resolve_run_directory(tmp_path)
    with pytest.raises(RecordError):
        resolve_run_directory(tmp_path / "absent")


def test_a_manifest_in_the_name_of_a_user_with_another_uid_is_refused(chain: ChainOnDisk) -> None:
    with pytest.raises(IdentityError, match="alice"):
        resolve_run_directory(chain.run.path, find_account=lambda user: Account(uid=os.getuid() + 7, home="/"))


@pytest.mark.parametrize("account", [None, Account(uid=os.getuid(), home="/")])
def test_whether_the_user_database_shows_the_owner_is_told(chain: ChainOnDisk, account: Account | None) -> None:
    watched = resolve_run_directory(chain.run.path, find_account=lambda user: account)
    assert watched.subject.is_user_shown is (account is not None)


def test_a_work_directory_of_nvrx_is_watched_without_a_manifest(tmp_path: Path) -> None:
    work = tmp_path / "w [1] & #"
    cycles = work / "nvrx" / "8" / "cycle_infos"
    cycles.mkdir(parents=True)
    (cycles / "cycle_info.8.0.0").write_text("{}")
    watched = resolve_run_directory(work)
    layout = watched.layout
    assert isinstance(layout, NvrxLayout)
    assert layout.cycle_info_glob is not None
    assert list(Path("/").glob(layout.cycle_info_glob[1:])) == [cycles / "cycle_info.8.0.0"]
    assert layout.iteration_file == work / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert (layout.work_directory, layout.owner_uid) == (work, os.getuid())
    assert (watched.subject.key, watched.subject.is_ours) == (f"directory:{work}", False)
