"""The log funnel with real processes: nodes, the one writer, and what happens to them.

A node here is a `NodeLogs` in this process, or a process of its own where it is killed; the writer is the real one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrx_chain.launcher.funnel_client import FunnelClient
from nvrx_chain.launcher.funnel_host import FunnelServer, FunnelSettings, start_funnel_server
from nvrx_chain.launcher.log_settings import MIB, Kind, LogLimits, LogPlaces
from nvrx_chain.launcher.node_logs import NodeLogs, open_node_logs

pytestmark = pytest.mark.integration

SECRET = "the secret of the job"
PATIENCE_SECONDS = 60.0
WRITER = """
import hashlib, random, sys, time
rank, count, pace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
out, random = sys.stdout.buffer, random.Random(rank)
digest = hashlib.sha256()
for number in range(count):
    kind = random.randrange(100)
    text = "%d " % number
    text += "é€𝄞" * 2000 if kind == 0 else "10%\\r20%\\u2028\\x85" if kind == 1 else "x" * random.randrange(200)
    if kind == 2 and number % 7 == 0:
        text += "y" * (1 << 20)
    line = text.encode() + b"\\n"
    digest.update(line)
    out.write(line if number < count - 1 else line[:-1])
    if pace and number % 50 == 0:
        out.flush()
        time.sleep(pace)
