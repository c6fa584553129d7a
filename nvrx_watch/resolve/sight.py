"""Whether a chain was not found, or could not be looked at: a wrong word, or a blind watcher.

Touches: a file that somebody else could not read, once more.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

from nvrx_chain.errors import NvrxError, RecordError, SlurmError, UsageError
from nvrx_watch.hang_guard import Hangs

_NAMES_NOTHING = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO}
)
"""What the system says to a path that leads to no file, today and tomorrow. All else may pass."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_blind(error: NvrxError) -> bool:
    """Whether the error says that something could not be looked at: it may be well, and another try may see it."""
    if isinstance(error, UsageError):
        # Also for a file of settings that may not be read: nothing was to be watched yet.
        return False
    return isinstance(error, SlurmError | Hangs) or (
        isinstance(error.__cause__, OSError) and error.__cause__.errno not in _NAMES_NOTHING
    )


def raise_as_seen(error: RecordError, path: Path) -> NoReturn:
    """Raise the error; where that is why the record was not read, with what the system says to `path` as its cause."""
    said = _try_to_read(path)
    if said is None:
        raise error
    hint = error.hint or "it may be well; it cannot be looked at now"
    raise RecordError(error.message, part=error.part, hint=hint) from said


def _try_to_read(path: Path) -> OSError | None:
    """Why not a byte of it can be read; None when one can, or when it is no file to read from."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.read(descriptor, 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error if error.errno not in _NAMES_NOTHING else None
    return None
