"""A chain by its run directory: whose it is, and that its files are that user's. Touches: the directory, reads only."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nvrx_chain.errors import IdentityError, RecordError
from nvrx_chain.records.chain import ChainFiles, open_chain
from nvrx_chain.records.files import list_names
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest
from nvrx_chain.records.near import CHAINS_DIRECTORY
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.user import user_name
from nvrx_watch.layout import NvrxLayout, OwnLayout
from nvrx_watch.model import Subject
from nvrx_watch.resolve.sight import raise_as_seen
from nvrx_watch.resolve.watched import NVRX_ITERATION, Account, Watched, cycles_below, find_account, shown

log = logging.getLogger(__name__)

_MOST_LOOKED_AT = 1000
_LARGEST_UID = (1 << 32) - 2

FindAccount = Callable[[str], Account | None]


class OwnChain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of nvrx-chain in its run directory. Its manifest is its user's own."""

    files: ChainFiles
    manifest: ChainManifest
    is_user_shown: bool = True

    @property
    def path(self) -> Path:
        return self.files.directory.path

    def has_on_record(self, array_job_id: int) -> bool:
        """Whether a submission of this chain became that array job."""
        return any(known.array_job_id == array_job_id for known in self.files.generations())

    def watched(self, asked_job_id: int | None) -> Watched:
        manifest = self.manifest
        return Watched(
            subject=Subject(
                key=manifest.chain_id,
                name=manifest.job_name,
                user=manifest.user,
                uid=manifest.uid,
                cluster=manifest.cluster,
                chain_id=manifest.chain_id,
                run_directory=self.path,
                manifest=manifest,
                max_restarts=manifest.launcher.max_restarts,
                is_user_shown=self.is_user_shown,
            ),
            layout=OwnLayout(run_directory=self.path, chain_id=manifest.chain_id, owner_uid=manifest.uid),
            asked_job_id=asked_job_id,
        )


def resolve_run_directory(path: Path, *, find_account: FindAccount = find_account) -> Watched:
    """The chain in a directory: one of ours, or one of NVRx's own layout (`nvrx/<array job>/cycle_infos`).

    Raises RecordError when there is none or it cannot be read, IdentityError when its files are not its user's.
    """
    directory = Path(os.path.abspath(path))
    if not os.path.lexists(RunDirectory(directory).manifest) and os.path.isdir(directory / "nvrx"):
        return _nvrx_directory(directory)
    return open_own(directory, find_account).watched(None)


def open_own(directory: Path, find_account: FindAccount) -> OwnChain:
    """The chain whose manifest lies there. Raises RecordError, IdentityError."""
    what = f"reading the chain in {shown(str(directory))}"
    claimed = _open(directory, None).manifest
    if not 0 <= claimed.uid <= _LARGEST_UID or parse_comment(f"nvrx-chain:{claimed.chain_id}") is None:
        raise RecordError(what, part=f"{RunDirectory(directory).manifest.name} is not one that nvrx-chain writes")
    account = find_account(claimed.user)
    if account is not None and account.uid != claimed.uid:
        # Whoever may write into a directory can write a manifest in the name of another user.
        raise IdentityError(
            what, part=f"it names the user {shown(claimed.user)}, who is not uid {claimed.uid}", hint="not believed"
        )
    chain = _open(directory, claimed.uid)
    manifest = chain.manifest
    if (manifest.chain_id, manifest.uid, manifest.user) != (claimed.chain_id, claimed.uid, claimed.user):
        raise RecordError(what, part="its manifest changed while it was read", hint="try again")
    return replace(chain, is_user_shown=account is not None)


def _open(directory: Path, owner_uid: int | None) -> OwnChain:
    run = RunDirectory(directory)
    try:
        files = open_chain(run, owner_uid=owner_uid)
        return OwnChain(files=files, manifest=files.manifest())
    except RecordError as error:
        # "There is none" and "the file server does not answer" end the command with different codes.
        raise_as_seen(error, run.manifest)


def find_on_record(array_job_id: int, here: Path, find_account: FindAccount) -> list[OwnChain]:
    """The chains in a directory and its nvrx-chains/ that have the array job on record."""
    return [chain for chain in _chains_near(here, find_account) if chain.has_on_record(array_job_id)]


def _chains_near(here: Path, find_account: FindAccount) -> list[OwnChain]:
    below = here / CHAINS_DIRECTORY
    names = list_names(below)
    found = []
    for path in [here, *(below / name for name in (names if isinstance(names, tuple) else ())[:_MOST_LOOKED_AT])]:
        try:
            found.append(open_own(path, find_account))
        except (RecordError, IdentityError) as error:
            log.debug("no chain here: %s", error)
    return found


def _nvrx_directory(directory: Path) -> Watched:
    """A work directory as NVRx's own example lays it out. Its name is that of the directory: no job is known."""
    try:
        uid = directory.stat().st_uid
    except OSError as error:
        raise RecordError(f"reading {shown(str(directory))}", part=error.strerror or str(error)) from error
    return Watched(
        subject=Subject(key=f"directory:{directory}", name=directory.name, user=user_name(uid), uid=uid),
        layout=NvrxLayout(
            cycle_info_glob=cycles_below(str(directory)),
            iteration_file=directory / NVRX_ITERATION,
            owner_uid=uid,
            work_directory=directory,
        ),
        asked_job_id=None,
    )
