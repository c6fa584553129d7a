"""Settings of all tests: a slow machine is no failure, and continuous integration runs the same examples each time."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A runner in the background of a shell has them ignored, and so would every process that a test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
