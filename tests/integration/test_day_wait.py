"""`wait` while the controller is away: a Slurm that does not answer ends nothing, and the end is told later."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Verdict
from tests.integration.case_tools import PAIR, SECONDS, beat, put_fake, tell, wait_for_ranks
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.controller import controller_away
from tests.integration.harness import COMMAND, Chain

pytestmark = pytest.mark.slow

UNANSWERED = 2
"""Readings of the queue that get no answer. Two that show nothing are what `wait` takes for a chain that ran dry."""
TWO_READINGS_SECONDS = 240.0
"""Between two of them 60 to 90 s, and each waits for its answer until its own time is up."""
COUNTED = '"$real" "$@"; code=$?; echo $code >>"$own.codes"; exit $code\n'


class Waiting:
    """A `wait` at a terminal: its line on standard error is collected, its standard output comes at the end."""

    def __init__(self, chain: Chain, environ: Mapping[str, str], *words: str) -> None:
        own, terminal = pty.openpty()
        self._own = own
        self.process = subprocess.Popen(
            [COMMAND, "wait", f"--run-dir={chain.run_dir}", *words],
            env={**chain.cluster.environ, **environ, "TERM": "xterm", "COLUMNS": "300"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
        )
        os.close(terminal)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._own, 4096)
            except OSError:
                return  # the other side of a terminal is closed
            if not data:
                return
            self._said += data

    @property
    def said(self) -> str:
        """What stood on the terminal so far."""
        return self._said.decode(errors="replace")

    def end(self, seconds: float) -> tuple[str, int]:
        """Its standard output and exit code."""
        out, _ = self.process.communicate(timeout=seconds)
        self._reader.join(timeout=5)
        return out, self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=10)
        self._reader.join(timeout=5)
        os.close(self._own)


@contextmanager
def waiting(chain: Chain, environ: Mapping[str, str], *words: str) -> Iterator[Waiting]:
    """A `wait` that does not outlive the test."""
    one = Waiting(chain, environ, *words)
    try:
        yield one
    finally:
        one.close()


def codes(directory: Path) -> list[str]:
    """How each squeue of the fake's callers ended."""
    path = directory / "squeue.codes"
    return path.read_text().split() if path.exists() else []


def test_wait_outlasts_a_controller_that_is_away_and_tells_the_end(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    chain = submit(beat("--until-told"), shape=PAIR, depth=2, options=["--complete-on-exit-zero"])
    first = chain.jobs[0]
    chain.wait_for_training(first, seconds=SECONDS)
    wait_for_ranks(chain, first)
    environ = put_fake(tmp_path / "fake", "squeue", COUNTED, cluster)
    with controller_away(cluster), waiting(chain, environ) as one:
        wait_for(lambda: "Slurm could not be read" in one.said, SECONDS, "wait to say that Slurm does not answer")
        wait_for(lambda: len(codes(tmp_path / "fake")) >= UNANSWERED, TWO_READINGS_SECONDS, "readings without answer")
        assert "0" not in codes(tmp_path / "fake"), "the controller answered"
        assert one.process.poll() is None, "wait ended although nothing is known of the chain"
        assert chain.verdict() is None
        cluster.sandbox.start_controller()
        tell(chain)
        assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.COMPLETED
        told, code = one.end(2 * SECONDS)
    assert code == 0
    assert f"(chain {chain.chain_id}): completed, " in told
    assert "still in the queue" not in told
    chain.wait_until_gone(seconds=SECONDS)


def test_wait_tells_a_verdict_that_came_while_the_controller_was_away(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    chain = submit(beat("--ends=0:told:93"), shape=PAIR, depth=2)
    first = chain.jobs[0]
    chain.wait_for_training(first, seconds=SECONDS)
    wait_for_ranks(chain, first)
    with waiting(chain, {}) as one:
        wait_for(lambda: f"({first})" in one.said, SECONDS, "wait to show the generation that runs")
        with controller_away(cluster):
            tell(chain)
            assert chain.wait_for_verdict(seconds=SECONDS) is Verdict.NO_RESTART
            assert one.process.poll() is None, "its tasks were not seen to leave"
        told, code = one.end(4 * SECONDS)
    assert code == 93
    assert f"(chain {chain.chain_id}): no restart, " in told
    assert "still in the queue" not in told
    chain.wait_until_gone(seconds=SECONDS)


def test_wait_with_a_timeout_ends_with_124_while_the_controller_is_away(cluster: Cluster, submit: SubmitChain) -> None:
    chain = submit(beat(), shape=PAIR, depth=2)
    chain.wait_for_training(chain.jobs[0], seconds=SECONDS)
    with controller_away(cluster), waiting(chain, {}, "--timeout=5", "--json") as one:
        told, code = one.end(SECONDS)
    report = json.loads(told)
    assert (report["end"], code, report["exit_code"]) == ("timed_out", 124, 124)
    assert (report["verdict"], report["live_jobs"]) == (None, None), "what was not read is no empty queue"
    assert {row.job for row in chain.live_rows()} == set(chain.jobs)
    assert chain.verdict() is None