out.flush()
print(digest.hexdigest(), file=sys.stderr)
"""


class Funnel:
    """A writer and the nodes that send to it."""

    def __init__(self, directory: Path, places: LogPlaces) -> None:
        self.directory = directory
        self.places = places
        self.server: FunnelServer = start_funnel_server(FunnelSettings(places=places), SECRET)
        self.nodes: list[NodeLogs] = []

    def node(self, limits: LogLimits | None = None) -> NodeLogs:
        logs = open_node_logs(
            self.places,
            limits or LogLimits(),
            node_id=f"node{len(self.nodes)}",
            funnel=("localhost", self.server.port),
            secret=SECRET,
        )
        self.nodes.append(logs)
        return logs

    def kill_writer(self) -> None:
        victim = self.server.pid
        os.kill(victim, signal.SIGKILL)
        until(self.server.has_ended, "the writer is dead")

    def app(self, cycle: int = 0) -> bytes:
        return (self.directory / f"app_cycle{cycle}.log").read_bytes()

    def launcher(self) -> str:
        path = self.directory / "launcher.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "logs of 'a' & #1 100%"
    found.mkdir()
    return found


@pytest.fixture
def funnel(directory: Path) -> Iterator[Funnel]:
    places = LogPlaces(app_log=str(directory / "app.log"), launcher_log=str(directory / "launcher.log"))
    found = Funnel(directory, places)
    yield found
    for node in found.nodes:
        node.close(pipes_seconds=0.0, sink_seconds=0.0)
    found.server.stop(10.0)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def start_rank(logs: NodeLogs, rank: int, count: int, pace: float = 0.0, world: int = 8) -> subprocess.Popen[bytes]:
    reading, writing = os.pipe()
    argv = [sys.executable, "-c", WRITER, str(rank), str(count), str(pace)]
    process = subprocess.Popen(argv, stdout=writing, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUTF8": "1"})
    os.close(writing)
    logs.attach(reading).assign(0, rank, world)
    return process


def await_digest(process: subprocess.Popen[bytes]) -> str:
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    return said.decode().strip()


def digests_in(log: bytes) -> dict[int, str]:
    """Digest of the lines of each rank, without the prefix; every line must have one."""
    sums: dict[int, hashlib._Hash] = {}
    assert log.endswith(b"\n")
    for line in log[:-1].split(b"\n"):
        prefix, colon, rest = line.partition(b": ")
        assert colon, line[:100]
        assert prefix.isdigit(), line[:100]
        sums.setdefault(int(prefix), hashlib.sha256()).update(rest + b"\n")
    return {rank: found.hexdigest() for rank, found in sums.items()}


def close_all(funnel: Funnel) -> None:
    for node in funnel.nodes:
        assert node.close(pipes_seconds=PATIENCE_SECONDS, sink_seconds=PATIENCE_SECONDS)
    funnel.nodes.clear()


def test_every_byte_arrives_once_and_in_order_while_the_writer_is_killed_again_and_again(funnel: Funnel) -> None:
    nodes = [funnel.node() for _ in range(3)]
    ranks = {rank: start_rank(nodes[rank % 3], rank, 3000, pace=0.03) for rank in range(6)}
    kills = 0
    while any(process.poll() is None for process in ranks.values()):
        until(lambda: bool(list(funnel.directory.iterdir())), "lines in a file")
        time.sleep(0.25)
        funnel.kill_writer()
        kills += 1
        time.sleep(0.05)
        funnel.server.restart()
    expected = {rank: await_digest(process) for rank, process in ranks.items()}
    close_all(funnel)
    assert kills >= 3
    assert digests_in(funnel.app()) == expected


@pytest.mark.slow
def test_lines_survive_a_writer_that_stands_still_in_memory_and_in_a_file(funnel: Funnel, tmp_path: Path) -> None:
    node = funnel.node(LogLimits(memory_bytes=MIB, spill_bytes=500 * MIB, spill_directory=str(tmp_path)))
    os.kill(funnel.server.pid, signal.SIGSTOP)
    try:
        status = Path(f"/proc/{funnel.server.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the writer stands still")
        ranks = {rank: start_rank(node, rank, 4000) for rank in range(4)}
        expected = {rank: await_digest(process) for rank, process in ranks.items()}
        time.sleep(3.0)
    finally:
        os.kill(funnel.server.pid, signal.SIGCONT)
    close_all(funnel)
    assert digests_in(funnel.app()) == expected
    assert [path for path in tmp_path.iterdir() if path != funnel.directory] == []


def test_a_writer_that_is_away_for_longer_than_the_limits_costs_lines_that_are_counted(funnel: Funnel) -> None:
    limits = LogLimits(memory_bytes=MIB, spill_bytes=0, stall_seconds=0.5)
    client = FunnelClient(("localhost", funnel.server.port), SECRET, "n", funnel.places, limits)
    funnel.kill_writer()
    client.start()
    total = 100_000
    lines = [b"%07d\n" % number * 100 for number in range(total // 100)]
    for chunk in lines:
        client.write(Kind.APP, 0, chunk * 10)
    funnel.server.restart()
    assert not client.close(PATIENCE_SECONDS)
    found = funnel.app().decode().splitlines()
    notes = [line for line in found if line.startswith("nvrx-chain: ")]
    kept = [int(line) for line in found if not line.startswith("nvrx-chain: ")]
    assert notes
    assert sum(int(line.split()[1]) for line in notes) + len(kept) == total * 10
    assert kept == sorted(kept)


@pytest.mark.slow
def test_workers_are_held_up_by_a_full_node_and_nothing_is_lost(funnel: Funnel) -> None:
    node = funnel.node(LogLimits(memory_bytes=MIB, spill_bytes=MIB, stall_seconds=PATIENCE_SECONDS))
    os.kill(funnel.server.pid, signal.SIGSTOP)
    rank = start_rank(node, 0, 30_000)
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(2.0)
    os.kill(funnel.server.pid, signal.SIGCONT)
    expected = {0: await_digest(rank)}
    close_all(funnel)
    assert digests_in(funnel.app()) == expected


def test_what_the_writer_never_took_is_put_aside_beside_the_logs(funnel: Funnel) -> None:
    node = funnel.node()
    funnel.kill_writer()
    rank = start_rank(node, 0, 500)
    expected = {0: await_digest(rank)}
    begin = time.monotonic()
    assert not node.close("the last line", sink_seconds=1.0)
    assert time.monotonic() - begin < 5.0
    assert digests_in((funnel.directory / "app.unsent-node0_cycle0.log").read_bytes()) == expected
    assert (funnel.directory / "launcher.unsent-node0.log").read_text().endswith("the last line\n")


def test_lines_without_a_file_go_to_the_streams_and_hold_no_others_up(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    funnel = Funnel(directory, LogPlaces(app_log=str(directory / "app.log")))
    same = funnel.node()
    same.write_launcher("said here")
    other = funnel.places
    funnel.places = LogPlaces(app_log=other.app_log, launcher_log=str(directory / "l.log"))
    odd = funnel.node()
    odd.write_launcher("said elsewhere")
    rank = start_rank(odd, 0, 100)
    expected = {0: await_digest(rank)}
    odd.write_launcher("said elsewhere again")
    close_all(funnel)
    assert funnel.server.stop(10.0)
    assert digests_in(funnel.app()) == expected
    said = capfd.readouterr().err.splitlines()
    assert sorted(line for line in said if line.startswith("said")) == [
        "said elsewhere",
        "said elsewhere again",
        "said here",
    ]


def test_lines_from_before_it_is_known_where_the_writer_is_wait_for_it(funnel: Funnel) -> None:
    logs = open_node_logs(funnel.places, LogLimits(), node_id="early", is_funnelled=True, secret=SECRET)
    logs.write_launcher("before")
    logs.aim(("localhost", funnel.server.port))
    assert logs.close("after")
    assert funnel.launcher() == "before\nafter\n"
    never = open_node_logs(funnel.places, LogLimits(), node_id="never", is_funnelled=True, secret=SECRET)
    assert not never.close("no writer", pipes_seconds=0.1, sink_seconds=0.2)
    assert (funnel.directory / "launcher.unsent-never.log").read_text() == "no writer\n"


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_a_launcher_that_must_leave_is_not_kept_by_a_writer_that_does_not_answer(funnel: Funnel, how: str) -> None:
    if how == "frozen":
        os.kill(funnel.server.pid, signal.SIGSTOP)
    else:
        funnel.kill_writer()  # the port is still held by the launcher: connections wait in its backlog
    node = funnel.node()
    node.write_launcher("before")
    time.sleep(0.3)
    begin = time.monotonic()
    assert not node.close("the last line", pipes_seconds=0.2, sink_seconds=0.3)
    assert time.monotonic() - begin < 1.5
    assert (funnel.directory / "launcher.unsent-node0.log").read_text() == "before\nthe last line\n"
    if how == "frozen":
        os.kill(funnel.server.pid, signal.SIGCONT)


def test_a_launcher_whose_host_is_dead_puts_its_lines_aside_at_once(funnel: Funnel) -> None:
    node = funnel.node()
    node.write_launcher("before")
    until(lambda: "before" in funnel.launcher(), "a connection")
    funnel.kill_writer()
    funnel.server.stop(1.0)
    begin = time.monotonic()
    assert not node.close("the last line", sink_seconds=30.0)
    assert time.monotonic() - begin < 2.0
    assert (funnel.directory / "launcher.unsent-node0.log").read_text() == "the last line\n"
    funnel.server = start_funnel_server(FunnelSettings(places=funnel.places), SECRET)


def test_lines_wait_for_a_directory_that_is_gone_for_a_while(funnel: Funnel) -> None:
    node = funnel.node()
    away = funnel.directory.with_name("away")
    funnel.directory.rename(away)
    node.write_launcher("while it was gone")
    time.sleep(1.0)
    assert not funnel.server.has_ended()
    away.rename(funnel.directory)
    close_all(funnel)
    assert funnel.launcher() == "while it was gone\n"


def test_strangers_are_refused_with_one_line_each_and_disturb_nobody(funnel: Funnel, tmp_path: Path) -> None:
    node = funnel.node()
    elsewhere = LogPlaces(app_log=str(tmp_path / "stranger.log"))
    stranger = FunnelClient(("localhost", funnel.server.port), "another secret", "evil", elsewhere, LogLimits())
    stranger.start()
    stranger.write(Kind.APP, 0, b"forged\n")
    until(lambda: "not signed with the secret" in funnel.launcher(), "the refusal")
    for data in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3, b"\0" * 5000, os.urandom(100_000)):
        with socket.create_connection(("localhost", funnel.server.port), 5.0) as connection:
            connection.settimeout(10.0)
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                while connection.recv(4096):
                    pass
    assert not stranger.close(0.2)
    rank = start_rank(node, 0, 1000)
    expected = {0: await_digest(rank)}
    close_all(funnel)
    assert digests_in(funnel.app()) == expected
    refusals = [line for line in funnel.launcher().splitlines() if "a connection is refused" in line]
    assert 4 <= len(refusals) <= 20
    assert SECRET not in funnel.launcher()
    assert sorted(path.name for path in funnel.directory.iterdir()) == ["app_cycle0.log", "launcher.log"]


def test_a_crowd_that_says_nothing_keeps_no_node_out(funnel: Funnel) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(250):
            stack.enter_context(socket.create_connection(("localhost", funnel.server.port), 5.0))
        node = funnel.node()
        rank = start_rank(node, 0, 100)
        expected = {0: await_digest(rank)}
        close_all(funnel)
    assert digests_in(funnel.app()) == expected


def test_the_secret_is_on_no_command_line_and_in_no_environment(funnel: Funnel) -> None:
    place = Path(f"/proc/{funnel.server.pid}")
    assert SECRET.encode() not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()


def test_signals_that_slurm_sends_to_a_step_do_not_end_the_writer(funnel: Funnel) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        os.kill(funnel.server.pid, number)
    node = funnel.node()
    node.write_launcher("still here")
    close_all(funnel)
    assert not funnel.server.has_ended()
    assert "still here" in funnel.launcher()


def test_files_are_turned_by_size_and_nothing_is_lost_when_all_are_kept(directory: Path) -> None:
    places = LogPlaces(app_log=str(directory / "app.log"), rotate_bytes=MIB, rotate_keep=1000)
    funnel = Funnel(directory, places)
    node = funnel.node()
    ranks = {rank: start_rank(node, rank, 4000) for rank in range(2)}
    deadline = threading.Timer(0.2, funnel.kill_writer)
    deadline.start()
    deadline.join()
    funnel.server.restart()
    expected = {rank: await_digest(process) for rank, process in ranks.items()}
    close_all(funnel)
    assert funnel.server.stop(10.0)
    names = sorted((int(path.suffix[1:]), path) for path in directory.glob("app_cycle0.log.*"))
    assert len(names) > 5
    whole = b"".join(path.read_bytes() for _, path in reversed(names)) + funnel.app()
    assert digests_in(whole) == expected
    assert all(path.stat().st_size <= MIB + MIB + (1 << 18) for _, path in names)


def test_a_killed_launcher_leaves_whole_lines_and_its_writer_takes_the_last_ones_of_the_others(tmp_path: Path) -> None:
    code = """
