"""The chain's private settings as a node reads them: values of --export, and the workload's words in full.

Touches: environment.json of the run directory, reads only.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.launchers.seats import LaunchPlan
from nvrx_chain.records.files import read_record
from nvrx_chain.records.manifest import ChainManifest, PrivateSettings
from nvrx_chain.slurm.command_client import PROGRAMS

log = logging.getLogger(__name__)


def read_private(manifest: ChainManifest) -> PrivateSettings:
    """The settings; empty ones for a chain that has none.

    Raises RecordError when they are not there or cannot be believed: a launcher without its values would fail in a way
    that nobody understands.
    """
    if manifest.private_file is None:
        return PrivateSettings(chain_id=manifest.chain_id)
    path = Path(manifest.private_file)
    found = read_record(path, PrivateSettings, owner_uid=manifest.uid)
    if found is None or isinstance(found, Unobserved):
        why = "it is not there" if found is None else found.reason
        raise RecordError(
            f"reading the values of --export, {path}",
            part=why,
            hint="cancel the chain and submit it again with --resume",
        )
    if found.chain_id != manifest.chain_id:
        raise RecordError(f"reading the values of --export, {path}", part=f"it is of chain {found.chain_id}")
    return found


def read_private_if_any(manifest: ChainManifest) -> PrivateSettings:
    """The same for run-task, which needs little of it: empty when it cannot be read.

    The launcher refuses then, so the generation fails on record, where the brake sees it, and not before that.
    """
    try:
        return read_private(manifest)
    except RecordError as error:
        log.error("%s", error)
        return PrivateSettings(chain_id=manifest.chain_id)


def with_private_words(manifest: ChainManifest, private: PrivateSettings) -> ChainManifest:
    """The manifest with the workload and the launcher command in full."""
    command = private.launcher_command or manifest.launcher.command
    return msgspec.structs.replace(
        manifest,
        workload=manifest.workload if private.workload is None else private.workload,
        launcher=msgspec.structs.replace(manifest.launcher, command=command),
    )


def with_exported(plan: LaunchPlan, private: PrivateSettings) -> LaunchPlan:
    """The launch with the exported values, which never win over what the launcher itself needs."""
    return replace(plan, environment={**private.variables, **plan.environment})


def find_programs(environ: Mapping[str, str], private: PrivateSettings) -> dict[str, str]:
    """Slurm's programs by name, for a node whose PATH lacks some: under --export=NONE it is not the submitter's."""
    directory = private.slurm_directory
    if directory is None:
        return {}
    path = environ.get("PATH", os.defpath)
    return {
        name: os.path.join(directory, name) for name in (*PROGRAMS, "srun") if shutil.which(name, path=path) is None
    }
