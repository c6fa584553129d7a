"""What may stand in the place of a file: any bytes, records with hostile values, and what is no file at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

DEEP = "[" * 5000 + "]" * 5000
_DEEP_MARK, _HUGE_MARK = "a deep value", "a huge number"
_NUMBERS = [0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 0.5, -0.5, 1e308, 1e-308, float("nan")]
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
_RAW = [b"[" * 100_000, b"9" * 400, b"-1", b"1e9", b"\xff\xfe", b"{}" * 3, b" " * 2_000_000]
_IDENTITY = frozenset(
    {"schema", "chain_id", "array_job_id", "array_task_id", "job_id", "attempt_index", "cycle_number", "subject", "key"}
)
"""With these as they were a record is taken for what it was, and all else in it is looked at."""

_OTHERS = [None, True, False, [], {}, [[]], {"": {}}, _DEEP_MARK, _HUGE_MARK, float("nan"), float("inf"), -float("inf")]


class Hostile:
    """What stands in the place of files. `job_ids`: the chain's, and those of others in the same queue."""

    def __init__(self, all_files: list[bytes], job_ids: list[int], random: Random) -> None:
        self._random = random
        self._all_files = all_files
        self._job_ids = job_ids
        self._anything = [*_NUMBERS, *_TIMES, *_PATHS, *_TEXTS, *_OTHERS, *job_ids, *map(str, job_ids)]

    def content(self, original: bytes) -> bytes | None:
        """Something in the place of a file; None for nothing at all."""
        random = self._random
        record = _decode(original)
        # Well-formed records get furthest: what is no JSON ends in the first line of the reader.
        if isinstance(record, dict) and random.random() < 0.75:
            share = random.choice([0.1, 0.3, 0.8])
            is_own = random.random() < 0.7
            return _encode(self._changed(record, share, is_own))
        raw = [
            None,
            random.randbytes(random.randrange(300)),
            original[: random.randrange(len(original) + 1)] + random.randbytes(random.randrange(20)),
            random.choice(self._all_files),
            random.choice(_RAW),
            _encode(random.choice(self._anything)),
        ]
        return random.choice(raw)

    def _changed(self, value: Any, share: float, is_own: bool, key: str = "") -> Any:
        """With a share of its values replaced, most of them by others of their kind: the rest is refused at once."""
        random = self._random
        if is_own and key in _IDENTITY:
            return value
        if random.random() < share / 10:
            return random.choice(self._anything)
        if isinstance(value, dict):
            return {name: self._changed(one, share, is_own, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self._changed(one, share, is_own, key) for one in value] * random.choice([1, 1, 0, 2, 50])
        return random.choice(self._like(value, key)) if random.random() < share else value

    def _like(self, value: Any, key: str) -> list[Any]:
        if key.endswith(("job_id", "job_ids")):
            return [str(one) for one in self._job_ids] if isinstance(value, str) else self._job_ids
        if isinstance(value, bool) or value is None:
            return [True, False, None, "", 0]
        if isinstance(value, int | float):
            return [number for number in _NUMBERS if isinstance(value, float) or isinstance(number, int)]
        if key.endswith(("_at", "_time", "since")):
            return _TIMES
        return _PATHS if key.endswith(("directory", "file")) else _TEXTS


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