import sys, time
from nvrx_chain.launcher.funnel_host import FunnelSettings, start_funnel_server
from nvrx_chain.launcher.log_settings import LogPlaces
server = start_funnel_server(FunnelSettings(places=LogPlaces(app_log=sys.argv[1])), "s")
print(server.port, server.pid, flush=True)
time.sleep(600)
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "app.log")]
    launcher = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    port, writer = map(int, launcher.stdout.readline().split())
    descriptor = os.pidfd_open(writer)
    client = FunnelClient(
        ("localhost", port), "s", "other node", LogPlaces(app_log=str(tmp_path / "app.log")), LogLimits()
    )
    client.start()
    client.write(Kind.APP, 0, b"0: step 1\n")
    until((tmp_path / "app_cycle0.log").exists, "the first line")
    launcher.kill()
    launcher.wait(PATIENCE_SECONDS)
    client.write(Kind.APP, 0, b"0: trace of the crash\n")
    assert client.close(2.0)
    assert (tmp_path / "app_cycle0.log").read_bytes() == b"0: step 1\n0: trace of the crash\n"
    assert select.select([descriptor], [], [], 10.0)[0], "the writer outlives its launcher"
    os.close(descriptor)
    launcher.stdout.close()


def test_a_connection_that_never_ends_does_not_keep_the_writer_of_a_dead_launcher(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from nvrx_chain.launcher.funnel_host import FunnelSettings, start_funnel_server
from nvrx_chain.launcher.log_settings import LogPlaces
server = start_funnel_server(FunnelSettings(places=LogPlaces(app_log=sys.argv[1])), "s")
print(server.port, server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    argv = [sys.executable, "-c", code, str(tmp_path / "app.log")]
    launcher = subprocess.Popen(argv, stdout=subprocess.PIPE)
    said, _ = launcher.communicate(timeout=PATIENCE_SECONDS)
    port, writer = map(int, said.split())
    held = socket.socket()
    with contextlib.suppress(OSError):
        held.connect(("localhost", port))  # a connection that never ends
    until(lambda: not Path(f"/proc/{writer}").exists(), "the writer is gone")
    held.close()


def test_a_node_killed_in_the_middle_of_its_lines_leaves_no_torn_line(funnel: Funnel) -> None:
    code = """
import sys
from nvrx_chain.launcher.funnel_client import FunnelClient
from nvrx_chain.launcher.log_settings import Kind, LogLimits, LogPlaces
places = LogPlaces(app_log="/nowhere")
client = FunnelClient(("localhost", int(sys.argv[1])), sys.argv[2], "victim", places, LogLimits(flush_seconds=0.0))
client.start()
number = 0
while True:
    client.write(Kind.APP, 0, b"".join(b"7: %09d%s\\n" % (i, b"x" * 3000) for i in range(number, number + 100)))
    number += 100
"""
    victim = subprocess.Popen([sys.executable, "-c", code, str(funnel.server.port), SECRET])
    until(lambda: (funnel.directory / "app_cycle0.log").exists() and len(funnel.app()) > 10 * MIB, "lines")
    victim.kill()
    assert victim.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    node = funnel.node()
    node.write_launcher("another one lives")
    close_all(funnel)
    lines = funnel.app().split(b"\n")
    assert lines.pop() == b""
    assert lines == [b"7: %09d%s" % (number, b"x" * 3000) for number in range(len(lines))]


@pytest.mark.slow
def test_a_thousand_cycles_and_a_hundred_nodes_leave_nothing_open(funnel: Funnel) -> None:
    node = funnel.node()

    def open_files(pid: int | str) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    def one(cycle: int) -> None:
        reading, writing = os.pipe()
        tap = node.attach(reading)
        tap.assign(cycle, 0, 1)
        os.write(writing, b"x\n")
        os.close(writing)
        assert tap.wait(PATIENCE_SECONDS)

    for cycle in range(10):
        one(cycle)
    until((funnel.directory / "app_cycle9.log").exists, "the first cycles")
    before = open_files(funnel.server.pid), open_files("self"), threading.active_count()
    for cycle in range(10, 1000):
        one(cycle)
    for number in range(100):
        client = FunnelClient(("localhost", funnel.server.port), SECRET, f"short {number}", funnel.places, LogLimits())
        client.start()
        client.write(Kind.LAUNCHER, 0, b"hello\n")
        assert client.close(PATIENCE_SECONDS)
    until((funnel.directory / "app_cycle999.log").exists, "the last cycle")
    until(lambda: open_files(funnel.server.pid) <= before[0] + 8, "files of the writer are closed")
    assert (open_files("self"), threading.active_count()) == before[1:]
    assert all(funnel.app(cycle) == b"0: x\n" for cycle in range(1000))
