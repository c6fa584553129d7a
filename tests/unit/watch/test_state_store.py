"""State between passes: kept, or empty with a note, whatever lies in its place; and one watcher per chain."""

from __future__ import annotations

import os
import resource
import select
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrx_watch import state_store
from nvrx_watch.history import due_notices, mark_good_pass, mark_sent, update_history
from nvrx_watch.history_model import History, Incident, IncidentState, SinkPolicy
from nvrx_watch.memory import Memory, Seen, observe
from nvrx_watch.model import Finding, Severity, Subject
from nvrx_watch.state_store import SCHEMA, StateStore, WatchState

KEY = "c0ffee"
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
STORM = Finding(detector="restart_storm", severity=Severity.WARNING, scope="chain", title="a storm")
SUBJECT = Subject(key=KEY, name="train", user="alice", uid=1000)
EMPTY = (Memory(), History())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a b&c#'100%\"" / "state"


@pytest.fixture
def store(directory: Path) -> StateStore:
    return StateStore(directory)


def some_state() -> tuple[Memory, History]:
    history = update_history(History(), [STORM], blind=frozenset(), now=NOW)
    [(sink, notice)] = due_notices(history, [STORM], SUBJECT, [SinkPolicy(name="pager")], NOW)
    memory = observe(Memory(), {"iteration": 7, "queue_empty": "no", "live_generation": None}, NOW)
    return memory, mark_sent(history, sink, notice, NOW)


def test_what_is_saved_is_loaded(store: StateStore) -> None:
    memory, history = some_state()
    assert store.save(KEY, memory, history) == ()
    assert StateStore(store.path_of(KEY).parent).load(KEY) == (memory, history, ())


def test_nothing_saved_yet_is_empty_without_a_note(store: StateStore) -> None:
    assert store.load(KEY) == (*EMPTY, ())


