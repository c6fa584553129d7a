"""A rank without torch: it steps, saves, writes the events of a real one, and ends on order.

For chains whose training is not the point: it starts in a fifth of a second. Run by path, as a launcher command starts
it (see case_tools.beat). The host of the rendezvous listens on its port and all others connect to it before the first
step, so what task 0 published is really used. Touches: events/, environ/ and checkpoints/ of the run directory, which
is the current one; the rendezvous port.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.clock import SystemClock
from nvrx_chain.workloads.events import Ending, EventKind, EventLog, process_age_seconds
from nvrx_chain.workloads.placement import Placement, read_placement

TRACKER = Path("checkpoints/latest_checkpointed_iteration.txt")
TOLD = Path("told")
"""The test makes this file when the time has come."""
STORE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How one rank ends: so long after its start (None: when it is told) with this exit code, or by SIGKILL."""

    rank: int
    seconds: float | None
    how: str

    @classmethod
    def parse(cls, text: str) -> Order:
        rank, when, how = text.split(":")
        return cls(rank=int(rank), seconds=None if when == "told" else float(when), how=how)

    def is_due(self, began: float) -> bool:
        return TOLD.exists() if self.seconds is None else time.monotonic() - began >= self.seconds

    def carry_out(self) -> None:
        """Never returns. Exits as a crash does, without a word."""
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(int(self.how))


class Rank:
    """One life of one rank."""

    def __init__(self, options: argparse.Namespace, placement: Placement) -> None:
        self._options = options
        self._placement = placement
        self._log = EventLog(Path("events/rank{rank}.jsonl").absolute(), placement, SystemClock())
        self._asked: str | None = None
        is_first = min(int(path.name) for path in Path("generations").iterdir()) == placement.array_job_id
        orders = options.ends if is_first or not options.ends_once else []
        self._orders = [order for order in orders if order.rank == placement.rank]

    def run(self) -> int:
        """Step until the target, an order or a signal."""
        self._keep_environment()
        self._install_handlers()
        store = self._meet()
        iteration = int(TRACKER.read_text()) if TRACKER.exists() else 0
        began = time.monotonic()
        self._log.emit(
            EventKind.START, iteration=iteration, since_process_start_seconds=process_age_seconds(), detail=store
        )
        while not self._is_finished(iteration):
            time.sleep(self._options.step_seconds)
            for order in self._orders:
                if order.is_due(began):
                    order.carry_out()
            if self._asked is not None:
                self._log.emit(EventKind.SIGNAL, iteration=iteration, signal=self._asked)
                self._save(iteration)
                self._log.emit(EventKind.END, iteration=iteration, outcome=Ending.SIGNAL)
                return 0
            iteration += 1
            self._log.emit(EventKind.STEP, iteration=iteration)
            if iteration % self._options.save_every == 0:
                self._save(iteration)
        self._save(iteration)
        self._log.emit(EventKind.END, iteration=iteration, outcome=Ending.TARGET)
        return 0

    def _is_finished(self, iteration: int) -> bool:
        if self._options.until_told:
            return TOLD.exists()
        return bool(self._options.until) and iteration >= self._options.until

    def _install_handlers(self) -> None:
        signal.signal(signal.SIGUSR1, self._ask)
        if self._options.on_term == "leave":
            signal.signal(signal.SIGTERM, self._ask)
        elif self._options.on_term == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _ask(self, number: int, _frame: object) -> None:
        self._asked = signal.Signals(number).name
        # Whoever stops a step says so several times, and a rank that saves and leaves must not die of the second one.
        signal.signal(number, signal.SIG_IGN)

    def _meet(self) -> str:
        """Listen or connect where the generation meets, and keep that up for life. Raises OSError."""
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self._options.is_host:
            self._socket = socket.create_server(("", address[1]))
        else:
            self._socket = connect(address)
        return f"{address[0]}:{address[1]}"

    def _save(self, iteration: int) -> None:
        if self._placement.rank != 0:
            return
        TRACKER.parent.mkdir(exist_ok=True)
        temporary = TRACKER.with_suffix(".new")
        temporary.write_text(str(iteration))
        temporary.replace(TRACKER)

    def _keep_environment(self) -> None:
        path = Path("environ") / f"{self._placement.array_job_id}.{self._placement.array_task_id}.json"
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{self._placement.rank}.new")
        temporary.write_text(json.dumps(dict(os.environ)))
        temporary.replace(path)


def connect(address: tuple[str, int]) -> socket.socket:
    """A connection to a host that may listen a moment later. Raises OSError when it does not within half a minute."""
    deadline = time.monotonic() + STORE_SECONDS
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--is-host", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints of rank 0")
    parser.add_argument("--until", type=int, default=0, help="save and exit 0 at this iteration")
    parser.add_argument("--until-told", action="store_true", help="save and exit 0 when the file `told` is there")
    parser.add_argument("--on-term", choices=["die", "leave", "ignore"], default="die", help="leave: save and exit 0")
    parser.add_argument("--ends", type=Order.parse, action="append", default=[], metavar="RANK:SECONDS|told:CODE|kill")
    parser.add_argument("--ends-once", action="store_true", help="orders hold in the chain's first generation only")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(Rank(parse(sys.argv[1:]), read_placement(os.environ)).run())
