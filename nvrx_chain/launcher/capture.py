"""The stacks of all ranks of a node, taken when one hangs in a section and before they are stopped.

py-spy where it is installed and may look; else the process writes them itself (`client.write_stacks_on_signal`). All
ranks at once, within one limit of time, so that a restart is never held up for longer. Touches: processes (SIGCONT, and
the dump signal for those that handle it), runs of py-spy, the directory that the caller names.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.client import DUMP_SIGNAL
from nvrx_chain.launcher.handlers import handles_signal
from nvrx_chain.launcher.signs import DumpFile
from nvrx_chain.launcher.stack_files import write_stacks

DEFAULT_SECONDS = 5.0
DEFAULT_BYTES = 1_000_000
MAX_SECONDS = 300.0
_PY_SPY_SHARE = 0.7
"""Of the time; the rest is for a process that has to write its stacks itself after py-spy has failed."""
_QUIET_SECONDS = 0.1
"""A process that has written nothing for so long has written everything: it does not say when it is done."""
_LOOK_SECONDS = 0.005
_CUT = b"\n[cut here: the limit of bytes]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """Where stacks go, and what they may cost."""

    directory: Path
    seconds: float = DEFAULT_SECONDS
    """For all ranks together; 0 switches it off."""
    max_bytes: int = DEFAULT_BYTES
    """Of each file."""


def capture_settings(
    directory: Path, seconds: float = DEFAULT_SECONDS, max_bytes: int = DEFAULT_BYTES
) -> CaptureSettings:
    """What a user typed. Raises UsageError with one line for each thing that is wrong."""
    problems = []
    if not (math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS):
        problems.append(f"the time limit must be between 0 (off) and {MAX_SECONDS:g} s, not {seconds:g}")
    if max_bytes < 1000:
        problems.append(f"the limit of each file must be 1000 bytes or more, not {max_bytes}")
    if problems:
        raise UsageError("\n".join(f"stack capture: {problem}" for problem in problems))
    return CaptureSettings(directory=directory, seconds=seconds, max_bytes=max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank that is running. `process` is a pidfd of its first process, which stays open until the capture is over."""

    local_rank: int
    rank: int
    pid: int
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What became of one rank: the file, or why there is none."""

    rank: int
    tool: str = ""
    path: Path | None = None
    is_cut: bool = False
    why_not: str = ""
    """Also what kept the better tool from being used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The end of a capture."""

    cycle: int
    stacks: tuple[Stacks, ...]
    seconds: float


def start_capture(
    settings: CaptureSettings,
    cycle: int,
    targets: Sequence[Target],
    dump_files: Mapping[int, DumpFile],
    post: Callable[[Captured], None],
) -> None:
    """As `capture`, in a thread; the outcome is posted, in any case and in time."""

    def run() -> None:
        post(capture(settings, cycle, targets, dump_files))

    threading.Thread(target=run, name="capture-stacks", daemon=True).start()


def capture(
    settings: CaptureSettings, cycle: int, targets: Sequence[Target], dump_files: Mapping[int, DumpFile]
) -> Captured:
    """Capture now. `dump_files` is of the monitor, by local rank; its descriptors are closed in the end."""
    begun = time.monotonic()
    deadline = begun + settings.seconds
    found: queue.Queue[Stacks] = queue.Queue()
    # Beside our interpreter, too: a launcher that was started by its path has no such PATH.
    py_spy = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    unused = dict(dump_files)
    jobs = [_RankCapture(settings, cycle, target, unused.pop(target.local_rank, None), py_spy) for target in targets]
    for dump_file in unused.values():
        _close(dump_file)
    if settings.seconds > 0:
        for target in targets:
            # A process that is stopped can be asked nothing.
            _send(target.process, signal.SIGCONT)
        for job in jobs:
            threading.Thread(target=job.run, args=(deadline, found.put), name="capture-rank", daemon=True).start()
    else:
        for job in jobs:
            job.close()
    answers = _collect(found, len(jobs), deadline)
    why_not = f"nothing within {settings.seconds:g} s" if settings.seconds > 0 else "stack capture is off"
    stacks = tuple(answers.get(target.rank, Stacks(rank=target.rank, why_not=why_not)) for target in targets)
    return Captured(cycle=cycle, stacks=stacks, seconds=time.monotonic() - begun)


def _close(dump_file: DumpFile) -> None:
    os.close(dump_file.process)
    os.close(dump_file.file)


def _collect(found: queue.Queue[Stacks], count: int, deadline: float) -> dict[int, Stacks]:
    answers: dict[int, Stacks] = {}
    with contextlib.suppress(queue.Empty):
        while len(answers) < count:
            one = found.get(timeout=max(0.0, deadline - time.monotonic()))
            answers[one.rank] = one
    return answers


class _RankCapture:
    """The capture of one rank in a thread of its own, which a file system or a debugger may hold up for good."""

    def __init__(
        self, settings: CaptureSettings, cycle: int, target: Target, dump_file: DumpFile | None, py_spy: str | None
    ) -> None:
        self._settings = settings
        self._cycle = cycle
        self._target = target
        self._dump_file = dump_file
        self._py_spy = py_spy

    def run(self, deadline: float, put: Callable[[Stacks], None]) -> None:
        """Capture, and hand the outcome over."""
        try:
            put(self._capture(deadline))
        except OSError as error:
            put(Stacks(rank=self._target.rank, why_not=f"writing its file: {error.strerror or error}"))
        finally:
            self.close()

    def close(self) -> None:
        """Give the descriptors of the monitor back."""
        if self._dump_file is not None:
            _close(self._dump_file)
            self._dump_file = None

    def _capture(self, deadline: float) -> Stacks:
        now = time.monotonic()
        limit = self._settings.max_bytes
        text, why_spy = None, "py-spy is not installed"
        if self._py_spy is not None:
            # A wrapper may be the first process of a rank; who speaks is the one that trains.
            pid = self._target.pid if self._dump_file is None else self._dump_file.pid
            text, why_spy = ask_py_spy(self._py_spy, pid, limit, now + _PY_SPY_SHARE * (deadline - now))
        if text is not None:
            return self._keep("py-spy", text, "")
        if self._dump_file is None:
            return Stacks(rank=self._target.rank, why_not=f"{why_spy}; it has no handler that writes its stacks")
        text, why_self = ask_process(self._dump_file, limit, deadline)
        if text is None:
            return Stacks(rank=self._target.rank, why_not=f"{why_spy}; {why_self}")
        return self._keep("faulthandler", text, why_spy)

    def _keep(self, tool: str, text: bytes, why_not: str) -> Stacks:
        is_cut = len(text) > self._settings.max_bytes
        if is_cut:
            text = text[: self._settings.max_bytes - len(_CUT)] + _CUT
        rank = self._target.rank
        path = write_stacks(self._settings.directory, self._cycle, f"{rank}.{tool}.txt", text)
        return Stacks(rank=rank, tool=tool, path=path, is_cut=is_cut, why_not=why_not)


def ask_py_spy(program: str, pid: int, max_bytes: int, deadline: float) -> tuple[bytes | None, str]:
    """What py-spy prints, or why it prints nothing. One byte more than the limit shows that there was more."""
    command = [program, "dump", "--pid", str(pid)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        except OSError as error:
            return None, f"py-spy: {error.strerror or error}"
        try:
            code = process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            # The kernel lets go of the process that it had stopped.
            process.kill()
            process.wait()
            return None, "py-spy took too long"
        if code == 0:
            return os.pread(output.fileno(), max_bytes + 1, 0), ""
        said = os.pread(errors.fileno(), 4096, 0).decode(errors="replace").split("\n")[0].strip()
        return None, f"py-spy ended with {code}: {said}"


def ask_process(dump_file: DumpFile, max_bytes: int, deadline: float) -> tuple[bytes | None, str]:
    """Let a process write its own stacks into the file that it has given us; None and why, when it does not."""
    if not stat.S_ISREG(os.fstat(dump_file.file).st_mode):
        return None, "what it gave us to read is no file"
    if not handles_signal(dump_file.pid, DUMP_SIGNAL):
        # It would die of it.
        return None, "it has no handler that writes its stacks any more"
    before = os.fstat(dump_file.file).st_size
    if not _send(dump_file.process, DUMP_SIGNAL):
        return None, "it has ended"
    size, changed_at = before, time.monotonic()
    while size == before or time.monotonic() - changed_at < _QUIET_SECONDS:
        if time.monotonic() >= deadline - _QUIET_SECONDS:
            break
        time.sleep(_LOOK_SECONDS)
        now_size = os.fstat(dump_file.file).st_size
        if now_size != size:
            size, changed_at = now_size, time.monotonic()
    if size == before:
        return None, "it did not react to the signal"
    return os.pread(dump_file.file, min(size - before, max_bytes + 1), before), ""


def _send(process: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    return True
