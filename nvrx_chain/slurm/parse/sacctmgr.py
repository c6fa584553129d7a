"""sacctmgr: how many jobs the associations of a user and the QOS let wait and run. Pure.

`show assoc` prints limits inherited from a parent as the association's own. An empty cell is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvrx_chain.slurm.model import AssociationLimit
from nvrx_chain.slurm.parse.values import parse_number

_ASSOCIATION = ("Account", "Partition", "DefaultQOS", "MaxSubmitJobs", "GrpSubmitJobs")
_QOS = ("Name", "MaxSubmitJobsPerUser", "GrpSubmitJobs")


def association_arguments(user: str) -> tuple[str, ...]:
    """What sacctmgr is asked about the associations of a user."""
    return ("--noheader", "--parsable2", "show", "assoc", "where", f"user={user}", f"format={','.join(_ASSOCIATION)}")


def qos_arguments() -> tuple[str, ...]:
    """What sacctmgr is asked about every QOS."""
    return ("--noheader", "--parsable2", "show", "qos", f"format={','.join(_QOS)}")


def parse_associations(text: str) -> tuple[AssociationLimit, ...]:
    """Raises ValueError for a line that is none."""
    found = []
    for cells in _rows(text, len(_ASSOCIATION)):
        account, partition, qos, own, group = cells
        found.append(
            AssociationLimit(account=account, partition=partition, default_qos=qos, max_submit=_smaller(own, group))
        )
    return tuple(found)


def parse_qos(text: str) -> Mapping[str, int | None]:
    """The limit of each QOS by name. Raises ValueError for a line that is none."""
    return {name: _smaller(own, group) for name, own, group in _rows(text, len(_QOS))}


def _rows(text: str, width: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.split("\n") if line.strip()]
    for row in rows:
        if len(row) != width:
            raise ValueError(f"read limits: {'|'.join(row)[:80]!r} has not {width} cells")
    return rows


def _smaller(*cells: str) -> int | None:
    numbers = [number for number in map(parse_number, cells) if number is not None]
    return min(numbers, default=None)
