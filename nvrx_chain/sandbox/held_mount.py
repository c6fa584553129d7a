"""Holds one mount: whoever opens, reads or lists anything through it waits until this process ends. Run by path.

    python -I -S held_mount.py SECONDS PATH      (0 seconds: until it is killed)

The kernel asks a fanotify(7) listener for permission before each open and each read, and this one never answers. A
waiting process is in state D, and nothing but SIGKILL ends it: a hard NFS mount whose server is silent. When the
listener goes, whatever waited goes on. What is not asked for does not wait: writes to a file that was open before (a
client of NFS takes those into memory as well), and stat, rename, link, unlink and mkdir by themselves.
Touches: the mount that PATH lies on.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

_AT_FDCWD = -100
# fanotify(7): FAN_CLASS_CONTENT | FAN_CLOEXEC | FAN_UNLIMITED_QUEUE
_INIT_FLAGS = 0x4 | 0x1 | 0x10
# FAN_MARK_ADD | FAN_MARK_MOUNT
_MARK_FLAGS = 0x1 | 0x10
# FAN_OPEN_PERM | FAN_ACCESS_PERM | FAN_ONDIR
_EVENTS = 0x10000 | 0x20000 | 0x40000000


def hold(path: str) -> None:
    """From now on, and until this process ends, the mount of `path` waits. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.fanotify_init(_INIT_FLAGS, os.O_RDONLY)
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "fanotify_init")
    if libc.fanotify_mark(listener, _MARK_FLAGS, ctypes.c_uint64(_EVENTS), _AT_FDCWD, os.fsencode(path)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


if __name__ == "__main__":
    hold(sys.argv[2])
    print(f"holding {sys.argv[2]}", flush=True)
    time.sleep(float(sys.argv[1]) or float(2**31))
