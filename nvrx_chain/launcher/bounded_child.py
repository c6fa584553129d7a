"""Becomes the program in its arguments, after it has asked the kernel to kill it when the launcher dies.

The program gets the signals as a shell would give them: blocked ones of the launcher, those that nohup had it ignore,
and SIGPIPE that every Python ignores, would make its pipelines and time-outs hang.

Started as `python -I -S bounded_child.py PARENT DESCRIPTOR PROGRAM...`, never imported. Whether the program could be
started is told on the descriptor: nothing for yes, else the number of the error. Touches: prctl(2).
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

parent, descriptor = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
    # It died before the line above: no signal will come any more.
    os._exit(1)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
os.set_inheritable(descriptor, False)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    os.write(descriptor, str(error.errno).encode())
    os._exit(127)
