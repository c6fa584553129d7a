"""Ctrl-C, a TERM and a lost terminal end a command in the same way: by an exception, so that it cleans up.

Touches: the signal handlers of this process, which are put back.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def raised_as_interrupt() -> Iterator[None]:
    """Within it each of these signals raises KeyboardInterrupt in the main thread."""
    with _handled_by(signal.default_int_handler):
        yield


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within it they are ignored: an impatient second Ctrl-C must not leave half a cluster behind."""
    # A handler and not SIG_IGN, which the programs that end the cluster would inherit.
    with _handled_by(_ignore):
        yield


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


@contextlib.contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    former = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler_before in former.items():
            # None: it was set by something that is not Python, and cannot be put back from here.
            signal.signal(number, handler_before if handler_before is not None else signal.SIG_DFL)
