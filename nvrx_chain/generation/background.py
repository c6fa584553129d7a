"""Work that may hang in Slurm or in a stalled file system, kept out of the loop that steers ranks. Starts threads."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from nvrx_chain.errors import Unobserved

log = logging.getLogger(__name__)

T = TypeVar("T")

Spawn = Callable[[Callable[[], None], str], None]
"""Starts a piece of work under a name, and returns without waiting for it."""


def spawn_thread(work: Callable[[], None], name: str) -> None:
    """In a daemon thread: the process ends without waiting for it."""
    threading.Thread(target=work, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """What a piece of work came to; `Unobserved` when it failed."""

    value: T | Unobserved


class Background(Generic[T]):
    """At most one piece of work at a time; a loop starts it, and takes what it came to when it is there."""

    def __init__(self, spawn: Spawn, name: str) -> None:
        self._spawn = spawn
        self._name = name
        self._busy = False
        self._finished: Finished[T] | None = None

    @property
    def busy(self) -> bool:
        """Work is under way, or what it came to has not been taken yet."""
        return self._busy

    def start(self, work: Callable[[], T]) -> None:
        """Start the work; nothing happens while other work is under way."""
        if self._busy:
            return
        self._busy = True
        self._finished = None
        self._spawn(lambda: self._run(work), self._name)

    def take(self) -> Finished[T] | None:
        """What the work came to, once; None while it is under way."""
        finished = self._finished
        if finished is not None:
            self._finished = None
            self._busy = False
        return finished

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._finished = Finished(work())
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would be waited for without end
            log.error("%s failed\n%s", self._name, traceback.format_exc())
            self._finished = Finished(Unobserved(f"{self._name} failed: {type(error).__name__}: {error}"))
