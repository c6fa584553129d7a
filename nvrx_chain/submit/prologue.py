"""The prologue of a user: a Bash script that each node sources before its launcher. Touches: that file, bash -n.

It is read once, at submit: what a queued generation sources must not change because somebody edits the original.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.records.files import read_bytes

LARGEST_BYTES = 1 << 18
_CHECK_SECONDS = 10.0


def read_prologue(path: Path | None) -> str | None:
    """Its text; None when there is none. Raises UsageError for one that is not there, or that Bash cannot parse."""
    if path is None:
        return None
    content = read_bytes(path, max_bytes=LARGEST_BYTES)
    if not isinstance(content, bytes):
        why = content.reason if isinstance(content, Unobserved) else "there is no such file"
        raise UsageError(f"reading --prologue {path}: {why}", hint="name a file of Bash that you may read")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"reading --prologue {path}: it is no text in UTF-8", hint="name a file of Bash") from error
    _check_syntax(path, text)
    return text


def _check_syntax(path: Path, text: str) -> None:
    """A prologue with an open quote would fail on every node, hours later."""
    try:
        done = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"checking --prologue {path} with bash -n: {error}", hint="is bash on PATH?") from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(
            f"reading --prologue {path}: bash cannot parse it",
            part=last or None,
            hint="mend it until bash -n is content",
        )
