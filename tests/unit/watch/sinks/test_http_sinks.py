"""PagerDuty, webhook and heartbeat against a real server: what counts as accepted, and what a refusal is worth."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import UsageError
from nvrx_watch.history_model import Notice
from nvrx_watch.model import Severity
from nvrx_watch.sinks.build import build_heartbeat, build_sinks
from nvrx_watch.sinks.heartbeat import Heartbeat, ping
from nvrx_watch.sinks.http import Http
from nvrx_watch.sinks.pagerduty import LONGEST_KEY, LONGEST_SUMMARY, PagerDutySink, render_dedup_key, render_event
from nvrx_watch.sinks.secret import Secret
from nvrx_watch.sinks.sink import SinkError
from nvrx_watch.sinks.webhook import WebhookSink, render_message
from tests.unit.watch.sinks.notices import ORPHAN, SUBJECT, resolve, trigger
from tests.unit.watch.sinks.receiver import Receiver, receiving, refusing_port, talking

ROUTING_KEY = "R0UT1NGKEY5ecretSecretSecret0001"
TOKEN = "T0KEN5ecretB08xyz"
PATH = f"/services/T00/{TOKEN}?auth={TOKEN}Q"
TIMEOUT = 0.3
LONG = 20.0

Send = Callable[[str], None]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def http() -> Iterator[Http]:
    client = Http(LONG)
    yield client
    client.close()


@pytest.fixture
def hasty() -> Iterator[Http]:
    """For peers that never answer: it gives up soon. A peer that does answer may take longer on a busy machine."""
    client = Http(TIMEOUT)
    yield client
    client.close()


def pager(http: Http, url: str) -> PagerDutySink:
    return PagerDutySink(Secret(ROUTING_KEY), Secret(url), http)


def send_all_three(http: Http, url: str) -> dict[str, Send]:
    return {
        "pagerduty": lambda _: pager(http, url).send(trigger(), deadline_seconds=LONG),
        "webhook": lambda _: WebhookSink(Secret(url), http).send(trigger(), deadline_seconds=LONG),
        "heartbeat": lambda _: Heartbeat(Secret(url), http).ping(LONG),
    }


SINKS = ("pagerduty", "webhook", "heartbeat")


def test_a_page_and_its_end_reach_pagerduty_under_one_key(receiver: Receiver, http: Http) -> None:
    sink = pager(http, receiver.url("/v2/enqueue"))
    sink.send(trigger(), deadline_seconds=LONG)
    sink.send(resolve(), deadline_seconds=LONG)
    first, second = receiver.bodies
    assert first["routing_key"] == second["routing_key"] == ROUTING_KEY
    assert first["dedup_key"] == second["dedup_key"] == "nvrx-watch/c0ffee/orphaned_generation:123"
    assert [first["event_action"], second["event_action"]] == ["trigger", "resolve"]
    payload = first["payload"]
    assert payload["severity"] == "critical"
    assert payload["source"] == "big"
    assert payload["summary"] == "[CRITICAL] train <7b> & more: task 0 of 123 is gone, 2 spares wait for it"
    assert "Command: scancel 123_3 123_4" in payload["custom_details"]["lines"]
    assert "payload" not in second


def test_two_watchers_on_two_machines_page_under_one_key() -> None:
    first, second = render_event(trigger(), "login1"), render_event(trigger(), "login2")
    assert first["dedup_key"] == second["dedup_key"]


@pytest.mark.parametrize("severity", list(Severity))
def test_severities_are_in_the_words_of_pagerduty(severity: Severity) -> None:
    event = render_event(trigger(replace(ORPHAN, severity=severity)), "login1")
    assert (
        event["payload"]["severity"] == {"info": "info", "warning": "warning", "critical": "critical"}[severity.value]
    )


def test_a_long_title_and_a_long_key_fit_into_what_pagerduty_takes() -> None:
    event = render_event(trigger(replace(ORPHAN, title="é" * 5000, scope="s" * 5000)), "login1")
    assert len(event["payload"]["summary"]) <= LONGEST_SUMMARY
    assert len(event["dedup_key"]) <= LONGEST_KEY


def test_keys_that_are_too_long_stay_apart() -> None:
    keys = {render_dedup_key("k" * 300 + end) for end in ("a", "b")}
    assert len(keys) == 2
    assert all(len(key) <= LONGEST_KEY for key in keys)
    assert render_dedup_key("nvrx-watch/short") == "nvrx-watch/short"


def test_the_webhook_gets_a_text_that_pings_nobody(receiver: Receiver, http: Http) -> None:
    receiver.answer(200, b"ok")
    hostile = replace(ORPHAN, title="<!channel> @here &amp; \x1b[2J\nsecond line")
    WebhookSink(Secret(receiver.url(PATH)), http).send(trigger(hostile), deadline_seconds=LONG)
    [body] = receiver.bodies
    assert set(body) == {"text"}
    first = body["text"].splitlines()[0]
    assert "<" not in first
    assert "@here" not in body["text"]
    assert "\\x1b[2J\\x0asecond line" in first
    assert "&lt;!channel&gt;" in first


def test_undecodable_names_can_be_sent(receiver: Receiver, http: Http) -> None:
    hostile = replace(ORPHAN, title="\udcff", scope="\ud800", details=("\udcfe\x00",), advice="\u202e")
    subject = replace(SUBJECT, name="\udcfd", user="\udcfc", cluster="\udcfb")
    pager(http, receiver.url()).send(trigger(hostile, subject), deadline_seconds=LONG)
    receiver.answer(200, b"ok")
    WebhookSink(Secret(receiver.url()), http).send(resolve(hostile, subject), deadline_seconds=LONG)
    assert len(receiver.received) == 2


def test_the_end_of_an_incident_reads_as_one() -> None:
    assert render_message(resolve()).startswith("[resolved] train &lt;7b&gt; &amp; more: task 0 of 123")


def test_the_heartbeat_is_a_get(receiver: Receiver) -> None:
    receiver.answer(200, b"OK")
    build_heartbeat(receiver.url(PATH)).ping()
    ping(Secret(receiver.url(PATH)))
    assert [(one.method, one.path) for one in receiver.received] == [("GET", PATH)] * 2


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize(
    ("status", "lasting"),
    [(400, True), (403, True), (404, True), (408, False), (429, False), (500, False), (503, False)],
)
def test_a_refusal_is_an_error_and_lasting_only_where_it_will_not_change(
    receiver: Receiver, http: Http, name: str, status: int, lasting: bool
) -> None:
    receiver.answer(status, b"invalid event", Retry_After="17")
    with pytest.raises(SinkError, match=f"status {status}: invalid event") as caught:
        send_all_three(http, receiver.url(PATH))[name](name)
    assert caught.value.lasting is lasting
    assert caught.value.retry_after_seconds == 17


def test_pagerduty_accepts_with_202_only(receiver: Receiver, http: Http) -> None:
    receiver.answer(200, b"<html>log in</html>")
    with pytest.raises(SinkError, match="200 is not PagerDuty's 202") as caught:
        pager(http, receiver.url()).send(trigger(), deadline_seconds=LONG)
    assert not caught.value.lasting


def test_a_login_page_is_no_webhook(receiver: Receiver, http: Http) -> None:
    receiver.answer(200, b"<html>log in</html>", Content_Type="text/html; charset=utf-8")
    with pytest.raises(SinkError, match="a web page answered"):
        WebhookSink(Secret(receiver.url()), http).send(trigger(), deadline_seconds=LONG)


@pytest.mark.parametrize("name", SINKS)
def test_a_redirect_takes_the_secrets_nowhere(receiver: Receiver, http: Http, name: str) -> None:
    with receiving() as elsewhere:
        receiver.answer(307, Location=elsewhere.url(f"/steal/{TOKEN}"))
        with pytest.raises(SinkError, match="not followed") as caught:
            send_all_three(http, receiver.url(PATH))[name](name)
        assert elsewhere.received == []
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", SINKS)
def test_nobody_listens(http: Http, name: str) -> None:
    with pytest.raises(SinkError, match="Connection refused") as caught:
        send_all_three(http, f"http://127.0.0.1:{refusing_port()}{PATH}")[name](name)
    assert not caught.value.lasting


@pytest.mark.parametrize("name", SINKS)
def test_a_peer_that_takes_the_connection_and_hangs_costs_the_timeout(hasty: Http, name: str) -> None:
    with talking() as port:
        began = time.monotonic()
        with pytest.raises(SinkError, match=r"no answer within 0.3 s"):
            send_all_three(hasty, f"http://127.0.0.1:{port}{PATH}")[name](name)
        assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize(
    "words", [b"220 mail.example ESMTP\r\n", b"\x00\xff\x15\x03", b"HTTP/1.1 999999 what\r\n\r\n", b"HTTP/1.1 200"]
)
def test_what_does_not_speak_http_is_an_error(hasty: Http, words: bytes) -> None:
    with talking(words) as port, pytest.raises(SinkError, match="does not speak HTTP"):
        pager(hasty, f"http://127.0.0.1:{port}/").send(trigger(), deadline_seconds=LONG)


def test_an_accepted_page_is_accepted_even_if_the_reply_breaks_off(hasty: Http) -> None:
    with talking(b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\n{") as port:
        pager(hasty, f"http://127.0.0.1:{port}/").send(trigger(), deadline_seconds=LONG)


def test_a_refusal_that_never_ends_is_read_up_to_a_bound(hasty: Http) -> None:
    head = b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    with talking(head, *[chunk] * 1000) as port, pytest.raises(SinkError, match=r"status 500: x+") as caught:
        pager(hasty, f"http://127.0.0.1:{port}/").send(trigger(), deadline_seconds=LONG)
    assert len(str(caught.value)) < 500


def test_a_heartbeat_that_is_answered_drop_by_drop_ends_at_its_deadline(hasty: Http) -> None:
    drops = [b"HTTP/1.1 200 OK\r\n", *(b"X-Drop: 1\r\n" for _ in range(1000))]
    with talking(*drops, pause_seconds=0.05) as port:
        heart = Heartbeat(Secret(f"http://127.0.0.1:{port}{PATH}"), hasty)
        began = time.monotonic()
        with pytest.raises(SinkError, match=r"not done within 0.5 s"):
            heart.ping(0.5)
        # The thread is still there; a second one is not started beside it.
        with pytest.raises(SinkError, match="still hangs"):
            heart.ping(LONG)
        assert time.monotonic() - began < LONG / 2


def test_an_unknown_host_is_said_in_words(http: Http) -> None:
    with pytest.raises(SinkError, match=r"https://nowhere\.invalid/\*\*\*: ConnectError") as caught:
        pager(http, "https://nowhere.invalid/v2").send(trigger(), deadline_seconds=LONG)
    assert not caught.value.lasting


def test_a_peer_without_tls_is_an_error(receiver: Receiver, http: Http) -> None:
    url = receiver.url(PATH).replace("http:", "https:")
    with pytest.raises(SinkError, match="ConnectError"):
        pager(http, url).send(trigger(), deadline_seconds=LONG)


def test_a_broken_proxy_variable_is_said_without_its_password(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"nonsense://user:{TOKEN}@proxy:1")
    with pytest.raises(SinkError, match="HTTPS_PROXY") as caught:
        pager(http, "https://127.0.0.1/").send(trigger(), deadline_seconds=LONG)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize("fault", ["refused", "echoed", "redirected", "hangs", "nobody", "nonsense"])
def test_no_secret_shows_in_an_error_or_in_the_log_at_any_level(
    receiver: Receiver, hasty: Http, name: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = receiver.url(PATH)
    receiver.answer(500, b"down")
    if fault == "echoed":
        key = ROUTING_KEY if name == "pagerduty" else ""
        receiver.answer(400, f"no such {PATH} or {key}, {TOKEN}".encode())
    if fault == "redirected":
        receiver.answer(302, Location=f"https://user:{TOKEN}@other.example/{TOKEN}")
    if fault == "nobody":
        url = f"http://user:{TOKEN}@127.0.0.1:{refusing_port()}{PATH}"
    with talking(*([b"garbage\r\n"] if fault == "nonsense" else [])) as port:
        if fault in ("hangs", "nonsense"):
            url = f"http://127.0.0.1:{port}{PATH}"
        with pytest.raises(SinkError) as caught:
            send_all_three(hasty, url)[name](name)
    shown = f"{caught.value!r} {caught.value} {caught.value.__dict__} {caplog.text}"
    assert "127.0.0.1" in shown
    for secret in (TOKEN, ROUTING_KEY, f"/services/T00/{TOKEN}"):
        assert secret not in shown
    assert caught.value.__cause__ is None


def test_an_accepted_message_leaves_no_secret_in_the_log(
    receiver: Receiver, http: Http, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pager(http, receiver.url(PATH)).send(trigger(), deadline_seconds=LONG)
    assert len(receiver.received) == 1
    assert TOKEN not in caplog.text
    assert ROUTING_KEY not in caplog.text


@pytest.mark.parametrize(
    "url",
    ["", "example.com/x", "ftp://host/x", "https://", "https:///x", "https://h:99999/", "https://h:0/", "https://h/a\nb",
     "https://[::1/x", "https://h/a b", "file:///etc/passwd"],
)  # fmt: skip
def test_a_url_that_cannot_work_is_said_at_the_start_and_not_shown(url: str) -> None:
    for build in (
        lambda: build_sinks(pd_routing_key="k", pd_url=url or "x"),
        lambda: build_sinks(webhook_url=url or "x"),
        lambda: build_heartbeat(url),
    ):
        with pytest.raises(UsageError) as caught:
            build()
        assert len(url) < 9 or url not in str(caught.value)


def test_a_missing_library_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    for build in (lambda: build_sinks(webhook_url="https://h/x"), lambda: build_heartbeat("https://h/x")):
        with pytest.raises(UsageError, match="pip install httpx"):
            build()
    assert len(build_sinks()) == 1


def test_what_is_built_shows_no_secret() -> None:
    sinks = build_sinks(pd_routing_key=ROUTING_KEY, webhook_url=f"https://hooks.example{PATH}", cooldown_seconds=60)
    heart = build_heartbeat(f"https://beat.example{PATH}")
    shown = f"{sinks!r} {[vars(one) for one in sinks]} {vars(heart)}"
    assert TOKEN not in shown
    assert ROUTING_KEY not in shown
    assert [one.policy.name for one in sinks] == ["log", "pagerduty", "webhook"]
    assert {one.policy.cooldown_seconds for one in sinks} == {60}


def test_pages_are_for_warnings_and_worse() -> None:
    sinks = build_sinks(pd_routing_key="k", webhook_url="https://h/x")
    assert [one.policy.minimum_severity for one in sinks] == [Severity.INFO, Severity.WARNING, Severity.WARNING]


def test_the_log_sink_writes_one_line_per_notice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    [sink] = build_sinks()
    notices: list[Notice] = [trigger(replace(ORPHAN, title="a\nb\x1b[2J")), resolve()]
    for notice in notices:
        sink.send(notice, deadline_seconds=LONG)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert "key=orphaned_generation:123 severity=critical" in caplog.records[0].getMessage()
