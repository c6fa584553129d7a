"""Where a chain's files lie: in a run directory of ours, or in the directories that NVRx's own example uses. Pure."""

from __future__ import annotations

from pathlib import Path

import msgspec

ARRAY_JOB_WILDCARD = "*"
"""Stands for the array job id in a cycle-info glob."""


class OwnLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory of nvrx-chain (docs/protocol.md). Files of anybody but `owner_uid` and root are not believed."""

    run_directory: Path
    chain_id: str
    owner_uid: int


class NvrxLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of a chain that nvrx-chain did not submit.

    `cycle_info_glob` is absolute and has one `*` where the array job id stands, e.g.
    `/w/nvrx/*/cycle_infos/cycle_info.*`; None when no cycle records were found. `owner_uid` None: unknown.
    """

    cycle_info_glob: str | None
    iteration_file: Path | None
    owner_uid: int | None
    work_directory: Path | None = None


Layout = OwnLayout | NvrxLayout
