"""Whether this node may join a round: all checks at once, within one deadline, each in a thread of its own.

A good result of a check with a time to live counts until it is too old; it is renewed in the background, so that a
restart waits for nothing but what may have changed by the failure itself. A bad one is never remembered: the node is
looked at again before it is given up. Touches: threads, and what the checks touch.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvrx_chain.launcher.checks import Check, Seen

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check says against this node, or what it could not observe."""

    check: str
    reason: str

    def __str__(self) -> str:
        return f"{self.check}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of this node before a round."""

    round: int
    findings: tuple[Finding, ...] = ()
    unobserved: tuple[Finding, ...] = ()
    seconds: float = 0.0
    """How long finding out took."""

    @property
    def is_healthy(self) -> bool:
        """Whether the node may join. What could not be observed does not keep it out."""
        return not self.findings

    def describe(self) -> str:
        """One line for logs, records and the other launchers."""
        return "; ".join(str(finding) for finding in self.findings) or "healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    started_at: float
    seen: Seen


class _Watch:
    """A check at work in its own thread, which may hang in it."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked_at = float("-inf")
        self._round = 0
        self._last: _Look | None = None
        self._in_background = False
        self._is_over = False

    def start_background(self) -> None:
        if self.check.every_seconds > 0:
            with self._changed:
                self._in_background = True
                self._wake()

    def ask(self, round_number: int, now: float) -> None:
        """Look again unless what is known is good and fresh enough."""
        with self._changed:
            if self._known(now) is None:
                self._asked_at, self._round = now, round_number
                self._wake()

    def answer(self, asked_at: float, deadline: float) -> Seen | None:
        """What the check says; None when it does not say anything in time."""
        with self._changed:
            while (look := self._known(asked_at)) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            return look.seen

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _known(self, asked_at: float) -> _Look | None:
        look = self._last
        if look is None:
            return None
        if look.started_at >= asked_at:
            return look
        is_fresh = look.started_at >= asked_at - self.check.ttl_seconds
        return look if is_fresh and look.seen == Seen() else None

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"check {self.check.name}", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_over and (left := self._seconds_left()) > 0:
                    self._changed.wait(left if left < threading.TIMEOUT_MAX else None)
                if self._is_over:
                    return
                round_number = self._round
                started_at = time.monotonic()
            seen = self._look(round_number)
            with self._changed:
                self._last = _Look(started_at=started_at, seen=seen)
                self._changed.notify_all()

    def _seconds_left(self) -> float:
        """Until the next look."""
        if self._last is None or self._asked_at > self._last.started_at:
            return 0.0
        if not self._in_background:
            return float("inf")
        return self._last.started_at + self.check.every_seconds - time.monotonic()

    def _look(self, round_number: int) -> Seen:
        try:
            return self.check.look(round_number)
        except Exception as error:  # noqa: BLE001 - a fault of a check must not cost the node, nor end its thread
            log.error("the health check %s failed\n%s", self.check.name, traceback.format_exc())
            return Seen(unobserved=(f"the check itself failed: {type(error).__name__}: {error}",))


class HealthChecks:
    """The checks of one node over the life of its launcher."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._watches = [_Watch(check) for check in checks]
        self._said: set[Finding] = set()

    def start_background(self) -> None:
        """From now on renew what has a time to live."""
        for watch in self._watches:
            watch.start_background()

    def check(self, round_number: int, deadline_seconds: float) -> Health:
        """Look at the node before it joins a round; takes `deadline_seconds` at most."""
        started_at = time.monotonic()
        for watch in self._watches:
            watch.ask(round_number, started_at)
        findings: list[Finding] = []
        unobserved: list[Finding] = []
        for watch in self._watches:
            name = watch.check.name
            seconds = min(deadline_seconds, watch.check.patience_seconds)
            seen = watch.answer(started_at, started_at + seconds)
            if seen is None:
                late = Finding(check=name, reason=f"no result within {seconds:g} s")
                (findings if watch.check.silence_is_sick else unobserved).append(late)
                continue
            findings += [Finding(check=name, reason=reason) for reason in seen.sick]
            unobserved += [Finding(check=name, reason=reason) for reason in seen.unobserved]
        self._say_once(unobserved)
        return Health(
            round=round_number,
            findings=tuple(findings),
            unobserved=tuple(unobserved),
            seconds=time.monotonic() - started_at,
        )

    def begin(self, round_number: int, deadline_seconds: float, post: Callable[[Health], None]) -> None:
        """As `check`, in the background; the result is posted from a thread of its own, exactly once."""

        def work() -> None:
            post(self.check(round_number, deadline_seconds))

        threading.Thread(target=work, name="health", daemon=True).start()

    def close(self) -> None:
        """No further looks. Threads that hang in one are left behind."""
        for watch in self._watches:
            watch.end()

    def _say_once(self, unobserved: Sequence[Finding]) -> None:
        for finding in unobserved:
            if finding not in self._said:
                self._said.add(finding)
                log.warning("a health check cannot tell check=%s reason=%s", finding.check, finding.reason)
