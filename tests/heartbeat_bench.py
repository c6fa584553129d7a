"""What heartbeats cost: one call in a rank, and the monitor of a node whose 64 ranks send 100 each second.

Run as `python tests/heartbeat_bench.py [SECONDS]`; prints one line for each.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nvrx_chain.launcher.hang_limits import hang_limits  # noqa: E402
from nvrx_chain.launcher.monitor import Hung, Monitor, Sign  # noqa: E402

RANKS = 64
PER_SECOND = 100
PROCESSES = 4

_CALL = """
import sys, time
sys.path.insert(0, sys.argv[1])
from nvrx_chain.launcher import client
if sys.argv[2] == "inside":
    assert client.connect()
calls = {"heartbeat": client.heartbeat, "committed": lambda: client.committed(7)}
def section():
    client.start_section("step"); client.end_section("step")
calls["start and end of a section"] = section
for name, call in calls.items():
    for _ in range(200): call()
    costs = []
    for _ in range(2000):
        begun = time.perf_counter_ns(); call(); costs.append(time.perf_counter_ns() - begun)
        time.sleep(0.0005)
    costs.sort()
    print(f"{sys.argv[2]} the launcher, {name}: {costs[1000] / 1000:.2f} us median, {costs[1980] / 1000:.2f} us p99")
"""

_RANKS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from nvrx_chain.launcher import client
ranks = [client._Rank() for _ in sys.argv[3:]]
for rank, path in zip(ranks, sys.argv[3:]): assert rank.connect(path)
end, turn = time.monotonic() + float(sys.argv[2]), time.monotonic()
while turn < end:
    for rank in ranks: rank.say(client._HEARTBEAT)
    turn += 0.01
    time.sleep(max(0, turn - time.monotonic()))
"""


def cost_of_a_call() -> None:
    signs: list[Sign] = []
    monitor = Monitor(hang_limits(heartbeat="60", sections="step:60"), 1, signs.append)
    try:
        for where, environment in (("outside", {}), ("inside", monitor.new_cycle(0)[0])):
            subprocess.run([sys.executable, "-c", _CALL, str(ROOT), where], env=environment, check=True, timeout=120)
    finally:
        monitor.close()


def cost_of_a_node(seconds: float) -> float:
    """Percent of one core."""
    signs: list[Sign] = []
    monitor = Monitor(hang_limits(heartbeat="5", sections="step:60"), RANKS, signs.append)
    paths = [environment["NVRX_CHAIN_RANK_SOCKET"] for environment in monitor.new_cycle(0)]
    share = RANKS // PROCESSES
    groups = [paths[number : number + share] for number in range(0, RANKS, share)]
    before = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.monotonic()
    children = [subprocess.Popen([sys.executable, "-c", _RANKS, str(ROOT), str(seconds), *group]) for group in groups]
    for child in children:
        child.wait(seconds + 60)
    spent = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_SELF)
    monitor.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert not any(isinstance(sign, Hung) for sign in signs), signs
    return 100 * cpu / spent


if __name__ == "__main__":
    cost_of_a_call()
    percent = cost_of_a_node(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    print(f"monitor, {RANKS} ranks with {PER_SECOND} heartbeats/s each: {percent:.1f} % of one core")
