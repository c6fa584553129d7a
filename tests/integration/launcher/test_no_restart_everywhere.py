"""A no-restart verdict reaches every launcher, in whatever order they leave, frozen ones and after the host's death."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PATIENCE_SECONDS = 60.0
AGENT = Path(__file__).with_name("agent.py")


@dataclass
class Agent:
    """A launcher process and what it printed."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())


def until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@contextlib.contextmanager
def launchers(directory: Path, *, liveness_seconds: float) -> Iterator[list[Agent]]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "LIVENESS": str(liveness_seconds)}
    agents = []
    for index in range(3):
        log = open(directory / f"agent{index}.log", "w")  # noqa: SIM115 - the child keeps it
        words = [sys.executable, str(AGENT), str(port), str(index), str(directory)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
        log.close()
        agents.append(Agent(process))
    readers = [threading.Thread(target=agent.read, daemon=True) for agent in agents]
    for reader in readers:
        reader.start()
    try:
        until(
            lambda: all("filled 0" in agent.lines for agent in agents),
            lambda: [(directory / f"agent{index}.log").read_text()[-2000:] for index in range(3)],
        )
        yield agents
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                agent.process.kill()
            agent.process.wait()
        for reader in readers:
            reader.join()
        for agent in agents:
            assert agent.process.stdout is not None
            agent.process.stdout.close()


def exit_codes(agents: list[Agent]) -> list[int]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    return [agent.process.wait(max(0.1, deadline - time.monotonic())) for agent in agents]


def outcome(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "cycle_infos" / "outcome.8.0.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("frozen_seconds", [1.5, 4.0])
def test_no_progress_ends_all_with_93_also_one_that_was_frozen_and_the_spare(
    tmp_path: Path, frozen_seconds: float
) -> None:
    """1.5 s is within the liveness time of 2 s: it hears the word itself. After 4 s it finds the host gone."""
    (tmp_path / "marker").write_text("70")
    (tmp_path / "fail").touch()
    os.mkfifo(tmp_path / "gate")
    with launchers(tmp_path, liveness_seconds=2.0) as agents:
        host, failing, spare = agents
        until(lambda: "decided" in host.lines, lambda: host.lines)
        os.kill(spare.process.pid, signal.SIGSTOP)
        until(lambda: state_of(spare.process.pid) == "T", lambda: "the spare is not frozen")
        assert not any(line.startswith("ended") for agent in agents for line in agent.lines)
        frozen_at = time.monotonic()
        (tmp_path / "gate").write_text("")
        assert failing.process.wait(PATIENCE_SECONDS) == 93
        if frozen_seconds < 2.0:
            assert host.process.poll() is None, "the host left before the frozen launcher had"
        time.sleep(max(0.0, frozen_seconds - (time.monotonic() - frozen_at)))
        os.kill(spare.process.pid, signal.SIGCONT)
        assert exit_codes(agents) == [93, 93, 93]
        if frozen_seconds < 2.0:
            assert "ended no_progress 93" in spare.lines
    found = outcome(tmp_path)
    assert (found["reason"], found["exit_code"], found["cycle"]) == ("no_progress", 93, 1)
    records = sorted((tmp_path / "cycle_infos").glob("cycle_info.8.0.*"))
    assert len(records) == 2
    assert all(json.loads(record.read_text())["cycle_end_time"] for record in records)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_all_leave_with_93_when_the_host_is_killed_after_the_decision_and_before_its_word(tmp_path: Path) -> None:
    (tmp_path / "marker").write_text("70")
    (tmp_path / "fail").touch()
    os.mkfifo(tmp_path / "gate")
    with launchers(tmp_path, liveness_seconds=5.0) as agents:
        host, *others = agents
        until(lambda: "decided" in host.lines, lambda: host.lines)
        host.process.kill()
        killed_at = time.monotonic()
        assert host.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert exit_codes(others) == [93, 93]
        assert time.monotonic() - killed_at < 5
        assert all("lost the host" in agent.lines for agent in others)
        assert not any(line.startswith("ended") for agent in others for line in agent.lines)
    assert outcome(tmp_path)["reason"] == "no_progress"


@pytest.mark.slow
def test_a_host_that_is_killed_without_a_decision_leaves_no_verdict(tmp_path: Path) -> None:
    with launchers(tmp_path, liveness_seconds=5.0) as agents:
        host, *others = agents
        host.process.kill()
        assert exit_codes(others) == [75, 75]
    assert not (tmp_path / "cycle_infos" / "outcome.8.0.json").exists()


@pytest.mark.slow
def test_an_order_from_outside_ends_a_job_that_trains(tmp_path: Path) -> None:
    with launchers(tmp_path, liveness_seconds=5.0) as agents:
        (tmp_path / "order").write_text('{"reason": "the data set is broken"}\n')
        assert exit_codes(agents) == [93, 93, 93]
    found = outcome(tmp_path)
    assert found["reason"] == "external_stop"
    assert "the data set is broken" in str(found["detail"])
