"""Log files: their names, their turning, what may not be written to; and what a sink does when it cannot write."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.log_files import LogFiles, NotALog
from nvrx_chain.launcher.log_settings import MIB, Kind, LogLimits, LogPlaces, app_log_path, log_limits, log_places
from nvrx_chain.launcher.log_sinks import DirectSink, StreamSink
from nvrx_chain.launcher.node_logs import open_node_logs


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "a 'log' & #1 100%"
    found.mkdir()
    return found


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/x/app.log", "/x/app_cycle3.log"),
        ("/x/app", "/x/app_cycle3.log"),
        ("/x/app.txt", "/x/app_cycle3.txt"),
        ("/x.d/app", "/x.d/app_cycle3.log"),
        ("/x/run.1.log", "/x/run.1_cycle3.log"),
    ],
)
def test_a_cycle_has_its_own_file(pattern: str, path: str) -> None:
    assert app_log_path(pattern, 3) == path


@pytest.mark.parametrize("path", ["app.log", "", "/", "/nowhere/at/all/app.log", "/tmp/a\0b", "/tmp/"])
def test_a_place_that_cannot_be_is_refused_with_its_name(path: str) -> None:
    with pytest.raises(UsageError):
        log_places(app_log=path, launcher_log=None)


def test_the_launcher_log_is_no_file_of_a_cycle(tmp_path: Path) -> None:
    for name in ("app_cycle0.log", "app_cycle12.log.3"):
        with pytest.raises(UsageError):
            log_places(app_log=str(tmp_path / "app.log"), launcher_log=str(tmp_path / name))
    assert log_places(app_log=str(tmp_path / "app.log"), launcher_log=str(tmp_path / "app.log"))


def test_limits_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        log_limits(memory_bytes=1, spill_bytes=0)
    with pytest.raises(UsageError):
        log_limits(memory_bytes=MIB, spill_bytes=-1)
    with pytest.raises(UsageError):
        log_limits(memory_bytes=MIB, spill_bytes=1, spill_directory=str(tmp_path / "none"))
    with pytest.raises(UsageError):
        log_places(app_log=str(tmp_path / "a"), launcher_log=None, rotate_bytes=10)
    with pytest.raises(UsageError):
        log_places(app_log=str(tmp_path / "a"), launcher_log=None, rotate_keep=0)


def test_direct_lines_go_to_the_file_of_their_cycle_behind_what_is_there(directory: Path) -> None:
    (directory / "app_cycle1.log").write_bytes(b"0: before\n")
    sink = DirectSink(LogPlaces(app_log=str(directory / "app.log"), launcher_log=str(directory / "l")), stall_seconds=1)
    sink.write(Kind.APP, 0, b"0: a\n")
    sink.write(Kind.APP, 1, b"0: b\n")
    sink.write(Kind.LAUNCHER, 0, b"said\n")
    assert sink.close(1.0)
    assert (directory / "app_cycle0.log").read_bytes() == b"0: a\n"
    assert (directory / "app_cycle1.log").read_bytes() == b"0: before\n0: b\n"
    assert (directory / "l").read_bytes() == b"said\n"


def test_a_file_that_would_grow_too_long_is_turned_and_the_oldest_one_dropped(directory: Path) -> None:
    places = LogPlaces(app_log=str(directory / "app.log"), rotate_bytes=MIB, rotate_keep=2)
    sink = DirectSink(places, stall_seconds=1)
    chunks = [b"%d" % number * (MIB // 2 - 1) + b"\n" for number in range(8)]
    for chunk in chunks:
        sink.write(Kind.APP, 0, chunk)
    sink.close(1.0)
    path = directory / "app_cycle0.log"
    assert path.read_bytes() == chunks[6] + chunks[7]
    assert Path(f"{path}.1").read_bytes() == chunks[4] + chunks[5]
    assert Path(f"{path}.2").read_bytes() == chunks[2] + chunks[3]
    assert len(os.listdir(directory)) == 3


def test_a_file_that_somebody_removed_is_made_anew(directory: Path) -> None:
    sink = DirectSink(LogPlaces(app_log=str(directory / "app.log")), stall_seconds=1)
    sink.write(Kind.APP, 0, b"a\n")
    (directory / "app_cycle0.log").unlink()
    sink.write(Kind.APP, 0, b"b\n")
    assert (directory / "app_cycle0.log").read_bytes() == b"b\n"
    sink.close(1.0)


@pytest.mark.parametrize("what", ["link", "fifo", "directory"])
def test_only_a_regular_file_is_a_log(directory: Path, what: str) -> None:
    path, victim = directory / "app_cycle0.log", directory / "victim"
    victim.write_bytes(b"precious\n")
    if what == "link":
        path.symlink_to(victim)
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    files = LogFiles(LogPlaces(app_log=str(directory / "app.log")))
    with pytest.raises((OSError, NotALog)):
        files.open(Kind.APP, 0)
    assert victim.read_bytes() == b"precious\n"


def test_many_cycles_keep_few_files_open(directory: Path) -> None:
    sink = DirectSink(LogPlaces(app_log=str(directory / "app.log")), stall_seconds=1)
    before = len(os.listdir("/proc/self/fd"))
    for cycle in range(1000):
        sink.write(Kind.APP, cycle, b"x\n")
    assert len(os.listdir("/proc/self/fd")) - before <= 8
    sink.close(1.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_comes_back_in_time_costs_no_line(directory: Path) -> None:
    gone = directory / "gone"
    sink = DirectSink(LogPlaces(app_log=str(gone / "app.log")), stall_seconds=20)
    timer = threading.Timer(0.3, gone.mkdir)
    timer.start()
    sink.write(Kind.APP, 0, b"a\n")
    timer.join()
    assert (gone / "app_cycle0.log").read_bytes() == b"a\n"
    assert sink.close(1.0)


def test_lines_that_could_not_be_written_are_counted_where_they_are_missing(directory: Path) -> None:
    gone = directory / "gone"
    sink = DirectSink(LogPlaces(app_log=str(gone / "app.log")), stall_seconds=0)
    sink.write(Kind.APP, 0, b"a\nb\n")
    sink.write(Kind.APP, 0, b"c\n")
    gone.mkdir()
    sink.write(Kind.APP, 0, b"d\n")
    missed, last = (gone / "app_cycle0.log").read_text().splitlines()
    assert missed.startswith("nvrx-chain: 3 lines (6 bytes) of this node were dropped here")
    assert last == "d"
    assert not sink.close(1.0)


def test_a_log_that_cannot_be_written_to_does_not_fill_itself_with_complaints(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = DirectSink(LogPlaces(launcher_log=str(directory / "gone" / "l")), stall_seconds=0)
    for _ in range(100):
        sink.write(Kind.LAUNCHER, 0, b"a complaint that came back\n")
    assert len(caplog.records) == 2


def test_a_sink_that_is_told_to_hurry_waits_no_longer(directory: Path) -> None:
    sink = DirectSink(LogPlaces(app_log=str(directory / "gone" / "app.log")), stall_seconds=600)
    thread = threading.Thread(target=sink.write, args=(Kind.APP, 0, b"a\n"))
    thread.start()
    sink.hurry()
    thread.join(10.0)
    assert not thread.is_alive()


def test_without_files_lines_go_to_standard_output_and_the_launchers_own_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sink = StreamSink()
    sink.write(Kind.APP, 0, b"0: a\n")
    sink.write(Kind.LAUNCHER, 0, b"said\n")
    assert sink.close(1.0)
    assert capfd.readouterr() == ("0: a\n", "said\n")


def test_logs_open_as_what_was_asked_for(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = open_node_logs(LogPlaces(), LogLimits(), node_id="n", prefix_ranks=True)
    assert plain.close("said")
    assert capfd.readouterr().err == "said\n"
    direct = open_node_logs(LogPlaces(launcher_log=str(directory / "l")), LogLimits(), node_id="n")
    assert direct.close("said")
    assert (directory / "l").read_bytes() == b"said\n"
