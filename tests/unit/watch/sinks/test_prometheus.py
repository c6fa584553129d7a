"""What Prometheus reads: text, textfile and a scrape that blocks nobody."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from nvrx_chain.errors import UsageError
from nvrx_watch.model import Severity
from nvrx_watch.sinks import prometheus
from nvrx_watch.sinks.chain_metrics import ChainMetrics, measure
from nvrx_watch.sinks.prometheus import MetricsServer, Textfile, render_metrics, textfile_name
from nvrx_watch.sinks.sink import SinkError
from tests.unit.watch import build

STATE = ChainMetrics(
    chain="c0ffee",
    name="train",
    generation=3,
    cycle=2,
    iteration=1200,
    log_iteration=1234,
    seconds_since_progress=12.5,
    hot_spares=1,
    cold_spares=0,
    queued_generations=4,
    findings={("restart_storm", Severity.WARNING): 1},
    pass_seconds=0.02,
    last_good_pass_at=1767225600.0,
    last_good_pass_age_seconds=0.5,
)

Samples = dict[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        found[family.name] = [(dict(sample.labels), sample.value) for sample in family.samples]
    return found


def test_every_gauge_has_the_labels_of_its_chain() -> None:
    labels = {"chain": "c0ffee", "name": "train"}
    assert parse(render_metrics([STATE])) == {
        "nvrx_chain_generation": [(labels, 3)],
        "nvrx_chain_cycle": [(labels, 2)],
        "nvrx_chain_checkpoint_iteration": [(labels, 1200)],
        "nvrx_chain_log_iteration": [(labels, 1234)],
        "nvrx_chain_seconds_since_progress": [(labels, 12.5)],
        "nvrx_chain_hot_spares": [(labels, 1)],
        "nvrx_chain_cold_spares": [(labels, 0)],
        "nvrx_chain_queued_generations": [(labels, 4)],
        "nvrx_watch_pass_seconds": [(labels, 0.02)],
        "nvrx_watch_last_good_pass_timestamp_seconds": [(labels, 1767225600.0)],
        "nvrx_watch_last_good_pass_age_seconds": [(labels, 0.5)],
        "nvrx_watch_findings": [({**labels, "detector": "restart_storm", "severity": "warning"}, 1)],
    }


def test_zero_is_shown_and_unknown_is_not() -> None:
    samples = parse(render_metrics([replace(STATE, hot_spares=None, iteration=None)]))
    assert samples["nvrx_chain_hot_spares"] == []
    assert samples["nvrx_chain_checkpoint_iteration"] == []
    assert samples["nvrx_chain_cold_spares"][0][1] == 0


def test_chains_stand_side_by_side_and_one_that_comes_twice_is_one() -> None:
    samples = parse(render_metrics([STATE, replace(STATE, chain="other"), replace(STATE, generation=9)]))
    assert [(one["chain"], value) for one, value in samples["nvrx_chain_generation"]] == [("c0ffee", 9), ("other", 3)]


def test_no_chain_gives_text_that_parses() -> None:
    assert all(not samples for samples in parse(render_metrics([])).values())


@given(
    st.text(alphabet=st.characters()),
    st.text(alphabet=st.characters()),
    st.one_of(st.integers(), st.integers(10**300, 10**320)),
)
def test_any_name_and_any_number_of_a_file_give_text_that_parses(key: str, name: str, number: int) -> None:
    subject = build.subject(key=key, name=name)
    state = measure(build.snapshot(subject=subject, iteration=number), (), 0.1, None, build.NOW)
    [(labels, _)] = parse(render_metrics([state]))["nvrx_chain_generation"]
    assert labels == {"chain": state.chain, "name": state.name}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "a b&c#'100%\""
    path.mkdir()
    return path


def test_the_textfile_is_replaced_in_one_step(directory: Path) -> None:
    textfile = Textfile(directory)
    textfile.publish([STATE])
    textfile.publish([replace(STATE, generation=4)])
    assert [one.name for one in directory.iterdir()] == ["nvrx_watch.prom"]
    assert parse((directory / "nvrx_watch.prom").read_text())["nvrx_chain_generation"][0][1] == 4


def test_a_file_holds_no_age_that_would_stay_young_when_its_watcher_is_dead(directory: Path) -> None:
    assert STATE.last_good_pass_age_seconds is not None
    Textfile(directory).publish([STATE])
    samples = parse((directory / "nvrx_watch.prom").read_text())
    assert samples["nvrx_watch_last_good_pass_timestamp_seconds"]
    assert not samples.get("nvrx_watch_last_good_pass_age_seconds")


@pytest.mark.parametrize("name", ["x", "../x.prom", "a/b.prom", ".hidden.prom", "x.prom\n", "", "é.prom"])
def test_a_textfile_that_the_collector_would_not_read_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Textfile(directory, name)


@given(st.text(alphabet=st.characters()))
def test_any_key_gives_a_textfile_that_the_collector_reads(key: str) -> None:
    Textfile(Path("/any"), textfile_name(key))
    assert textfile_name(key) != textfile_name(key + "x")


def test_a_directory_that_is_gone_is_a_failure_of_the_sink(directory: Path) -> None:
    with pytest.raises(SinkError, match="No such file"):
        Textfile(directory / "gone").publish([STATE])


def test_a_missing_library_is_said_at_the_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match="pip install prometheus-client"):
        Textfile(directory)
    with pytest.raises(UsageError, match="pip install prometheus-client"):
        MetricsServer(0)


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    one = MetricsServer(0)
    yield one
    one.close()


def scrape(port: int, path: str = "/metrics") -> Samples:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return parse(reply.read().decode())


def test_a_scrape_shows_what_was_published_last(server: MetricsServer) -> None:
    assert scrape(server.port)["nvrx_chain_generation"] == []
    server.publish([STATE])
    server.publish([replace(STATE, generation=8)])
    assert scrape(server.port, "/metrics?x=1")["nvrx_chain_generation"][0][1] == 8


def test_ages_go_on_between_two_passes(server: MetricsServer) -> None:
    server.publish([STATE])
    age = "nvrx_watch_last_good_pass_age_seconds"
    first, second = scrape(server.port)[age][0][1], scrape(server.port)[age][0][1]
    assert 0.5 <= first < second


def test_any_other_path_is_not_there(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        scrape(server.port, "/etc/passwd")
    caught.value.close()


def test_a_scraper_that_hangs_blocks_neither_passes_nor_other_scrapers(server: MetricsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as one:
        one.sendall(b"GET /metr")
        server.publish([STATE])
        assert scrape(server.port)["nvrx_chain_cycle"][0][1] == 2


def test_a_scraper_that_hangs_is_hung_up_on(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as one:
        one.sendall(b"GET /metr")
        assert one.recv(1) == b""


def test_garbage_and_a_peer_that_goes_away_print_nothing(
    server: MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (b"\x00\xff\x16\x03\r\n\r\n", b"GET", b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"y" * 70000):
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(words)
    scrape(server.port)
    assert capfd.readouterr() == ("", "")


def test_after_closing_the_port_is_free_and_the_thread_gone() -> None:
    one = MetricsServer(0)
    one.close()
    assert "metrics" not in {thread.name for thread in threading.enumerate()}
    MetricsServer(one.port).close()


@pytest.mark.parametrize(("port", "address"), [(0, "203.0.113.1"), (0, "no such host"), (99999, "127.0.0.1")])
def test_an_address_that_cannot_be_bound_is_said_at_the_start(port: int, address: str) -> None:
    with pytest.raises(UsageError, match="serving /metrics on port"):
        MetricsServer(port, address)


def test_a_taken_port_is_said_at_the_start(server: MetricsServer) -> None:
    with pytest.raises(UsageError, match="Address already in use"):
        MetricsServer(server.port)
