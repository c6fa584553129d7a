"""Work that may hang for ever (a dead mount, a resolver, a peer that drips), kept off the thread of a pass.

Starts daemon threads. A thread that is not done in time is abandoned, never joined; while it hangs, whoever asks is
told so and starts no second one, so that a daemon over a dead mount does not collect threads.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from nvrx_chain.errors import NvrxError

T = TypeVar("T")


class Hangs(NvrxError):
    """The work was not done in time, or earlier work of the same kind still hangs."""


class HangGuard:
    """One kind of work. `what` says in messages what is being done, e.g. `saving the state`."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._abandoned: list[concurrent.futures.Future[Any]] = []

    def run(self, work: Callable[[], T], seconds: float, *, late: Callable[[T], object] | None = None) -> T:
        """The result of the work. Raises what it raises, and Hangs when it takes longer than `seconds`.

        `late` gets a result that came after that, to let go of what it holds.
        """
        if self.is_hanging():
            raise Hangs(f"{self._what}: an earlier try still hangs")
        future = start_thread(work, self._what)
        if not is_done_within(future, seconds):
            self._abandoned.append(future)
            if late is not None:
                future.add_done_callback(lambda one: late(one.result()) if one.exception() is None else None)
            raise Hangs(f"{self._what}: not done within {seconds:g} s")
        return future.result()

    def is_hanging(self) -> bool:
        """Whether abandoned work is still under way."""
        self._abandoned = [future for future in self._abandoned if not future.done()]
        return bool(self._abandoned)


def start_thread(work: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Start the work on a daemon thread: the process ends without waiting for it (an executor's would be joined)."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    threading.Thread(target=_run, args=(future, work), name=name, daemon=True).start()
    return future


def is_done_within(future: concurrent.futures.Future[T], seconds: float) -> bool:
    """Whether the work is done after at most `seconds` of real time, in which the thread lives whatever the clock."""
    done, _ = concurrent.futures.wait([future], timeout=max(0.0, seconds))
    return bool(done)


def _run(future: concurrent.futures.Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it; a thread must not keep it
        future.set_exception(error)
    else:
        future.set_result(result)
