"""The paths that a chain needs on its nodes, and whether the nodes see them. Touches: the file system, mountinfo."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import nvrx_chain
from nvrx_chain.errors import Unobserved
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.container import image_file, parse_mounts
from nvrx_chain.submit.mounts import FileSystem, Reach, read_file_system

_INSTALLED = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/nix", "/cvmfs")
"""Where each node has what its image, or a package manager, put there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A path that nodes need. `what` names it for people, `option` is how one chooses another."""

    what: str
    path: str
    option: str
    exists: bool
    file_system: FileSystem | Unobserved

    @property
    def is_local(self) -> bool:
        """Whether only this machine sees it, as far as one can tell from here."""
        return isinstance(self.file_system, FileSystem) and self.file_system.reach is not Reach.SHARED


def own_places() -> tuple[str, ...]:
    """Directories of this interpreter and of nvrx-chain, as they are named and as they really are."""
    package = Path(nvrx_chain.__file__).parent
    named = (sys.prefix, sys.base_prefix, *(() if package.is_relative_to(sys.prefix) else (str(package.parent),)))
    return tuple(dict.fromkeys((*named, *(os.path.realpath(place) for place in named))))


def read_places(config: ChainConfig) -> tuple[Place, ...]:
    """Everything but the run directory, which is looked at by itself: it may not exist yet."""
    package = str(Path(nvrx_chain.__file__).parent)
    wanted = [("nvrx-chain's interpreter", config.interpreter, "install nvrx-chain on a shared file system")]
    if os.path.realpath(config.interpreter) != config.interpreter:
        wanted.append(("what nvrx-chain's interpreter links to", os.path.realpath(config.interpreter), wanted[0][2]))
    wanted.append(("the package nvrx_chain", package, "install it on a shared file system"))
    container = config.container
    if container is not None:
        mounts = [mount.source for mount in parse_mounts(container) if mount.source != str(config.run_directory)]
        wanted += [("the container mount", source, "make it, or correct --container-mounts") for source in mounts]
        image = image_file(container)
        wanted += [("the container image", image, "correct --container-image")] if image else []
    elif "/" in config.launcher.python:
        wanted.append(("the launcher's interpreter", config.launcher.python, "name another one with --python"))
    if config.workload.program:
        wanted.append(("the workload", config.workload.program, "move it to a shared file system"))
    return tuple(_look(what, path, option) for what, path, option in dict.fromkeys(wanted))


def _look(what: str, path: str, option: str) -> Place:
    return Place(
        what=what, path=path, option=option, exists=os.path.lexists(path), file_system=read_file_system(Path(path))
    )


def is_installed(path: str) -> bool:
    """Whether it lies where every node has its own copy."""
    return any(PurePosixPath(path).is_relative_to(place) for place in _INSTALLED)
