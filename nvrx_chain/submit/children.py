"""Runs a probe in a process of its own that may hang in a dead mount or a broken driver. Touches: processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from nvrx_chain.errors import Unobserved

_AFTER_KILL_SECONDS = 0.3
_LONGEST_COMPLAINT = 300


def ask_child(
    argv: Sequence[str], environ: Mapping[str, str], *, seconds: float, is_partial_enough: bool = False
) -> bytes | Unobserved:
    """What the child printed; `Unobserved` when it failed or took too long. A child that cannot die is left behind.

    With `is_partial_enough` whole lines that it printed before its time was up are an answer.
    """
    return AskedChild(argv, environ).answer(seconds=seconds, is_partial_enough=is_partial_enough)


class AskedChild:
    """A child that is at work from now on; `answer` waits for it, once.

    It starts in the root directory: a package that lies in the current one is not there for a job.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._program = argv[0]
        self._child: subprocess.Popen[bytes] | Unobserved
        try:
            self._child = subprocess.Popen(
                [*argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._child = Unobserved(f"starting {argv[0]}: {error.strerror}")

    def answer(self, *, seconds: float, is_partial_enough: bool = False) -> bytes | Unobserved:
        """What it printed, as ask_child says. It has ended then, or is left behind."""
        child = self._child
        if isinstance(child, Unobserved):
            return child
        try:
            stdout, stderr = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            printed = _kill(child)
            if is_partial_enough and b"\n" in printed:
                return printed[: printed.rindex(b"\n") + 1]
            return Unobserved(f"no answer within {seconds:g} s")
        except BaseException:
            _kill(child)
            raise
        if child.returncode != 0:
            said = stderr.decode(errors="backslashreplace").strip().rpartition("\n")[2]
            return Unobserved(f"{self._program} ended with {child.returncode}: {said[-_LONGEST_COMPLAINT:]}")
        return stdout


@contextlib.contextmanager
def running_child(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[None]:
    """A child that works while the block runs and is killed at its end, if it has not ended by itself.

    Raises OSError when it cannot be started.
    """
    silent = subprocess.DEVNULL
    child = subprocess.Popen(
        [*argv], stdin=silent, stdout=silent, stderr=silent, env=dict(environ), cwd="/", start_new_session=True
    )
    try:
        yield
    finally:
        _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> bytes:
    """What it had printed until then."""
    printed = b""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    # Not longer: in uninterruptible sleep it does not die, and nobody may wait for the mount.
    with contextlib.suppress(subprocess.TimeoutExpired):
        printed = child.communicate(timeout=_AFTER_KILL_SECONDS)[0] or b""
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    return printed
