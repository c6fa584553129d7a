"""What may stand in the place of a file: any bytes, records with hostile values, and what is no file at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = "[" * 5000 + "]" * 5000
_DEEP_MARK, _HUGE_MARK = "a deep value", "a huge number"
_NUMBERS = [0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 0.5, -0.5, 1e308, 1e-308]
_TIMES = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "2286-11-20T17:46:39Z",
    "2026-03-01T12:00:00",
    "2026-02-30T12:00:00Z",
    "2026-03-01T12:00:00+99:99",
    "1e400",
    "NaN",
    "Z",
]
_PATHS = [
    "../../../../etc/passwd",
    "..",
    "/",
    "/dev/zero",
    "/dev/full",
    "/proc/self/mem",
    "/nowhere/at all",
    "a\0b",
    "x/" * 3000,
]
_TEXTS = [
    "",
    " ",
    "\n",
    "\x1b[2J\x1b]0;gone\x07",
    "\x9b31m",
    "two\nlines\r\nof\u2028text\u2029here\x85",
    "\u202egnitsop",
    "\ud800",
    "läuft ☃ 🧨",
    "; rm -rf ~ #",
    "$(reboot)`reboot`",
    "%s%n{0}",
    "n[1-99999]",
    "n[1-999999999]",
    "n[0001-9]",
    "n[",
    "1002_0",
    "1002_[0-5]",
    "nvrx-chain:chain-of-tests/3",
    "another",
    "no_restart",
    "failed",
    "x" * 70_000,
]
Place = tuple[Any, ...]
"""The keys and positions that lead to a value."""

_OTHERS = [None, True, False, [], {}, [[]], {"": {}}, _DEEP_MARK, _HUGE_MARK, float("nan"), float("inf"), -float("inf")]


class Hostile:
    """Draws what stands in the place of files. `job_ids`: the chain's, and those of others in the same queue."""

    def __init__(self, all_files: list[bytes], job_ids: list[int]) -> None:
        ids = [*job_ids, *map(str, job_ids)]
        anything = st.sampled_from([*_NUMBERS, *_TIMES, *_PATHS, *_TEXTS, *_OTHERS, *ids])
        self._fitting = (
            (("job_id", "job_ids"), st.sampled_from(job_ids) | anything),
            (("_at", "_time", "since"), st.sampled_from(_TIMES) | anything),
            (("directory", "file", "log_file"), st.sampled_from(_PATHS) | anything),
        )
        self._anything = anything
        self._raw = st.one_of(
            st.none(),
            st.binary(max_size=300),
            st.sampled_from(all_files),
            st.sampled_from([b"[" * 100_000, b"9" * 400, b"-1", b"1e9", b"\xff\xfe", b"{}" * 3, b" " * 2_000_000]),
            anything.map(_encode),
        )

    def content(self, original: bytes) -> st.SearchStrategy[bytes | None]:
        """Something in the place of a file; None for nothing at all."""
        cut = st.tuples(st.integers(0, len(original)), st.binary(max_size=20)).map(lambda at: original[: at[0]] + at[1])
        record = _decode(original)
        if not isinstance(record, dict):
            return self._raw | cut
        changed = st.lists(self._change(_places(record)), min_size=1, max_size=3).map(
            lambda changes: _encode(_changed(record, changes))
        )
        # Well-formed records get furthest: what is no JSON ends in the first line of the reader.
        return st.one_of(changed, changed, changed, cut, self._raw)

    def _change(self, places: list[Place]) -> st.SearchStrategy[tuple[Place, Any]]:
        return st.sampled_from(places).flatmap(lambda place: st.tuples(st.just(place), self._values(place)))

    def _values(self, place: Place) -> st.SearchStrategy[Any]:
        key = next((key for key in reversed(place) if isinstance(key, str)), "")
        return next((values for ends, values in self._fitting if key.endswith(ends)), self._anything)


def put_odd_thing(path: Path, kind: str) -> None:
    """What is no regular file, or one that no reader may read to its end."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name("away"))
    else:
        path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    else:
        path.symlink_to({"loop": path, "zero": "/dev/zero", "dangling": "/nowhere/at all", "root": "/"}[kind])


ODD_THINGS = ("fifo", "directory", "sparse", "loop", "zero", "dangling", "root")


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _encode(value: object) -> bytes:
    text = json.dumps(value)
    return text.replace(f'"{_DEEP_MARK}"', DEEP).replace(f'"{_HUGE_MARK}"', "1" + "0" * 400).encode()


def _places(value: Any, before: Place = ()) -> list[Place]:
    """The way to each value in a record, those of whole tables included."""
    found = [before] if before else []
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += _places(value[key], (*before, key))
    return found


def _changed(record: Any, changes: list[tuple[Place, Any]]) -> Any:
    changed = json.loads(json.dumps(record))
    for place, value in changes:
        parent = changed
        for key in place[:-1]:
            parent = parent[key] if _has(parent, key) else {}
        if _has(parent, place[-1]):
            parent[place[-1]] = value
    return changed


def _has(parent: Any, key: Any) -> bool:
    if isinstance(parent, dict):
        return key in parent
    return isinstance(parent, list) and isinstance(key, int) and key < len(parent)
