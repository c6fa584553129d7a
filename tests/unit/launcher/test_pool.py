"""The workers of one node as real processes: warm and cold alike, ended as groups, none left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nvrx_chain.launcher.environment import MARK
from nvrx_chain.launcher.pool import AllStopped, Happened, Pool, PoolSettings, RankEnded
from nvrx_chain.launcher.workers import EntryPoint

PATIENCE_SECONDS = 20.0

DESCRIBE = """
import json, os, signal, sys
if __name__ == "__main__":
    print(json.dumps({
        "argv": sys.argv[1:],
        "script": os.path.basename(sys.argv[0]),
        "file": os.path.basename(__file__),
        "path": os.path.basename(sys.path[0]),
        "cwd": os.getcwd(),
        "rank": os.environ.get("RANK"),
        "local": os.environ.get("LOCAL_RANK"),
        "names": sorted(name for name in globals() if not name.startswith("__")),
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "leader": os.getpgid(0) == os.getpid() == os.getsid(0),
        "shown": open("/proc/self/cmdline").read().rstrip("\\0"),
        "shown_rank": [word for word in open("/proc/self/environ").read().split("\\0") if word.startswith("RANK=")],
        "spec": __spec__.name if __spec__ else None,
        "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2)[:-1],
    }), file=open(os.environ["OUT"], "w"))
