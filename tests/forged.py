"""Run directories that lie, for tests of what is believed: forged manifests, and what is no file in place of a file.

    victim = read_victim(run_dir)                        # a real chain
    forge(directory, victim, owner=61002)                # a run directory of uid 61002 that names the victim's jobs
    for name, plant in PLANTS.items(): plant(path)       # a FIFO, a link, a directory, ... in place of a file

Giving files away needs root. Touches: the directories that are named.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nvrx_chain.records.chain import ChainFiles, KnownGeneration
from nvrx_chain.records.files import encode_record, read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, SubmissionId, SubmissionIntent
from nvrx_chain.slurm.identity import format_comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """The chain whose jobs a forger is after: all of it can be seen in the queue by everybody."""

    manifest: ChainManifest
    generations: tuple[KnownGeneration, ...]


def read_victim(run_dir: Path) -> Victim:
    """A chain as its own files tell it."""
    run = RunDirectory(run_dir)
    manifest = read_record(run.manifest, ChainManifest)
    assert isinstance(manifest, ChainManifest), manifest
    return Victim(manifest=manifest, generations=ChainFiles(run, manifest.chain_id).generations())


def forge(directory: Path, victim: Victim, *, owner: int, **claims: object) -> Path:
    """A run directory that belongs to `owner` and names the victim's chain, jobs and submit times.

    `claims` replace fields of the manifest, e.g. user="mallory", uid=61002.
    """
    run = RunDirectory(directory)
    for path in (run.path, run.submissions, run.generations, run.slurm_logs, run.history):
        path.mkdir(parents=True, exist_ok=True)
    manifest = msgspec.structs.replace(victim.manifest, **{"run_directory": str(directory), **claims})
    run.manifest.write_bytes(encode_record(manifest))
    run.script.write_text("#!/bin/bash\ntouch forged-script-ran\n")
    for generation in victim.generations:
        _submission(run, manifest, generation)
    give(directory, owner)
    return directory


def _submission(run: RunDirectory, manifest: ChainManifest, generation: KnownGeneration) -> None:
    intent = SubmissionIntent(
        chain_id=manifest.chain_id,
        sequence=generation.sequence,
        stamp=format_comment(manifest.chain_id, generation.sequence),
        argv=(str(run.script),),
        intended_at=manifest.submitted_at,
    )
    record = SubmissionId(
        chain_id=manifest.chain_id,
        sequence=generation.sequence,
        array_job_id=generation.array_job_id,
        cluster=manifest.cluster,
        submitted_at=generation.submitted_at,
        adopted=False,
        recorded_at=manifest.submitted_at,
    )
    run.intent(generation.sequence).write_bytes(encode_record(intent))
    run.submission_id(generation.sequence).write_bytes(encode_record(record))


def give(directory: Path, uid: int) -> None:
    """Make a directory and all below it somebody's."""
    for place, directories, files in os.walk(directory):
        for name in ("", *directories, *files):
            os.chown(Path(place, name), uid, uid, follow_symlinks=False)


# In place of a file


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path) -> None:
    path.mkdir()


def _link_to_a_file(path: Path) -> None:
    target = path.with_name(f".{path.name}.elsewhere")
    target.write_text("{}")
    path.symlink_to(target)


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _garbage(path: Path) -> None:
    path.write_bytes(b"\0\xff{[" * 100)


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _too_large(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 33)


PLANTS: Mapping[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "directory": _directory,
    "link to a file": _link_to_a_file,
    "link to a device": _link_to_a_device,
    "dangling link": _dangling_link,
    "garbage": _garbage,
    "deep nesting": _deep,
    "too large": _too_large,
}


def put_in_place(path: Path, plant: str) -> None:
    """Replace whatever is at `path` by a plant."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    PLANTS[plant](path)
