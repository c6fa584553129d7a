"""Sends what is due to the sinks. One that is broken, slow or hangs stops neither the others nor the pass.

Each sink has a thread of its own for the length of a pass; all of them share one deadline. What a sink accepted before
it is noted, whatever happens afterwards; a notice whose answer never came counts as refused and is sent again later,
under the same key. Touches: what the sinks touch; starts threads.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from nvrx_chain.clock import Clock
from nvrx_watch.hang_guard import is_done_within, start_thread
from nvrx_watch.history import mark_refused, mark_sent
from nvrx_watch.history_model import History, Notice
from nvrx_watch.sinks.sink import Sink, SinkError

log = logging.getLogger(__name__)

SLOW_FAILURE_SECONDS = 1.0
PAUSE_SECONDS = 15.0
"""Every chain of this process leaves a sink alone that failed slowly: 50 chains do not wait for it 50 times."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one notice: accepted, or the error."""

    notice: Notice
    error: SinkError | None


class _Trouble(msgspec.Struct):
    """A sink that this process leaves alone. `sink` keeps the object, and with it its identity, alive."""

    sink: Sink
    hanging: Future[None] | None
    until: float


_TROUBLES: dict[int, _Trouble] = {}
"""By identity of the sink. Of the process and not of a chain: the thread that hangs and the dead peer are shared."""


class _Delivery(msgspec.Struct):
    """The notices of one sink on their way. Its thread only appends to `answers`."""

    sink: Sink
    notices: Sequence[Notice]
    until: float
    answers: list[Answer] = msgspec.field(default_factory=list)

    def work(self) -> None:
        for notice in self.notices:
            left = self.until - time.monotonic()
            if left <= 0:
                # Nobody waits any more: what is sent now would not be noted, and so be sent twice.
                return
            error = _send_one(self.sink, notice, left)
            self.answers.append(Answer(notice=notice, error=error))
            if error is not None and not error.lasting:
                # The next one would fail as well, and take as long.
                return


def send_all(
    history: History,
    due: Sequence[tuple[str, Notice]],
    sinks: Sequence[Sink],
    clock: Clock,
    *,
    deadline_seconds: float,
) -> tuple[History, dict[str, str]]:
    """Send, and return the history with what was accepted and what was refused, and by sink why the last one failed."""
    failures: dict[str, str] = {}
    under_way: list[tuple[_Delivery, Future[None]]] = []
    # Real time, whatever the clock: the threads and their sockets live in it.
    began = time.monotonic()
    for name, notices in _by_sink(due).items():
        sink = next((one for one in sinks if one.policy.name == name), None)
        trouble = _trouble_of(sink) if sink is not None else "there is no such sink"
        if sink is None or trouble is not None:
            failures[name] = trouble or ""
            continue
        delivery = _Delivery(sink=sink, notices=notices, until=began + deadline_seconds)
        under_way.append((delivery, start_thread(delivery.work, f"sink {name}")))
    for delivery, future in under_way:
        is_done = is_done_within(future, delivery.until - time.monotonic())
        answers = _answers(delivery, is_done, deadline_seconds)
        history = _note(history, delivery.sink.policy.name, answers, clock, failures)
        _remember_trouble(delivery.sink, None if is_done else future, answers, time.monotonic() - began)
    return history, failures


def _send_one(sink: Sink, notice: Notice, seconds: float) -> SinkError | None:
    try:
        sink.send(notice, deadline_seconds=seconds)
    except SinkError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one broken sink must not keep the others from being heard
        # Without the text of the error, which can hold a URL with its token.
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("a sink broke sink=%s error=%s\n%s", sink.policy.name, type(error).__name__, frames)
        return SinkError(f"the sink broke: {type(error).__name__}")
    return None


def _answers(delivery: _Delivery, is_done: bool, deadline_seconds: float) -> tuple[Answer, ...]:
    answers = tuple(delivery.answers)
    if is_done or len(answers) >= len(delivery.notices):
        return answers
    silent = SinkError(f"no answer within {deadline_seconds:g} s")
    return (*answers, Answer(notice=delivery.notices[len(answers)], error=silent))


def _note(history: History, name: str, answers: Iterable[Answer], clock: Clock, failures: dict[str, str]) -> History:
    now = clock.now()
    for answer in answers:
        error = answer.error
        if error is None:
            history = mark_sent(history, name, answer.notice, now)
            continue
        failures[name] = str(error)
        history = mark_refused(
            history, name, answer.notice, now, lasting=error.lasting, retry_after_seconds=error.retry_after_seconds
        )
        if error.lasting:
            log.error(
                "a sink refuses a notice for good sink=%s key=%s error=%s", name, answer.notice.incident.key, error
            )
    return history


def _by_sink(due: Iterable[tuple[str, Notice]]) -> Mapping[str, list[Notice]]:
    found: dict[str, list[Notice]] = {}
    for name, notice in due:
        found.setdefault(name, []).append(notice)
    return found


def _trouble_of(sink: Sink) -> str | None:
    trouble = _TROUBLES.get(id(sink))
    if trouble is None:
        return None
    if trouble.hanging is not None and not trouble.hanging.done():
        return "it still hangs over an earlier notice"
    if time.monotonic() < trouble.until:
        return "it did not answer a moment ago"
    del _TROUBLES[id(sink)]
    return None


def _remember_trouble(sink: Sink, hanging: Future[None] | None, answers: Sequence[Answer], seconds: float) -> None:
    failed = bool(answers) and answers[-1].error is not None and not answers[-1].error.lasting
    if hanging is None and not (failed and seconds >= SLOW_FAILURE_SECONDS):
        return
    _TROUBLES[id(sink)] = _Trouble(sink=sink, hanging=hanging, until=time.monotonic() + PAUSE_SECONDS)