"""


class Hand:
    """A pool and what happened in it."""

    def __init__(
        self, directory: Path, entry: EntryPoint, *, warm: bool, ranks: int = 1, preload: str = "json"
    ) -> None:
        self.directory = directory
        out = [str(directory / f"out {rank}.json") for rank in range(ranks)]
        self.out = [Path(path) for path in out]
        environments = tuple(
            {**os.environ, MARK: f"me-{directory.name}", "LOCAL_RANK": str(rank), "OUT": out[rank]}
            for rank in range(ranks)
        )
        self.pool = Pool(PoolSettings(entry=entry, warm=warm, preload=(preload,), environments=environments))
        self.happened: list[Happened] = []

    def start(self) -> None:
        self.pool.start([{"RANK": str(10 + rank)} for rank in range(self.pool.size)])

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, what
            due = self.pool.deadline()
            wait = 0.5 if due is None else max(0.0, min(0.5, due - time.monotonic()))
            poll = select.poll()
            for descriptor in self.pool.watched():
                poll.register(descriptor, select.POLLIN)
            poll.poll(wait * 1000)
            self.happened += self.pool.look()

    def park(self) -> None:
        self.pool.park_missing()
        self.until(lambda: self.pool.parked_ready == self.pool.size, "parked")

    def ended(self) -> list[RankEnded]:
        return [happened for happened in self.happened if isinstance(happened, RankEnded)]

    def stopped(self) -> list[AllStopped]:
        return [happened for happened in self.happened if isinstance(happened, AllStopped)]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., EntryPoint]:
    def write(source: str, *argv: str) -> EntryPoint:
        path = tmp_path / "it's a script.py"
        path.write_text(source)
        return EntryPoint(argv=(str(path), *argv), python=sys.executable)

    return write


@pytest.fixture
def hands() -> Iterator[list[Hand]]:
    found: list[Hand] = []
    yield found
    for hand in found:
        hand.pool.close()


def said(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def run_to_end(hand: Hand, *, warm: bool) -> dict[str, object]:
    if warm:
        hand.park()
    hand.start()
    hand.until(lambda: len(hand.ended()) == hand.pool.size, "the end")
    return said(hand.out[0])


def test_a_warm_rank_sees_what_a_cold_one_and_a_fresh_interpreter_see(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    entry = script(DESCRIBE, "--name", "a 'b' $c")
    (tmp_path / "w").mkdir()
    (tmp_path / "c").mkdir()
    hands += [Hand(tmp_path / "w", entry, warm=True), Hand(tmp_path / "c", entry, warm=False)]
    warm, cold = run_to_end(hands[0], warm=True), run_to_end(hands[1], warm=False)
    fresh_out = tmp_path / "fresh.json"
    environment = {**os.environ, "OUT": str(fresh_out), "RANK": "10", "LOCAL_RANK": "0"}
    subprocess.run([*entry.command()], env=environment, check=True, timeout=30, start_new_session=True)
    assert warm == cold == said(fresh_out)
    assert warm["rank"] == "10"
    assert warm["shown_rank"] == ["RANK=10"]
    assert warm["argv"] == ["--name", "a 'b' $c"]


def test_a_module_runs_as_python_m_would(tmp_path: Path, hands: list[Hand], monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(DESCRIBE)
    monkeypatch.chdir(tmp_path)
    entry = EntryPoint(argv=("pkg.train", "x"), module=True, python=sys.executable)
    for name in "wc":
        (tmp_path / name).mkdir()
    hands += [Hand(tmp_path / "w", entry, warm=True), Hand(tmp_path / "c", entry, warm=False)]
    warm, cold = run_to_end(hands[0], warm=True), run_to_end(hands[1], warm=False)
    assert warm == cold
    assert warm["spec"] == "pkg.train"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sys.exit(17)", 17),
        ("import os; os._exit(3)", 3),
        ("raise ValueError('x')", 1),
        ("import sys; sys.exit('words')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os; os.abort()", -6),
        ("pass", 0),
        ("this is no python", 1),
    ],
)
def test_an_exit_code_is_that_of_the_script(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand], warm: bool, source: str, code: int
) -> None:
    hand = Hand(tmp_path, script(source), warm=warm)
    hands.append(hand)
    if warm:
        hand.park()
    hand.start()
    hand.until(lambda: bool(hand.ended()), "the end")
    assert [ended.code for ended in hand.ended()] == [code]


def test_a_rank_that_is_released_while_it_imports_starts_when_it_has(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    hand = Hand(tmp_path, script(DESCRIBE), warm=True)
    hands.append(hand)
    hand.pool.park_missing()
    assert run_to_end(hand, warm=False)["rank"] == "10"


def test_a_preload_that_fails_costs_a_cold_start_and_no_round(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    hand = Hand(tmp_path, script(DESCRIBE), warm=True, preload="no_such_module")
    hands.append(hand)
    hand.pool.park_missing()
    found = run_to_end(hand, warm=False)
    assert found["rank"] == "10"
    assert [ended.code for ended in hand.ended()] == [0]
    hand.pool.park_missing()
    assert not hand.pool.watched(), "it is not tried again"


def test_a_parked_worker_that_is_killed_is_no_failed_rank(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    hand = Hand(tmp_path, script(DESCRIBE), warm=True)
    hands.append(hand)
    hand.park()
    for child in psutil.Process().children():
        if "parked.py" in " ".join(child.cmdline()):
            child.kill()
    hand.until(lambda: hand.pool.parked_ready == 0, "its end")
    assert run_to_end(hand, warm=False)["rank"] == "10"
    assert [ended.code for ended in hand.ended()] == [0]


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open('{up}', 'w')
while True:
    time.sleep(60)
"""


