"""What `nvrx-watch` does with its options: one pass, a daemon or a live screen. Touches: signals, standard output."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nvrx_chain.bell import Bell
from nvrx_watch.config import WatchConfig, build_config
from nvrx_watch.detectors.registry import ALL
from nvrx_watch.model import Source
from nvrx_watch.plain_text import json_line
from nvrx_watch.run_pass import DEGRADED, PassResult, exit_code_of
from nvrx_watch.thresholds import WatchThresholds
from nvrx_watch.ui.report import render_report, report_object
from nvrx_watch.watcher import PASS_DEADLINE_SECONDS, Watcher

if TYPE_CHECKING:
    from nvrx_watch.ui.screen_model import ScreenModel

log = logging.getLogger(__name__)

LIVE_LOG = "live.log"
"""Where a live screen logs, in the state directory."""


def run_command_line(options: Mapping[str, Any], thresholds: WatchThresholds | None) -> int:
    """Run as asked and return the exit code. Raises NvrxError for what is wrong at the start."""
    if options["list_detectors"] or options["explain"]:
        _tell_detectors(options["explain"], as_json=options["as_json"])
        return 0
    detectors = frozenset(detector.name for detector in ALL)
    config = build_config(options, thresholds or WatchThresholds(), os.environ, detectors)
    _set_up_log(config)
    for note in config.notes:
        log.warning("%s", note)
    with Watcher(config) as watcher:
        if config.interval_seconds is None:
            return _once(watcher, config)
        watcher.resolve()
        gc.enable()
        return _live(watcher, config) if config.live else _stay(watcher, config)


def _tell_detectors(name: str | None, *, as_json: bool) -> None:
    from nvrx_watch.detectors.page import detectors_object, render_explanation, render_list
    from nvrx_watch.detectors.registry import find

    if as_json:
        print(msgspec.json.encode(detectors_object((find(name),) if name else ALL)).decode())
    else:
        print(render_explanation(name) if name else render_list(ALL))


def _set_up_log(config: WatchConfig) -> None:
    """To standard error; a live screen would be torn by lines there, so it logs into the state directory."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if config.live and config.interval_seconds is not None and sys.stdout is not None and sys.stdout.isatty():
        try:
            config.state_directory.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(config.state_directory / LIVE_LOG)
        except OSError as error:
            print(f"nvrx-watch: the log goes nowhere, {error}", file=sys.stderr)
            handler = logging.NullHandler()
    logging.basicConfig(
        level=logging.INFO if config.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        handlers=[handler],
    )


def _once(watcher: Watcher, config: WatchConfig) -> int:
    with watcher.lock() as held:
        if not held:
            print("nvrx-watch: the run before this one is still at work on this chain", file=sys.stderr)
            return DEGRADED
        results = watcher.run_pass()
    if config.live:
        from nvrx_watch.ui.live import make_console, print_once

        console = make_console()
        for result in results:
            print_once(_screen(result), console)
    else:
        _print(results, as_json=config.as_json)
    if not results and config.all_mine:
        if not watcher.sees_queue:
            print(f"nvrx-watch: {watcher.why_blind}", file=sys.stderr)
            return DEGRADED
        if not watcher.unwatched:
            print(f"no chain of {watcher.user} is in the queue", file=sys.stderr)
    return _code(watcher, results)


def _code(watcher: Watcher, results: Sequence[PassResult]) -> int:
    return exit_code_of(results, sees_all=not watcher.unwatched)


def _stay(watcher: Watcher, config: WatchConfig) -> int:
    """The daemon: quiet but for the log, and one JSON line per pass and chain where that was asked for."""
    from nvrx_watch.daemon import Loop, LoopSettings, SlurmSilent, tell_systemd
    from nvrx_watch.wake import FileWaker

    assert config.interval_seconds is not None
    settings = LoopSettings(interval_seconds=config.interval_seconds, deadline_seconds=PASS_DEADLINE_SECONDS)

    def one_pass() -> int:
        results = watcher.run_pass()
        if config.as_json:
            _print(results, as_json=True)
        waker.follow(watcher.directories())
        silent = next((why for result in results for why in _queue_unseen(result)), None)
        if silent is not None:
            raise SlurmSilent(f"the queue was not seen: {silent}")
        return _code(watcher, results)

    loop = Loop(one_pass, settings, watcher.clock, tell_service_manager=tell_systemd)
    waker, bell = FileWaker(loop.wake), Bell()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: bell.ring(loop.stop))
    try:
        loop.run()
    finally:
        waker.close()
    return 0


def _queue_unseen(result: PassResult) -> Iterator[str]:
    unobserved = result.snapshot.sources.unobserved
    if Source.QUEUE in unobserved:
        yield unobserved[Source.QUEUE]


def _live(watcher: Watcher, config: WatchConfig) -> int:
    from nvrx_watch.ui.live import make_console, show_live

    stop, bell = threading.Event(), Bell()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: bell.ring(stop.set))
    codes = [0]

    def screens() -> Iterator[ScreenModel]:
        assert config.interval_seconds is not None
        while not stop.is_set():
            results = watcher.run_pass()
            codes[0] = _code(watcher, results)
            if results:
                # One screen shows one chain: the one that needs somebody most.
                yield _screen(max(results, key=lambda result: result.exit_code))
            watcher.clock.wait(stop, config.interval_seconds)

    show_live(screens(), stop, watcher.clock, console=make_console())
    return codes[0]


def _screen(result: PassResult) -> ScreenModel:
    from nvrx_watch.ui.screen_model import build_screen

    snapshot = result.snapshot
    run = result.run
    return build_screen(
        snapshot,
        run.findings,
        result.history,
        result.reports,
        now=snapshot.taken_at,
        skipped=run.skipped,
        broken=run.broken,
    )


def _print(results: Sequence[PassResult], *, as_json: bool) -> None:
    for result in results:
        try:
            print(report_text(result, as_json=as_json), flush=True)
        except OSError as error:
            # A reader that has gone away must not turn a critical finding into a broken pass.
            log.warning("the report was not printed error=%s", error)
            _silence_output()


def report_text(result: PassResult, *, as_json: bool) -> str:
    """What a pass prints of one chain, without the line break at its end. JSON is one line."""
    run, snapshot = result.run, result.snapshot
    if not as_json:
        return render_report(
            snapshot, run.findings, result.reports, run.skipped, run.broken, snapshot.sources, result.notes
        )
    shown = report_object(
        snapshot,
        run.findings,
        result.reports,
        run.skipped,
        run.broken,
        snapshot.sources,
        result.notes,
        exit_code=result.exit_code,
        pass_seconds=result.seconds,
    )
    return json_line(msgspec.json.encode(shown))


def _silence_output() -> None:
    """What is still buffered would fail once more when Python ends, and turn the exit code into 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
