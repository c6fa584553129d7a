#!/bin/sh
# Becomes slurmstepd, after asking the kernel to give it the orphans of its step (prctl 36, PR_SET_CHILD_SUBREAPER, kept
# across exec). Without cgroups Slurm knows a step's processes as descendants of slurmstepd: an orphan would outlive the
# step, or keep it completing for a minute. Python ignores SIGPIPE (13) and SIGXFSZ (25), which jobs would inherit.
exec '/opt/it is python/bin/python3' -I -S -c '
import ctypes, os, signal, sys
signal.signal(13, signal.SIG_DFL)
signal.signal(25, signal.SIG_DFL)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
' /usr/sbin/slurmstepd "$@"
