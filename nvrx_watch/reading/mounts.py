"""On which mount a path lies, by its text alone: whoever touches a path on a hung mount hangs.

Touches: /proc/self/mountinfo.
"""

from __future__ import annotations

import re
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_points(text: str) -> tuple[str, ...]:
    """The mount points in the text of a mountinfo file (proc(5)), the deepest first."""
    fields = [line.split(" ") for line in text.splitlines()]
    points = {_ESCAPED.sub(lambda match: chr(int(match[1], 8)), each[4]) for each in fields if len(each) > 4}
    return tuple(sorted(points, key=len, reverse=True))


def mount_of(path: str, points: tuple[str, ...]) -> str | None:
    """The mount that a path lies on; None for the root file system, which all have. Links are not resolved."""
    for point in points:
        if point != "/" and (path == point or path.startswith(f"{point}/")):
            return point
    return None


def read_mount_points() -> tuple[str, ...]:
    """The mounts of this process; empty when they cannot be told."""
    try:
        return mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ()
