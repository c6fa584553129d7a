"""The same training without a cluster and without faults: what its losses must be. Touches: processes, a directory.

Two ranks on one machine add up the same two numbers as two ranks on two nodes, so the bits must agree.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from nvrx_chain.clock import Clock
from nvrx_chain.demo.evidence import find_losses
from nvrx_chain.demo.gather import read_all_events
from nvrx_chain.errors import DemoError, Unobserved
from nvrx_chain.slurm.command import scrubbed_environment
from nvrx_chain.submit.workload import MOCK_GPT_MODULE

DEADLINE_SECONDS = 120.0
_END_SECONDS = 10.0


class ReferenceRun:
    """An undisturbed training that runs in the background."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, clock: Clock) -> None:
        self._process = process
        self._directory = directory
        self._clock = clock
        self._deadline = clock.monotonic() + DEADLINE_SECONDS

    def losses(self) -> Mapping[int, str] | Unobserved | None:
        """Iteration -> loss as hexadecimal text, once it has ended; why there are none when it failed."""
        code = self._process.poll()
        if code is None:
            if self._clock.monotonic() < self._deadline:
                return None
            return Unobserved(f"the undisturbed run has not ended within {DEADLINE_SECONDS:g} s")
        if code != 0:
            return Unobserved(f"the undisturbed run exited with {code}, see {self._directory / 'log'}")
        losses = find_losses(read_all_events(self._directory / "events"))
        return {iteration: " or ".join(found) for iteration, found in losses.items()}

    def end(self) -> None:
        """End it when it still runs. Its ranks have sessions of their own and leave when torchrun tells them."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_SECONDS)


def reference_argv(python: str, directory: Path, *, target_iteration: int, ranks: int) -> tuple[str, ...]:
    """torchrun over `ranks` ranks of the workload, as fast as they can. What is saved, and when, changes no loss."""
    return (
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
        MOCK_GPT_MODULE,
        f"--checkpoint-dir={directory / 'checkpoints'}",
        f"--event-file={directory / 'events' / 'rank{rank}.jsonl'}",
        f"--target-iteration={target_iteration}",
        "--save-interval=0",
        "--log-interval=1",
    )


@contextlib.contextmanager
def started_reference(
    python: str, directory: Path, environ: Mapping[str, str], clock: Clock, *, target_iteration: int, ranks: int
) -> Iterator[ReferenceRun]:
    """Start the run; it is gone when the context ends. Raises DemoError when it cannot be started."""
    argv = reference_argv(python, directory, target_iteration=target_iteration, ranks=ranks)
    try:
        directory.mkdir(parents=True)
        with open(directory / "log", "ab", buffering=0) as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=scrubbed_environment(environ)[0],
                # An interrupt of the demo must reach it through `end` alone, or it would be told twice.
                start_new_session=True,
            )
    except OSError as error:
        raise DemoError(f"starting the undisturbed run: {error.strerror or error}", part=str(directory)) from error
    run = ReferenceRun(process, directory, clock)
    try:
        yield run
    finally:
        run.end()
