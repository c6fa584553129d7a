"""`logs` of a chain whose ranks were restarted: `--cycle` gives the lines of one cycle, `-f` each line to the end."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_chain.records.outcome import Verdict
from nvrx_chain.workloads.events import EventKind
from tests.integration.case_tools import SECONDS
from tests.integration.cluster import wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, FT_LAUNCHER, Chain, Shape

TARGET = 250
SHAPE = Shape(train=2, hot=0, cold=0)
ALL = "--lines=1000000"


@contextmanager
def following(chain: Chain, printed: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`logs -f --json` into a file; it does not outlive the test."""
    argv = [COMMAND, "logs", f"--run-dir={chain.run_dir}", "--follow", "--json", ALL, *words]
    with printed.open("w") as out:
        process = subprocess.Popen(
            argv, env=chain.cluster.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def by_log(text: str) -> dict[str, list[str]]:
    """The printed lines of each log, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        entry = json.loads(line)
        found[entry["log"]].append(entry["line"])
    return dict(found)


def written(paths: Iterable[Path], job: int) -> dict[str, list[str]]:
    """The lines of logs as they are on disk, those without any left out."""
    lines = {f"{job}/{path.stem}": path.read_text().replace("\r\n", "\n").split("\n") for path in paths}
    return {log: found[:-1] if not found[-1] else found for log, found in lines.items() if found != [""]}


def of_cycle(chain: Chain, job: int, cycle: int) -> list[Path]:
    """The logs of the workload of one restart cycle."""
    return sorted(chain.generation(job).logs.glob(f"app_*_cycle{cycle}.log"))


@pytest.mark.slow
def test_the_lines_of_each_cycle_and_of_all_are_printed_once_and_following_ends_with_the_chain(
    submit: SubmitChain, tmp_path: Path
) -> None:
    chain = submit(FT_LAUNCHER, shape=SHAPE, depth=1, target_iteration=TARGET)
    first = chain.jobs[0]
    chain.wait_for_training(first)
    everything, second_cycle = tmp_path / "everything", tmp_path / "second cycle"
    with following(chain, everything) as all_of_it, following(chain, second_cycle, "--cycle=1") as one_of_it:
        wait_for(everything.read_text, SECONDS, "lines of the first cycle")
        fault = chain.kill_rank(first, 1)

        def restarted() -> bool:
            return any(
                event.event is EventKind.START and event.unix > fault.hit_at.timestamp()
                for event in chain.events(first)
            )

        wait_for(restarted, 2 * SECONDS, "the second cycle to train")
        # The followers are looked at while it trains: they print what comes, not what there was at the end.
        wait_for(second_cycle.read_text, SECONDS, "lines of the second cycle")
        assert chain.verdict() is None
        assert chain.wait_for_verdict(seconds=3 * SECONDS) is Verdict.COMPLETED
        assert [process.wait(timeout=SECONDS) for process in (all_of_it, one_of_it)] == [0, 0]
    cycles = [of_cycle(chain, first, cycle) for cycle in (0, 1)]
    assert all(cycles), "ft_launcher kept no log of one of the cycles"
    for cycle, paths in enumerate(cycles):
        expected = written(paths, first)
        assert expected, f"nothing was written in cycle {cycle}"
        argv = [COMMAND, "logs", f"--run-dir={chain.run_dir}", f"--cycle={cycle}", "--json", ALL]
        assert by_log(chain.cluster.run(argv).stdout) == expected
    assert by_log(second_cycle.read_text()) == written(cycles[1], first)
    assert by_log(everything.read_text()) == written(sorted(chain.generation(first).logs.glob("*.log")), first)
    refused = chain.cluster.run([COMMAND, "logs", f"--run-dir={chain.run_dir}", "--cycle=7"], check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "it has those of 0-1" in refused.stderr
