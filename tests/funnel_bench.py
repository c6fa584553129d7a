"""Measures the log funnel: `python -m tests.funnel_bench [--rounds 5] [--lines 400000]`.

Eight senders, spread over two nodes, write lines of 120 bytes as fast as they can through pipes, readers, clients and
the one writer into one file; each one's lines are compared by digest. Then a worker that computes, beside another
one that writes 1,000 lines a second into the funnel and to /dev/null, in turns within one run.
Touches: a temporary directory, child processes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.launcher.funnel_host import FunnelServer, FunnelSettings, start_funnel_server
from nvrx_chain.launcher.log_settings import LogLimits, LogPlaces
from nvrx_chain.launcher.node_logs import NodeLogs, open_node_logs

SENDERS = 8
NODES = 2
LINE_BYTES = 120
SECRET = "a secret of the bench"
WAIT_SECONDS = 300.0
SLICE_SECONDS = 0.5

SENDER = """
import sys
number, count = int(sys.argv[1]), int(sys.argv[2])
out = sys.stdout.buffer
step = 500
for start in range(0, count, step):
    out.write(b"".join((b"%d %09d " % (number, i)).ljust(119, b"x") + b"\\n" for i in range(start, start + step)))
"""
STEADY = r"""
import os, sys, time
slice_seconds, pipe, none = float(sys.argv[1]), 1, os.open("/dev/null", os.O_WRONLY)
at = time.monotonic()
line = b"x" * 119 + b"\n"
while True:
    out = pipe if int(at / slice_seconds) % 2 else none
    for _ in range(10):
        os.write(out, line)
    at += 0.01
    time.sleep(max(0.0, at - time.monotonic()))
"""
COMPUTE = """
import sys, time, torch
torch.set_num_threads(1)
seconds, slice_seconds = float(sys.argv[1]), float(sys.argv[2])
x = torch.randn(256, 256)
for _ in range(50): x = torch.tanh(x @ x)
steps = {}
end = time.monotonic() + seconds
while (now := time.monotonic()) < end:
    x = torch.tanh(x @ x)
    slice = int(now / slice_seconds)
    steps[slice] = steps.get(slice, 0) + 1
whole = sorted(steps)[1:-1]
print(*[f"{number}:{steps[number]}" for number in whole], flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """One run at full speed; CPU seconds are per 100,000 lines."""

    lines_per_second: float
    node_cpu: float
    writer_cpu: float
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Steps a second of a computing worker, and CPU seconds of the funnel in a second of 1,000 lines."""

    alone: float
    beside: float
    slices: int
    node_cpu: float
    writer_cpu: float


def open_node(node: int, server: FunnelServer, places: LogPlaces) -> NodeLogs:
    return open_node_logs(places, LogLimits(), node_id=f"node{node}", funnel=("localhost", server.port), secret=SECRET)


def start_rank(node: NodeLogs, rank: int, world: int, code: str, *words: str) -> subprocess.Popen[bytes]:
    """A process whose output is that of a rank from its first byte on."""
    reading, writing = os.pipe()
    node.attach(reading, rank=(0, rank, world))
    command = [sys.executable, "-c", code, *words]
    process = subprocess.Popen(command, stdout=writing, env=dict(os.environ, OMP_NUM_THREADS="1"))
    os.close(writing)
    return process


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def expected_digest(sender: int, count: int) -> str:
    lines = ((b"%d %09d " % (sender, i)).ljust(119, b"x") + b"\n" for i in range(count))
    return hashlib.sha256(b"".join(lines)).hexdigest()


def found_digests(path: Path) -> dict[int, str]:
    """Digest of each sender's lines in the order of the file, without the prefix."""
    sums = {sender: hashlib.sha256() for sender in range(SENDERS)}
    with path.open("rb") as file:
        for line in file:
            prefix, _, rest = line.partition(b": ")
            assert prefix.strip() == rest[:1], line
            sums[int(prefix)].update(rest)
    return {sender: digest.hexdigest() for sender, digest in sums.items()}


def burst(directory: Path, lines: int) -> Burst:
    places = LogPlaces(app_log=str(directory / "app.log"))
    server = start_funnel_server(FunnelSettings(places=places), SECRET)
    nodes = [open_node(node, server, places) for node in range(NODES)]
    count = lines // SENDERS // 500 * 500
    before, writer_before, begin = time.process_time(), cpu_of(server.pid), time.monotonic()
    senders = [start_rank(nodes[rank % NODES], rank, SENDERS, SENDER, str(rank), str(count)) for rank in range(SENDERS)]
    for process in senders:
        assert process.wait(WAIT_SECONDS) == 0
    for node in nodes:
        assert node.close(pipes_seconds=WAIT_SECONDS)
    seconds = time.monotonic() - begin
    node_cpu, writer_cpu = time.process_time() - before, cpu_of(server.pid) - writer_before
    server.stop(5.0)
    found = found_digests(directory / "app_cycle0.log")
    whole = found == {sender: expected_digest(sender, count) for sender in range(SENDERS)}
    (directory / "app_cycle0.log").unlink()
    share = 100_000 / (count * SENDERS)
    return Burst(
        lines_per_second=count * SENDERS / seconds,
        node_cpu=node_cpu * share,
        writer_cpu=writer_cpu * share,
        is_whole=whole,
    )


def compute(directory: Path, seconds: float) -> Beside:
    """A worker that computes for this long, beside one that writes 1,000 lines a second in every second slice of time.

    In the other slices those lines go to /dev/null: what differs is the funnel, from the pipe to the file.
    """
    places = LogPlaces(app_log=str(directory / "steady.log"))
    server = start_funnel_server(FunnelSettings(places=places), SECRET)
    node = open_node(0, server, places)
    before, writer_before, begin = time.process_time(), cpu_of(server.pid), time.monotonic()
    steady = start_rank(node, 1, 2, STEADY, str(SLICE_SECONDS))
    command = [sys.executable, "-c", COMPUTE, str(seconds), str(SLICE_SECONDS)]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment, timeout=WAIT_SECONDS).stdout
    elapsed = (time.monotonic() - begin) / 2
    used = (time.process_time() - before, cpu_of(server.pid) - writer_before)
    steady.kill()
    steady.wait(WAIT_SECONDS)
    node.close()
    server.stop(5.0)
    slices = [(int(number), int(steps)) for number, _, steps in (word.partition(":") for word in said.decode().split())]
    sums = {parity: [steps for number, steps in slices if number % 2 == parity] for parity in (0, 1)}
    return Beside(
        alone=statistics.median(sums[0]) / SLICE_SECONDS,
        beside=statistics.median(sums[1]) / SLICE_SECONDS,
        slices=len(slices),
        node_cpu=used[0] / elapsed,
        writer_cpu=used[1] / elapsed,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=400_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(argv)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(prefix="nvrx-chain-funnel-") as name:
        directory = Path(name)
        bursts = [burst(directory, options.lines) for _ in range(options.rounds)]
        for found in bursts:
            print(found)
        print(f"median {statistics.median(found.lines_per_second for found in bursts):,.0f} lines/s")
        besides = [compute(directory, options.seconds) for _ in range(options.rounds)]
        for found in besides:
            print(found)
        slowed = statistics.median(1 - found.beside / found.alone for found in besides)
        cost = statistics.median(found.node_cpu + found.writer_cpu for found in besides)
        print(
            f"a worker beside 1,000 lines/s is slowed by {slowed:.1%}; the funnel takes {cost:.1%} of a CPU (medians)"
        )


if __name__ == "__main__":
    main()
