"""--container-image and --container-mounts: what is mounted where, and what has to be whatever the user lists. Pure.

The syntax is that of pyxis: mounts are SRC[:DST[:FLAGS]] with commas between. A path with a comma or a colon cannot be
said in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Container
from nvrx_chain.submit.settings import Settings

_FLAGS = re.compile(r"[A-Za-z0-9+=._-]+", re.ASCII)
_SPACE = re.compile(r"\s")
_OF_THE_IMAGE = frozenset({"/", "/bin", "/lib", "/lib64", "/sbin", "/usr", "/usr/local"})
"""Where a container has its own system: a mount over one of these would break it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount as it was listed."""

    source: str
    target: str
    flags: str | None = None

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read SRC[:DST[:FLAGS]]. Raises UsageError."""
        source, colon, rest = text.partition(":")
        target, _, flags = rest.partition(":") if colon else (source, "", "")
        are_paths = source.startswith("/") and target.startswith("/")
        if not are_paths or text.endswith(":") or (flags and not _FLAGS.fullmatch(flags)):
            raise UsageError(
                f"reading --container-mounts: {text!r} is no mount",
                hint="SRC[:DST[:FLAGS]] with absolute paths and commas between: /data,/home/me/code:/code:ro",
            )
        return cls(source=source, target=target, flags=flags or None)

    def __str__(self) -> str:
        return ":".join((self.source, self.target, *([self.flags] if self.flags else [])))


def build_container(
    settings: Settings, *, directory: Path, run_directory: Path, own_places: Sequence[str], useful: Sequence[str]
) -> Container | None:
    """The container that was asked for. `own_places` hold nvrx-chain and its interpreter.

    `useful` directories are mounted when the user listed nothing at all; an empty list means that they are not.
    """
    image = settings.text("container-image")
    listed = settings.text("container-mounts")
    if image is None:
        if listed:
            raise UsageError("reading --container-mounts: there is no container", hint="give --container-image too")
        return None
    needed = _outermost([place for place in (str(run_directory), *own_places) if place not in _OF_THE_IMAGE])
    theirs = [Mount.parse(text) for text in listed.split(",")] if listed else []
    if not settings.given("container-mounts"):
        # Not what lies in the run directory: it comes with it, and may have to be made first.
        theirs = [_same(place) for place in _outermost((*needed, *useful)) if place not in needed]
    # Last, so that they lie on top of a wider mount that may be read-only.
    mounts = (*theirs, *map(_same, needed))
    return Container(image=_image(image, directory), mounts=tuple(dict.fromkeys(map(str, mounts))))


def _same(place: str) -> Mount:
    if "," in place or ":" in place:
        raise UsageError(
            f"mounting {place} in the container: a comma or a colon in the path",
            hint="pyxis separates mounts and their parts by these; choose another directory",
        )
    return Mount(source=place, target=place)


def _outermost(places: Sequence[str]) -> tuple[str, ...]:
    """Without those that lie in another one of them."""
    distinct = tuple(dict.fromkeys(places))
    return tuple(
        place
        for place in distinct
        if not any(PurePosixPath(place).is_relative_to(other) for other in distinct if other != place)
    )


def _image(text: str, directory: Path) -> str:
    if _SPACE.search(text) and not text.startswith(("/", ".", "~")):
        raise UsageError(
            "reading --container-image: a space in the name of an image",
            part=text,
            hint="a file is named by a path with / in front; quote it once for the shell, not twice",
        )
    if text.startswith(("./", "../", "~")):
        return os.path.normpath(directory / os.path.expanduser(text))
    return text


def image_file(container: Container) -> str | None:
    """The image's file, None for one of a registry."""
    return container.image if container.image.startswith("/") else None


def parse_mounts(container: Container) -> tuple[Mount, ...]:
    return tuple(Mount.parse(text) for text in container.mounts)


def is_mounted(container: Container, path: str) -> bool:
    """Whether a path of this machine is in the container under the same name."""
    return any(
        mount.source == mount.target and PurePosixPath(path).is_relative_to(mount.target)
        for mount in parse_mounts(container)
    )


def hides_the_image(place: str) -> bool:
    """Whether the container has its own system there, so that it can never be mounted."""
    return place in _OF_THE_IMAGE
