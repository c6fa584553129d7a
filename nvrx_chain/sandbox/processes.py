"""Starting daemons that are on record before they run, signalling exactly one process, waiting for an effect.

A daemon is started behind a gate: a shell that waits for one line, is written into the sandbox's record, and only then
becomes the daemon (same pid, same start time). If the starter dies before that line the gate reads end-of-file and
leaves. So nothing can run that the record does not name. Touches: processes, and the log files of the daemons.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.procfs import ProcessId, find_process, read_process

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.1

# `setsid --fork` ends at once, so the daemon belongs to init and not to the caller: no zombie, no SIGHUP, own session.
# (A shell's `&` would do too, but leaves SIGINT ignored in the daemon and so in every job; a caller that was itself
# started that way hands it on, so the daemon gets the default back.) `read` without the line
# (the starter died) is false, and nothing is executed. The umask lets other users reach what slurmd makes for them.
_GATE = """\
umask 022
echo $$
log=$1
shift
exec >>"$log" 2>&1
read -r go && exec env --default-signal=INT,QUIT "$@" </dev/null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """A daemon to be started: the name it has in the record, its command in foreground form, its output file."""

    name: str
    argv: tuple[str, ...]
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A daemon that was started: its name in the record and its identity."""

    name: str
    id: ProcessId


def start_daemons(
    specs: Sequence[DaemonSpec], environ: Mapping[str, str], record: Callable[[Sequence[Daemon]], None]
) -> tuple[Daemon, ...]:
    """Start daemons in their own sessions. `record` is called with all of them before the first one runs.

    Raises SandboxError when one cannot be started, and whatever `record` raises; then none of them runs.
    """
    with contextlib.ExitStack() as gates:
        waiting = [gates.enter_context(_gate(spec, environ)) for spec in specs]
        daemons = tuple(daemon for daemon, _ in waiting)
        record(daemons)
        for daemon, gate in waiting:
            try:
                gate.write(b"go\n")
                gate.flush()
            except OSError as error:
                raise SandboxError(
                    f"starting {daemon.name}: {error.strerror or error}",
                    hint="repeat it; `sandbox down` ends what was started",
                ) from error
    return daemons


@contextlib.contextmanager
def _gate(spec: DaemonSpec, environ: Mapping[str, str]) -> Iterator[tuple[Daemon, IO[bytes]]]:
    """One daemon behind its gate, and the pipe that opens it; closing the pipe unopened ends the gate."""
    doing = f"starting {spec.name}"
    with subprocess.Popen(
        ["setsid", "--fork", "/bin/sh", "-c", _GATE, "gate", str(spec.log), *spec.argv],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        answer = starter.stdout.readline()
        process = read_process(int(answer)) if answer.strip().isdigit() else None
        if process is None:
            raise SandboxError(f"{doing}: it was gone at once", part=str(spec.log), hint="its log says why")
        with contextlib.suppress(BrokenPipeError):
            yield Daemon(name=spec.name, id=process.id), starter.stdin


def send_signal(identity: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process. False when it was gone already.

    The pidfd is taken first and the identity checked after: from then on the number cannot pass to another process.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if find_process(identity) is None:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def poll(clock: Clock, check: Callable[[], T | None], seconds: float) -> T | None:
    """Ask `check` until it returns something true, at most `seconds`; None when it never did."""
    never = threading.Event()
    deadline = clock.monotonic() + seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        found = check()
        if found:
            return found
        left = deadline - clock.monotonic()
        if left <= 0:
            return None
        clock.wait(never, min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def wait_until(clock: Clock, check: Callable[[], T | None], seconds: float, *, doing: str, wanted: str) -> T:
    """As `poll`, but raises SandboxError `doing: wanted, not within N s`."""
    found = poll(clock, check, seconds)
    if found is None:
        raise SandboxError(
            f"{doing}: {wanted}: not within {seconds:g} s",
            hint="on a slow machine it may come yet: see `sandbox status`",
        )
    return found