def test_nobody_else_can_read_it(store: StateStore) -> None:
    store.save(KEY, *some_state())
    path = store.path_of(KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_chains_do_not_share_a_file(store: StateStore) -> None:
    memory, history = some_state()
    store.save("bob/train 7b", memory, history)
    store.save("bob/train-7b", Memory(), History())
    assert store.load("bob/train 7b") == (memory, history, ())
    assert store.path_of("bob/train 7b").name.startswith("bob-train-7b.")


@given(st.text(alphabet=st.characters()))
def test_any_key_is_a_file_in_the_directory(key: str) -> None:
    path = StateStore(Path("/state")).path_of(key)
    assert path.parent == Path("/state")
    assert path.name.isascii()
    assert len(path.name) < 120
    assert not path.name.startswith(".")


def valid() -> bytes:
    memory, history = some_state()
    return msgspec.json.encode(WatchState(schema=SCHEMA, subject=KEY, memory=memory, history=history))


def wrong_key() -> bytes:
    incident = Incident(
        key="a:b",
        detector="a",
        severity=Severity.INFO,
        title="t",
        state=IncidentState.FIRING,
        first_seen_at="",
        last_seen_at="",
    )
    state = WatchState(schema=SCHEMA, subject=KEY, memory=Memory(), history=History(incidents={"c:d": incident}))
    return msgspec.json.encode(state)


DAMAGED = {
    "empty": b"",
    "cut": valid()[:-20],
    "list": b"[]",
    "null": b"null",
    "other shape": b'{"schema": 1}',
    "not utf-8": valid().replace(b"restart_storm", b"restart\xff\xfestorm"),
    "lone surrogate": valid().replace(b"a storm", b"\\ud800"),
    "deep": b'{"x":' * 100_000,
    "huge number": valid().replace(b'"value":7', b'"value":' + b"9" * 5000),
    "other schema": valid().replace(b'"schema":1', b'"schema":2'),
    "other chain": valid().replace(b'"subject":"c0ffee"', b'"subject":"other"'),
    "unknown severity": valid().replace(b'"severity":"warning"', b'"severity":"doom"'),
    "incident under another key": wrong_key(),
    "too large": valid() + b" " * (state_store.MAX_STATE_BYTES + 1),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_an_empty_state_with_a_note_and_is_replaced(store: StateStore, content: bytes) -> None:
    assert content != valid()
    path = store.path_of(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    memory, history, notes = store.load(KEY)
    assert (memory, history) == EMPTY
    assert len(notes) == 1
    assert "the state of earlier passes is lost, notices may repeat once" in notes[0]
    assert store.save(KEY, *some_state()) == ()
    assert store.load(KEY)[2] == ()


def make_directory(path: Path) -> None:
    path.mkdir()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.write_bytes(valid())
    path.symlink_to(elsewhere)


def make_foreign(path: Path) -> None:
    path.write_bytes(valid())
    os.chown(path, 12345, 12345)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


@pytest.mark.parametrize("make", [make_directory, make_fifo, make_link, pytest.param(make_foreign, marks=needs_root)])
def test_what_is_no_file_of_ours_is_not_believed(store: StateStore, make: Callable[[Path], None]) -> None:
    path = store.path_of(KEY)
    path.parent.mkdir(parents=True)
    make(path)
    memory, history, notes = store.load(KEY)
    assert (memory, history) == EMPTY
    assert len(notes) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.tuples(st.integers(0, len(valid())), st.integers(0, 40), st.binary(max_size=5)).map(
            lambda cut: valid()[: cut[0]] + cut[2] + valid()[cut[0] + cut[1] :]
        ),
    )
)
def test_no_bytes_crash_a_pass(tmp_path: Path, content: bytes) -> None:
    store = StateStore(tmp_path)
    store.path_of(KEY).write_bytes(content)
    memory, history, _ = store.load(KEY)
    memory = observe(memory, {"iteration": 8}, NOW)
    history = update_history(history, [STORM], blind=frozenset(), now=NOW)
    for sink, notice in due_notices(history, [STORM], SUBJECT, [SinkPolicy(name="pager")], NOW):
        history = mark_sent(history, sink, notice, NOW)
    assert due_notices(history, [STORM], SUBJECT, [SinkPolicy(name="pager")], NOW) == ()
    assert store.save(KEY, memory, history) == ()
    assert store.load(KEY) == (memory, history, ())


TEXT = st.text(max_size=20)
SEEN = st.builds(
    Seen,
    value=st.one_of(st.none(), TEXT, st.integers(-(2**63), 2**63 - 1)),
    since=TEXT,
    looked_at=TEXT,
    changes=st.integers(0, 2**62),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(TEXT, SEEN, max_size=5), st.dictionaries(TEXT, TEXT, max_size=3))
def test_any_memory_and_history_survive_the_round_trip(
    tmp_path: Path, seen: dict[str, Seen], sent: dict[str, str]
) -> None:
    _, history = some_state()
    incident = msgspec.structs.replace(history.incidents[STORM.key], sent=sent)
    history = msgspec.structs.replace(history, incidents={STORM.key: incident})
    store = StateStore(tmp_path)
    assert store.save(KEY, Memory(seen=seen), history) == ()
    assert store.load(KEY) == (Memory(seen=seen), history, ())


def test_values_that_no_record_holds_are_left_out_and_the_rest_is_kept(store: StateStore) -> None:
    memory, history = some_state()
    absurd = observe(memory, {"a": 10**5000, "b": "\ud800", "\udcff": 1, "c": -(2**63) - 1}, NOW)
    assert store.save(KEY, absurd, history) == ("4 absurd values are not kept",)
    assert store.load(KEY) == (memory, history, ())


def test_a_memory_that_is_too_large_to_be_read_again_does_not_cost_the_history(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "MAX_STATE_BYTES", 2000)
    memory, history = some_state()
    big = observe(memory, {f"name{number}": number for number in range(100)}, NOW)
    [note] = store.save(KEY, big, history)
    assert "over 2000 bytes" in note
    assert store.load(KEY) == (Memory(), history, ())


def test_a_settled_state_is_written_when_something_happens_and_at_the_end(directory: Path) -> None:
    store = StateStore(directory, settle_seconds=3600)
    fresh = StateStore(directory)
    memory, history = some_state()
    assert store.save(KEY, memory, history) == ()
    later = NOW + timedelta(minutes=1)
    moved = observe(memory, {"iteration": 8}, later)
    seen = mark_good_pass(update_history(history, [STORM], blind=frozenset(), now=later), later)
    assert store.save(KEY, moved, seen) == ()
    assert fresh.load(KEY) == (memory, history, ())
    assert store.flush() == ()
    assert fresh.load(KEY) == (moved, seen, ())
    quiet = update_history(seen, [], blind=frozenset(), now=later)
    assert store.save(KEY, moved, quiet) == ()
    assert fresh.load(KEY) == (moved, quiet, ())
    assert store.flush() == ()


@pytest.mark.parametrize("blocked", ["a file in its place", "no right to write", "no such device"])
def test_a_directory_that_takes_nothing_is_a_note(tmp_path: Path, blocked: str) -> None:
    directory = tmp_path / "state"
    if blocked == "a file in its place":
        directory.write_text("")
    elif blocked == "no right to write":
        # /proc refuses root as well.
        directory = Path("/proc/sys/state")
    else:
        directory = Path("/dev/full/state")
    store = StateStore(directory)
    assert store.load(KEY)[:2] == EMPTY
    [note] = store.save(KEY, *some_state())
    assert note.startswith("the state could not be saved, notices may repeat after a restart")
    lock = store.try_lock(KEY)
    assert lock is not None
    with lock:
        assert lock.note is not None


def test_a_write_that_is_cut_short_keeps_the_state_before(store: StateStore) -> None:
    memory, history = some_state()
    assert store.save(KEY, memory, history) == ()
    big = observe(memory, {f"name{number}": number for number in range(5000)}, NOW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        [note] = store.save(KEY, big, history)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in note
    assert store.load(KEY) == (memory, history, ())
    assert len(list(store.path_of(KEY).parent.iterdir())) == 1


def test_a_directory_that_hangs_costs_the_deadline_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    calls: list[int] = []

    def hang(*args: object, **kwargs: object) -> None:
        calls.append(1)
        assert release.wait(30)

    monkeypatch.setattr(state_store, "read_bytes", hang)
    store = StateStore(directory, deadline_seconds=0.2)
    memory, history, [note] = store.load(KEY)
    assert (memory, history) == EMPTY
    assert "not done within 0.2 s" in note
    assert "an earlier try still hangs" in store.load(KEY)[2][0]
    assert "an earlier try still hangs" in store.save(KEY, *some_state())[0]
    lock = store.try_lock(KEY)
    assert lock is not None
    assert "an earlier try still hangs" in (lock.note or "")
    assert len(calls) == 1
    release.set()


SECOND = """
import sys
from pathlib import Path
from nvrx_watch.state_store import StateStore
lock = StateStore(Path(sys.argv[1])).try_lock(sys.argv[2])
print("refused" if lock is None else "held", flush=True)
sys.stdin.readline()
"""


def second_run(directory: Path, key: str = KEY) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SECOND, str(directory), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def said(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    ready, _, _ = select.select([run.stdout], [], [], 60)
    assert ready
    return run.stdout.readline().strip()


def test_a_second_run_is_told_at_once_and_another_chain_is_free(store: StateStore, directory: Path) -> None:
    lock = store.try_lock(KEY)
    assert lock is not None
    with lock:
        assert lock.note is None
        assert store.try_lock(KEY) is None
        for key, word in ((KEY, "refused"), ("other", "held")):
            run = second_run(directory, key)
            assert said(run) == word
            run.communicate("\n", timeout=60)
    run = second_run(directory)
    assert said(run) == "held"
    run.communicate("\n", timeout=60)


def test_a_killed_run_leaves_no_lock(store: StateStore, directory: Path) -> None:
    run = second_run(directory)
    assert said(run) == "held"
    assert store.try_lock(KEY) is None
    run.kill()
    run.communicate(timeout=60)
    lock = store.try_lock(KEY)
    assert lock is not None
    lock.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_reader_that_outlives_its_watcher_keeps_no_lock(store: StateStore) -> None:
    lock = store.try_lock(KEY)
    assert lock is not None
    reading, writing = os.pipe()
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(says, b"x")
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.close(says)
    try:
        assert os.read(heard, 1) == b"x"
        lock.close()
        again = store.try_lock(KEY)
        assert again is not None
        assert again.note is None
        again.close()
    finally:
        os.close(writing)
        os.close(heard)
        os.waitpid(child, 0)


def test_a_lock_file_that_is_a_link_is_not_followed(store: StateStore, directory: Path) -> None:
    directory.mkdir(parents=True)
    victim = directory / "victim"
    (directory / store.path_of(KEY).with_suffix(".lock").name).symlink_to(victim)
    lock = store.try_lock(KEY)
    assert lock is not None
    assert lock.note is not None
    assert not victim.exists()


def test_a_subject_that_is_forgotten_is_written_and_kept_on_disk_only(directory: Path) -> None:
    store = StateStore(directory, settle_seconds=3600)
    memory, history = some_state()
    store.save(KEY, memory, history)
    newer = observe(memory, {"iteration": 8}, NOW)
    store.save(KEY, newer, history)
    assert store.load(KEY)[0] == memory
    assert store.forget(KEY) == ()
    assert store.load(KEY)[0] == newer
    assert (store._written, store._pending) == ({}, {})
    assert store.forget("never seen") == ()