def test_ranks_that_ignore_term_are_killed_after_the_grace_and_others_are_not_waited_for(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    up = tmp_path / "up"
    hand = Hand(tmp_path, script(STUBBORN.format(up=up)), warm=False, ranks=2)
    hands.append(hand)
    hand.start()
    hand.until(up.exists, "up")
    pids = [worker.pid for worker in hand.pool.ranks.values()]
    hand.pool.stop(0.5)
    hand.until(lambda: bool(hand.stopped()), "stopped")
    assert 0.5 <= hand.stopped()[0].seconds < 1.5
    assert not any(is_alive(pid) for pid in pids)
    assert hand.ended() == [], "a rank that was ended has not failed"


def test_a_second_stop_only_shortens_the_first(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    up = tmp_path / "up"
    hand = Hand(tmp_path, script(STUBBORN.format(up=up)), warm=False)
    hands.append(hand)
    hand.start()
    hand.until(up.exists, "up")
    hand.pool.stop(600.0)
    hand.pool.stop(0.0)
    hand.until(lambda: bool(hand.stopped()), "stopped")
    assert hand.stopped()[0].seconds < 5


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended may wait for init to be taken."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
plain = subprocess.Popen(sleep)
apart = subprocess.Popen(sleep, start_new_session=True)
open(os.environ["OUT"], "w").write(f"{plain.pid} {apart.pid}")
time.sleep(600)
"""


def test_what_a_rank_started_goes_with_it_also_from_a_session_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "family.py"
    path.write_text(FAMILY)
    driver = f"""
import sys, time
from pathlib import Path
from nvrx_chain.launcher.orphans import become_subreaper
from tests.unit.launcher.test_pool import Hand, EntryPoint
become_subreaper()
directory = Path({str(tmp_path)!r})
hand = Hand(directory, EntryPoint(argv=({str(path)!r},), python=sys.executable), warm=False)
hand.start()
hand.until(lambda: hand.out[0].exists() and len(hand.out[0].read_text().split()) == 2, "the family")
hand.pool.stop(0.0)
hand.until(lambda: bool(hand.stopped()), "stopped")
"""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", driver], cwd=root, check=True, timeout=60)
    pids = [int(pid) for pid in (tmp_path / "out 0.json").read_text().split()]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("warm", [True, False])
def test_workers_die_with_their_launcher(tmp_path: Path, warm: bool) -> None:
    path = tmp_path / "long.py"
    path.write_text("import os, time; open(os.environ['OUT'], 'w').write(str(os.getpid())); time.sleep(600)")
    driver = f"""
import sys
from pathlib import Path
from tests.unit.launcher.test_pool import Hand, EntryPoint
hand = Hand(Path({str(tmp_path)!r}), EntryPoint(argv=({str(path)!r},), python=sys.executable), warm={warm})
if {warm}: hand.park()
hand.start()
hand.until(lambda: hand.out[0].exists() and hand.out[0].read_text() != "", "the rank")
if {warm}: hand.park()
print(*[child.pid for child in __import__("psutil").Process().children()], flush=True)
sys.stdin.read()
"""
    root = Path(__file__).parents[3]
    launcher = subprocess.Popen(
        [sys.executable, "-c", driver], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 1 + warm
        descriptors = [os.pidfd_open(pid) for pid in pids]
        launcher.send_signal(signal.SIGKILL)
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 5.0)[0], "it lives on"
            os.close(descriptor)
    finally:
        launcher.kill()
        launcher.communicate(timeout=10)


def test_the_program_of_no_python_is_started_as_it_is(tmp_path: Path, hands: list[Hand]) -> None:
    entry = EntryPoint(argv=("/bin/sh", "-c", 'echo "{\\"rank\\": \\"$RANK\\"}" > "$OUT"'), no_python=True)
    hand = Hand(tmp_path, entry, warm=True)
    hands.append(hand)
    hand.pool.park_missing()
    assert run_to_end(hand, warm=False) == {"rank": "10"}


def test_a_program_that_does_not_exist_ends_as_in_a_shell(tmp_path: Path, hands: list[Hand]) -> None:
    hand = Hand(tmp_path, EntryPoint(argv=("/no/such/program",), no_python=True), warm=False)
    hands.append(hand)
    hand.start()
    hand.until(lambda: bool(hand.ended()), "the end")
    assert [ended.code for ended in hand.ended()] == [127]


def test_many_cycles_leave_no_descriptor_and_no_process(
    tmp_path: Path, script: Callable[..., EntryPoint], hands: list[Hand]
) -> None:
    hand = Hand(tmp_path, script("import sys; sys.exit(5)"), warm=True)
    hands.append(hand)

    def cycle() -> None:
        before = len(hand.ended())
        hand.pool.park_missing()
        hand.start()
        hand.until(lambda: len(hand.ended()) > before, "the end")
        hand.pool.stop(0.0)
        hand.happened += hand.pool.look()

    cycle()
    descriptors, children = len(os.listdir("/proc/self/fd")), len(psutil.Process().children())
    for _ in range(20):
        cycle()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(psutil.Process().children()) == children
