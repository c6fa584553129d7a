"""Any service that apprise knows: delivered, refused, missing, not understood."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from nvrx_chain.errors import UsageError
from nvrx_watch.sinks.build import build_sinks
from nvrx_watch.sinks.sink import Sink, SinkError
from tests.unit.watch.sinks.notices import resolve, trigger
from tests.unit.watch.sinks.receiver import Receiver, receiving, refusing_port

TOKEN = "T0KEN5ecretB08xyz"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with receiving() as one:
        one.answer(200, b"ok")
        yield one


def address(port: int) -> str:
    return f"json://127.0.0.1:{port}/{TOKEN}/?cto=1&rto=1"


def apprise_sink(port: int) -> Sink:
    return build_sinks(notify=[address(port)])[-1]


def test_trigger_and_resolve_are_delivered(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sink = apprise_sink(receiver.port)
    sink.send(trigger(), deadline_seconds=10)
    sink.send(resolve(), deadline_seconds=10)
    first, second = receiver.bodies
    assert first["title"].startswith("[CRITICAL] train")
    assert "scancel 123_3 123_4" in first["message"]
    assert [first["type"], second["type"]] == ["failure", "success"]
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("fault", ["refused", "nobody"])
def test_what_is_not_delivered_is_an_error_without_the_address(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answer(500, TOKEN.encode())
    sink = apprise_sink(receiver.port if fault == "refused" else refusing_port())
    with pytest.raises(SinkError, match=r"sending to json://\*\*\*: not delivered") as caught:
        sink.send(trigger(), deadline_seconds=10)
    assert not caught.value.lasting
    assert TOKEN not in caplog.text
    assert TOKEN not in f"{caught.value!r} {sink!r} {sink.policy}"


@pytest.mark.parametrize("text", [f"nosuch://{TOKEN}", f"slack://{TOKEN}", "", TOKEN])
def test_an_address_that_is_not_understood_is_said_at_the_start(
    text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UsageError, match="does not understand the address") as caught:
        build_sinks(notify=[text])
    out, err = capfd.readouterr()
    assert TOKEN not in f"{caught.value} {caplog.text} {out} {err}"


def test_a_missing_library_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(UsageError, match="pip install apprise"):
        build_sinks(notify=["json://127.0.0.1/"])
    assert len(build_sinks()) == 1


def test_each_address_is_a_sink_whose_name_is_the_same_in_any_order() -> None:
    one, two = address(1), address(2)
    names = {sink.policy.name for sink in build_sinks(notify=[one, two, one])[1:]}
    assert names == {sink.policy.name for sink in build_sinks(notify=[two, one])[1:]}
    assert len(names) == 2
