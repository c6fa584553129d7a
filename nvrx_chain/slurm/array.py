"""Array indices as Slurm prints and takes them: `2-4%2`, `[0-3,5,9:2%4]`, `N/A`, and lists that it cut short. Pure.

squeue cuts a list at 64 characters and closes no bracket; the last item may then be half a number. Such a list is
"at least these, more unknown" and never a count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# slurm.conf(5): MaxArraySize is at most 4000001, so a larger index is no index.
_LARGEST_INDEX = 4_000_000
NO_ARRAY_TASK = 4_294_967_294
"""What Slurm has in the place of an index for the rest of an array, which is no task (slurm.h: NO_VAL)."""
_ITEM = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?(?::(\d{1,7}))?", re.ASCII)
_TASK_SPEC = re.compile(r"\d{1,18}(?:_(?:\d{1,9}|\[[\d,:-]{1,1000}\]))?", re.ASCII)
_SPEC = re.compile(r"(?:\d+_)?(?P<open>\[?)(?P<items>[^\[\]%]*)(?:%(?P<throttle>\d*))?(?P<close>\]?)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """The indices, in order. `complete` False: at least these, more unknown. `throttle` None: no limit."""

    indices: tuple[int, ...]
    throttle: int | None
    complete: bool


def parse_array_spec(text: str) -> ArraySpec | None:
    """Read the task part of an array job, with or without its `123_` and brackets; None for `N/A` (no array).

    Text that is no list at all is an incomplete list of nothing, never "no tasks".
    """
    stripped = text.strip()
    if stripped in ("N/A", ""):
        return None
    items, marked_cut, _rest = stripped.partition("...")
    match = _SPEC.fullmatch(items)
    if match is None:
        return ArraySpec(indices=(), throttle=None, complete=False)
    cut = bool(marked_cut) or (match["open"] == "[") != (match["close"] == "]")
    words = match["items"].split(",")
    if cut:
        # The last number may be the first digits of a longer one.
        words = words[:-1]
    ranges = [_parse_item(word) for word in words]
    readable = [found for found in ranges if found is not None]
    throttle = int(match["throttle"][:8]) if match["throttle"] else 0
    return ArraySpec(
        indices=tuple(sorted({index for found in readable for index in found})),
        throttle=throttle or None,
        complete=not cut and len(readable) == len(ranges),
    )


def render_array_spec(indices: Iterable[int], throttle: int | None = None) -> str:
    """The shortest list that sbatch takes for these indices, e.g. `0-3,7%2`. Raises ValueError for none at all."""
    ordered = sorted(set(indices))
    if not ordered or ordered[0] < 0:
        raise ValueError(f"no array indices: {ordered[:1]}")
    runs: list[list[int]] = []
    for index in ordered:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{text}%{throttle}" if throttle else text


def _parse_item(word: str) -> range | None:
    match = _ITEM.fullmatch(word.strip())
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    step = int(match[3]) if match[3] else 1
    if last < first or last > _LARGEST_INDEX or step < 1:
        return None
    return range(first, last + 1, step)


def is_task_spec(text: str) -> bool:
    """Whether the text names jobs or array tasks by id alone: `123`, `123_4`, `123_[2-4,7]`."""
    return _TASK_SPEC.fullmatch(text) is not None
