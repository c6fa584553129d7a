"""What only the owner of a chain may read: values of --export, words of the workload that look like secrets. Pure."""

from __future__ import annotations

from nvrx_chain.masking import mask_words
from nvrx_chain.records.manifest import ExportMode, PrivateSettings
from nvrx_chain.submit.config import ChainConfig


def private_settings(config: ChainConfig, slurm_directory: str | None) -> PrivateSettings | None:
    """What goes into the private file; None when there is nothing to keep.

    `slurm_directory` is for a run-task without the caller's PATH, which must find Slurm's programs all the same.
    """
    settings = PrivateSettings(
        chain_id=config.chain_id,
        variables=dict(config.export.variables),
        workload=_unless_masked(config.workload.words),
        launcher_command=_unless_masked(config.launcher.command),
        slurm_directory=slurm_directory if config.export.mode is ExportMode.NONE else None,
    )
    return None if settings == PrivateSettings(chain_id=config.chain_id) else settings


def _unless_masked(words: tuple[str, ...]) -> tuple[str, ...] | None:
    return words if mask_words(words) != words else None
