"""Sending: what was accepted is noted, what was not is tried again, and nobody waits for a sink that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from nvrx_chain.clock import SystemClock, format_time
from nvrx_watch import notify
from nvrx_watch.history import due_notices, update_history
from nvrx_watch.history_model import History, Notice, SinkPolicy
from nvrx_watch.model import Finding, Severity, Subject
from nvrx_watch.notify import send_all
from nvrx_watch.sinks.build import build_sinks
from nvrx_watch.sinks.sink import Sink, SinkError
from tests.fakes.fake_clock import FakeClock
from tests.unit.watch.sinks.receiver import Receiver, receiving, talking

SUBJECT = Subject(key="c0ffee", name="train", user="alice", uid=1000)
TOKEN = "T0KEN5ecretB08xyz"
SOON, LONG = 0.3, 30.0


def finding(scope: str = "chain") -> Finding:
    return Finding(detector="restart_storm", severity=Severity.CRITICAL, scope=scope, title=f"storm in {scope}")


class FakeSink:
    """Keeps what it is sent; raises what it is given, hangs while `holding`."""

    def __init__(self, name: str, *errors: Exception | None) -> None:
        self.policy = SinkPolicy(name=name)
        self.errors = list(errors)
        self.got: list[str] = []
        self.holding: threading.Event | None = None

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        self.got.append(f"{notice.kind.value} {notice.incident.key}")
        if self.holding is not None:
            assert self.holding.wait(LONG)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    notify._TROUBLES.clear()
    yield
    notify._TROUBLES.clear()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def look(
    history: History,
    findings: list[Finding],
    sinks: list[Sink],
    clock: FakeClock | SystemClock,
    deadline_seconds: float = LONG,
    subject: Subject = SUBJECT,
) -> tuple[History, dict[str, str]]:
    """One pass as far as the sinks are concerned."""
    history = update_history(history, findings, blind=frozenset(), now=clock.now())
    due = due_notices(history, findings, subject, [one.policy for one in sinks], clock.now())
    return send_all(history, due, sinks, clock, deadline_seconds=deadline_seconds)


def test_what_was_accepted_is_noted_with_the_time_of_the_acceptance(clock: FakeClock) -> None:
    sink = FakeSink("a")
    history, failures = look(History(), [finding()], [sink], clock)
    assert failures == {}
    assert history.incidents["restart_storm:chain"].sent == {"a": format_time(clock.now())}
    clock.advance(60)
    look(history, [finding()], [sink], clock)
    assert sink.got == ["trigger restart_storm:chain"]


def test_nothing_due_asks_nobody(clock: FakeClock) -> None:
    sink = FakeSink("a")
    assert look(History(), [], [sink], clock) == (History(), {})
    assert sink.got == []


def test_a_sink_that_fails_is_tried_again_and_stops_no_other(clock: FakeClock) -> None:
    bad, good = FakeSink("bad", SinkError("it is down")), FakeSink("good")
    history, failures = look(History(), [finding()], [bad, good], clock)
    assert failures == {"bad": "it is down"}
    assert set(history.incidents["restart_storm:chain"].sent) == {"good"}
    clock.advance(60)
    history, failures = look(history, [finding()], [bad, good], clock)
    assert failures == {}
    assert set(history.incidents["restart_storm:chain"].sent) == {"good", "bad"}
    assert [len(bad.got), len(good.got)] == [2, 1]


def test_a_sink_that_is_down_is_asked_once_a_pass_and_not_for_each_notice(clock: FakeClock) -> None:
    sink = FakeSink("a", SinkError("it is down"))
    history, _ = look(History(), [finding("1"), finding("2"), finding("3")], [sink], clock)
    assert len(sink.got) == 1
    clock.advance(5)
    history, failures = look(history, [finding("1"), finding("2"), finding("3")], [sink], clock)
    assert (len(sink.got), failures) == (1, {})
    clock.advance(60)
    look(history, [finding("1"), finding("2"), finding("3")], [sink], clock)
    assert len(sink.got) == 4


def test_a_lasting_refusal_keeps_no_other_notice_back_and_is_logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FakeSink("a", SinkError("status 400", lasting=True))
    history, failures = look(History(), [finding("1"), finding("2")], [sink], clock)
    assert failures == {"a": "status 400"}
    assert [set(one.sent) for one in history.incidents.values()] == [set(), {"a"}]
    assert "refuses a notice for good sink=a key=restart_storm:1" in caplog.text
    clock.advance(60)
    look(history, [finding("1"), finding("2")], [sink], clock)
    assert len(sink.got) == 2
    clock.advance(300)
    look(history, [finding("1"), finding("2")], [sink], clock)
    assert len(sink.got) == 3


def test_a_sink_that_breaks_is_reported_without_the_text_of_the_error(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = FakeSink("broken", RuntimeError(f"https://h/{TOKEN}")), FakeSink("good")
    history, failures = look(History(), [finding()], [broken, good], clock)
    assert failures == {"broken": "the sink broke: RuntimeError"}
    assert set(history.incidents["restart_storm:chain"].sent) == {"good"}
    assert "test_notify.py" in caplog.text
    assert TOKEN not in caplog.text


def test_a_sink_that_is_gone_from_the_settings_is_a_failure_and_no_crash(clock: FakeClock) -> None:
    history = update_history(History(), [finding()], blind=frozenset(), now=clock.now())
    due = due_notices(history, [finding()], SUBJECT, [SinkPolicy(name="gone")], clock.now())
    assert send_all(history, due, [], clock, deadline_seconds=LONG) == (history, {"gone": "there is no such sink"})


def test_a_sink_that_hangs_delays_the_pass_by_the_deadline_and_no_other_sink(clock: FakeClock) -> None:
    hanging, good = FakeSink("hanging"), FakeSink("good")
    hanging.holding = threading.Event()
    began = time.monotonic()
    history, failures = look(History(), [finding("1"), finding("2")], [hanging, good], clock, SOON)
    assert time.monotonic() - began < LONG / 2
    assert failures == {"hanging": "no answer within 0.3 s"}
    assert all(set(one.sent) == {"good"} for one in history.incidents.values())
    # Another chain of this process does not wait for it again, and starts no second thread.
    other, failures = look(History(), [finding()], [hanging, good], clock, LONG)
    assert failures == {"hanging": "it still hangs over an earlier notice"}
    assert set(other.incidents["restart_storm:chain"].sent) == {"good"}
    assert len(hanging.got) == 1
    hanging.holding.set()


def test_what_was_given_up_sends_nothing_more_when_it_wakes(clock: FakeClock) -> None:
    sink = FakeSink("a")
    sink.holding = threading.Event()
    before = set(threading.enumerate())
    look(History(), [finding("1"), finding("2"), finding("3")], [sink], clock, SOON)
    [thread] = set(threading.enumerate()) - before
    sink.holding.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert len(sink.got) == 1


def test_a_sink_that_failed_slowly_is_left_alone_by_the_other_chains_for_a_moment(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SLOW_FAILURE_SECONDS", 0.0)
    sink = FakeSink("a", SinkError("no answer within 5 s"))
    look(History(), [finding()], [sink], clock)
    _, failures = look(History(), [finding()], [sink], clock)
    assert failures == {"a": "it did not answer a moment ago"}
    monkeypatch.setattr(notify, "PAUSE_SECONDS", 0.0)
    notify._TROUBLES.clear()
    sink.errors = [SinkError("no answer within 5 s")]
    look(History(), [finding()], [sink], clock)
    _, failures = look(History(), [finding()], [sink], clock)
    assert failures == {}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def test_an_outage_of_pagerduty_ends_with_one_page_and_one_end(receiver: Receiver, clock: FakeClock) -> None:
    sinks = list(build_sinks(pd_routing_key="key", pd_url=receiver.url("/v2/enqueue")))
    history = History()
    receiver.answers = [(500, {}, b""), (429, {"Retry-After": "60"}, b"slow down"), (202, {}, b"{}")]
    told = []
    for _ in range(20):
        history, failures = look(history, [finding()], sinks, clock)
        told.append(failures.get("pagerduty"))
        clock.advance(30)
    assert [one for one in told if one] == [
        "asking http://127.0.0.1/***: status 500",
        "asking http://127.0.0.1/***: status 429: slow down",
    ]
    for _ in range(4):
        history, _ = look(history, [], sinks, clock)
        clock.advance(30)
    actions = [body["event_action"] for body in receiver.bodies]
    assert actions == ["trigger", "trigger", "trigger", "resolve"]
    assert len({body["dedup_key"] for body in receiver.bodies}) == 1


def test_two_watchers_page_one_incident(receiver: Receiver, clock: FakeClock) -> None:
    for _ in range(2):
        look(History(), [finding()], list(build_sinks(pd_routing_key="k", pd_url=receiver.url())), clock)
    assert [body["event_action"] for body in receiver.bodies] == ["trigger", "trigger"]
    assert len({body["dedup_key"] for body in receiver.bodies}) == 1


def test_a_webhook_that_hangs_keeps_no_page_back(receiver: Receiver) -> None:
    with talking() as port:
        sinks = list(
            build_sinks(
                pd_routing_key="k",
                pd_url=receiver.url(),
                webhook_url=f"http://127.0.0.1:{port}/{TOKEN}",
                timeout_seconds=SOON,
            )
        )
        history, failures = look(History(), [finding("1"), finding("2")], sinks, SystemClock())
    assert len(receiver.received) == 2
    assert failures == {"webhook": "asking http://127.0.0.1/***: no answer within 0.3 s"}
    assert all(set(one.sent) == {"log", "pagerduty"} for one in history.incidents.values())


def test_a_page_whose_answer_was_lost_is_sent_again_under_the_same_key(receiver: Receiver, clock: FakeClock) -> None:
    sinks = list(build_sinks(pd_routing_key="k", pd_url=receiver.url()))
    look(History(), [finding()], sinks, clock)
    # The process died before the history was written: the next one starts from what was there before.
    clock.advance(timedelta(minutes=5).total_seconds())
    look(History(), [finding()], sinks, clock)
    assert len({body["dedup_key"] for body in receiver.bodies}) == 1
    assert len(receiver.received) == 2
