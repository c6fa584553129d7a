"""Becomes the command of a rank that starts from nothing, once the kernel ends it with its launcher.

Started as `python -I -S cold.py PARENT COMMAND...`, never imported. It replaces itself, so nothing of it is left.
Touches: prctl(2).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        # It died before the line above: no signal will come any more.
        os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"starting a rank: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)
