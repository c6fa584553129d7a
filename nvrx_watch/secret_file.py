"""A key or an address in a file of its own: read once, at the start. The secret is in no message.

Touches: that file, reads only.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.records.files import read_bytes
from nvrx_watch.plain_text import plain

LARGEST_BYTES = 4096
"""Keys and addresses have hundreds; a larger file is a wrong one."""

_LONGEST_SHOWN = 200
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class SecretFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds, without the blanks around it. `note`: what its owner should know, None for nothing."""

    text: str
    note: str | None

    def __repr__(self) -> str:
        return "SecretFile(...)"


def read_secret_file(path: Path, flag: str, *, many_lines: bool = False) -> SecretFile:
    """The secret in the file that `flag` names. Raises UsageError; `many_lines`: one secret a line."""
    where = f"reading {flag} {plain(str(path), _LONGEST_SHOWN)}"
    try:
        # Secrets are often linked into place (systemd, Kubernetes); of a loop of links this gives a link of it.
        real = Path(os.path.realpath(path))
        content = read_bytes(real, max_bytes=LARGEST_BYTES)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if content is None:
        raise _no_such_file(path, flag, where)
    if isinstance(content, Unobserved):
        raise UsageError(f"{where}: {plain(content.reason, 2 * _LONGEST_SHOWN)}", hint="put the secret alone into it")
    text = _decode(content, where)
    if not text:
        raise UsageError(f"{where}: it is empty", hint="put the secret alone into it")
    lines = [line.strip() for line in text.splitlines()]
    if not many_lines and len(lines) > 1:
        raise UsageError(f"{where}: it has {len(lines)} lines", hint="put the secret alone into it")
    if not all(line.isprintable() for line in lines):
        raise UsageError(f"{where}: it has characters that no key or address has", hint="was it written as text?")
    return SecretFile(text="\n".join(lines), note=_note(real, where))


def _no_such_file(path: Path, flag: str, where: str) -> UsageError:
    text = str(path)
    if "/" not in text or _ADDRESS.match(text):
        # Somebody may have given the secret itself, and an error ends in logs and mails.
        return UsageError(f"reading {flag}: there is no such file", hint="it takes the path of a file that has it")
    hint = "~ is not expanded here: write the whole path" if text.startswith("~") else None
    return UsageError(f"{where}: there is no such file", hint=hint)


def _decode(content: bytes, where: str) -> str:
    try:
        # Some editors begin a text with a mark that no key begins with.
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        # Not from the error: it quotes the bytes.
        raise UsageError(f"{where}: it is no text in UTF-8", hint="put the secret alone into it") from None


def _note(path: Path, where: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # It was there a moment ago, and what it held is known.
        return None
    return f"{where}: everybody may read it; chmod 600 keeps it a secret" if mode & stat.S_IROTH else None
