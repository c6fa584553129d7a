"""The sbatch options that a further generation of a chain has from the newest one on record.

What an intent says is given to sbatch, so nothing of it is believed that a submit of this chain would not have written.
Touches: the chain's excluded.json.
"""

from __future__ import annotations

import re
from pathlib import Path

from nvrx_chain.errors import RecordError, Unobserved, UsageError
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, SubmissionIntent
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.passthrough import check_sbatch_arguments
from nvrx_chain.submit.plan import identity_options
from nvrx_chain.submit.site import SITE_OPTIONS

HOLD = "--hold"
_AFTER = re.compile(r",afterany:\d{1,9}\Z", re.ASCII)
_SET_BY_SUBMIT = frozenset(
    {
        "--exclusive",
        "--gpus-per-node",
        "--nodes",
        "--ntasks-per-node",
        "--output",
        "--signal",
        "--time",
        *(f"--{name}" for name in SITE_OPTIONS),
    }
)


def inherit_options(
    files: ChainFiles, manifest: ChainManifest, run: RunDirectory, directory: DirectoryState
) -> tuple[str, ...]:
    """The sbatch options of the newest intent, a hold left out. Raises RecordError for an intent not of a submit.

    What an intent says is given to sbatch, so each word of it must be one that a submit of this chain writes.
    """
    if directory.manifest is None or directory.manifest.chain_id != manifest.chain_id:
        raise RecordError(
            f"extending chain {manifest.job_name}: {run.path} now holds another chain",
            hint="repeat the command: the chain was replaced in the meantime",
        )
    if not directory.intents:
        raise RecordError(
            f"extending chain {manifest.job_name}: it has no submission on record",
            part=str(run.submissions),
            hint="submit it with nvrx-chain submit",
        )
    sequence = max(directory.intents)
    intent = directory.intents[sequence]
    stamp = format_comment(manifest.chain_id, sequence)
    wrong = find_foreign(intent, manifest, stamp)
    if wrong is not None:
        raise RecordError(
            f"extending chain {manifest.job_name}: {run.intent(sequence)} is no submission of it",
            part=wrong,
            hint="move the file away if nobody of yours wrote it",
        )
    options = tuple(_without_after(word) for word in intent.argv[:-1] if word != HOLD)
    return _with_excluded(files, run, options)


def _with_excluded(files: ChainFiles, run: RunDirectory, options: tuple[str, ...]) -> tuple[str, ...]:
    """The options with the nodes that the chain keeps away from by now in the place of those of its submit."""
    excluded = files.look_for_excluded()
    if isinstance(excluded, Unobserved):
        raise RecordError(f"reading the excluded nodes of the chain: {excluded.reason}", hint="mend or move the file")
    if excluded is None:
        return options
    others = tuple(word for word in options if not word.startswith("--exclude="))
    try:
        nodes = fold_nodes(excluded.nodes)
    except ValueError as error:
        raise RecordError(f"reading {run.excluded}", part=str(error), hint="mend or move the file") from error
    return (*others, f"--exclude={nodes}") if nodes else others


def _without_after(word: str) -> str:
    """The first generation may also wait for a job of somebody else, which Slurm soon forgets."""
    return _AFTER.sub("", word) if word.startswith("--dependency=") else word


def find_foreign(intent: SubmissionIntent, manifest: ChainManifest, stamp: str) -> str | None:
    """What in an intent a submit of this chain would not have written; None when there is nothing. Pure."""
    if intent.stamp != stamp:
        return f"its stamp is {intent.stamp!r}, not {stamp!r}"
    script = str(RunDirectory(Path(manifest.run_directory)).script)
    if not intent.argv or intent.argv[-1] != script:
        return f"it does not end with {script}"
    words = [_without_after(word) for word in intent.argv[:-1]]
    identity = identity_options(
        name=manifest.job_name,
        shape=manifest.shape,
        run_directory=manifest.run_directory,
        stamp=stamp,
        export=manifest.export,
    )
    for option in identity:
        if option not in words:
            return f"it lacks {option}"
        # Once: a second one of the same name is looked at below, and refused.
        words.remove(option)
    others = [word for word in words if word != HOLD and word.partition("=")[0] not in _SET_BY_SUBMIT]
    try:
        check_sbatch_arguments(tuple(others))
    except UsageError as error:
        return str(error)
    return None
