"""Acting on the chain of another user: root becomes that user first, so that nothing can happen that he could not do.

Whatever a run directory claims, and wherever its links lead, Slurm and the file system then judge every call by the
rights of the chain's user; and what is written is his, as his tasks will believe it. Touches: the user database, the
ids of this process.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
from collections.abc import Callable

from nvrx_chain.errors import IdentityError
from nvrx_chain.ops.chain import OpenChain, Operator
from nvrx_chain.ops.settle import Desk

FLAG = "--act-as-operator"

Become = Callable[[str, int, int], None]
"""(name, uid, gid): take on a user for good. Raises OSError."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user as this machine knows him."""

    user: str
    uid: int
    gid: int


def find_account(user: str) -> Account | None:
    """The account of a user name; None when this machine knows none."""
    try:
        entry = pwd.getpwnam(user)
    except (KeyError, ValueError):
        return None
    return Account(user=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def become(user: str, uid: int, gid: int) -> None:
    """Take on a user, his groups and nothing of what this process was. Raises OSError."""
    os.initgroups(user, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def act_for_owner(
    chain: OpenChain,
    desk: Desk,
    *,
    find_account: Callable[[str], Account | None] = find_account,
    become: Become = become,
) -> Desk:
    """A desk with the rights of the chain's user, for root who asked for it. Raises IdentityError.

    The chain's own user gets the desk as it is.
    """
    manifest, operator = chain.manifest, desk.operator
    if operator.uid == manifest.uid:
        return desk
    what = f"acting on chain {manifest.job_name}"
    if operator.uid != 0:
        raise IdentityError(
            what,
            part=f"it belongs to {manifest.user}, and this is {operator.user}",
            hint=f"{FLAG} is for root: nobody else can write what the tasks of the chain believe",
        )
    account = find_account(manifest.user)
    if account is None or account.uid != manifest.uid:
        # A name that the user database does not give to the owner of the file is a name that somebody chose.
        raise IdentityError(
            what,
            part=f"its manifest names {manifest.user}, who is not known here as uid {manifest.uid}",
            hint="nothing was done; let its user do it, or a machine that knows the user",
        )
    try:
        become(account.user, account.uid, account.gid)
    except OSError as error:
        raise IdentityError(
            what,
            part=f"becoming {account.user}: {error.strerror or error}",
            hint="nothing was done; root of a container or of a user namespace cannot: do it on the host",
        ) from error
    acting = Operator(user=account.user, uid=account.uid, host=operator.host, on_behalf=operator.user)
    return dataclasses.replace(desk, operator=acting)
