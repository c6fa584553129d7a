"""What a wrapper must react to, and the commands of run-task that make it so. Touches: standard input."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from nvrx_chain.clock import Clock

log = logging.getLogger(__name__)

SAVE = b"save"
STOP = b"stop"
EXCUSED = b"excused"
STANDARD_INPUT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something the wrapper must react to: ended, save, excused, stop or kill.

    `gentle` leaves the launcher the drain time to end by itself first; `at` is the time (monotonic) of what is excused.
    """

    kind: str
    reason: str
    gentle: bool = False
    at: float = 0.0


class Commands:
    """Reads what run-task says; `put` takes each as an event. For a thread of its own."""

    def __init__(self, clock: Clock, put: Callable[[Event], None]) -> None:
        self._clock = clock
        self._put = put

    def read(self) -> None:
        """Commands of run-task, one word a line, on standard input."""
        buffered = b""
        while True:
            chunk = self._read_chunk()
            if not chunk:
                self._put(Event(kind="stop", reason="run-task is gone"))
                return
            *words, buffered = (buffered + chunk).split(b"\n")
            for word in words:
                if word == SAVE:
                    self._put(Event(kind="save", reason="the time limit is near"))
                elif word.startswith(EXCUSED):
                    self._excuse(word)
                elif word.startswith(STOP):
                    gentle = word.endswith(b" gentle")
                    self._put(Event(kind="stop", reason="run-task said stop", gentle=gentle))

    def _excuse(self, word: bytes) -> None:
        """`excused SECONDS`: so old is what run-task knows. As of now it would buy the ranks that time twice."""
        try:
            at = self._clock.monotonic() - max(0.0, float(word.removeprefix(EXCUSED)))
        except ValueError:
            log.warning("an excuse without its age is none word=%r", word)
            return
        self._put(Event(kind="excused", reason="the run directory stalls for everybody", at=at))

    def _read_chunk(self) -> bytes:
        try:
            return os.read(STANDARD_INPUT, 4096)
        except OSError as error:
            # As good as its end: nobody can tell us anything any more.
            log.warning("standard input cannot be read error=%s", error)
            return b""
