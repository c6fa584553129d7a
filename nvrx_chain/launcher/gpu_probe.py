"""NVML in a process of its own, which answers questions on a pipe and may hang or crash alone.

`python -I -m nvrx_chain.launcher.gpu_probe` is the process: a line of JSON in, a line out, until its input ends. It
lets go of the devices when nobody has asked for a while. `ProbedGpus` is the side that asks. Touches: a process, NVML.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from nvrx_chain.launcher.bounded import is_readable
from nvrx_chain.launcher.gpu_facts import GpuDomain, GpuMemory, GpuState, NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.gpus import Nvml
from nvrx_chain.launcher.visible import VARIABLE, visible_devices

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE = (sys.executable, "-I", "-m", "nvrx_chain.launcher.gpu_probe")
IDLE_SECONDS = 5.0
_AFTER_KILL_SECONDS = 0.3
_AFTER_EOF_SECONDS = 0.5
_DEVICE_NODES = "nvidia[0-9]*"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`what` is `states`, `memory` or `domains`; `visible` is None for all devices."""

    number: int
    what: str
    visible: tuple[str, ...] | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`value` counts unless there is an `error`. `is_absent`: the error is one of the installation."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    is_absent: bool = False


class NvmlHangs(NvmlUnreachable):
    """NVML did not answer in time. That is the sign of a sick GPU or driver, not of a busy machine."""


_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})


class _Ended(Exception):
    """The process that asks NVML ended. Of a crash in NVML, or for a reason that a healthy node may have as well."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process that asks it ended with {code}")
        self.is_crash = code is not None and -code in _CRASHES


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """Whether this machine, or this container, has NVIDIA GPUs at all."""
    return any(path.name.removeprefix("nvidia").isdigit() for path in devices.glob(_DEVICE_NODES))


def open_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> ProbedGpus | None:
    """The GPUs of this job on this node; None, and one line in the log, where it has none. Asks nothing yet."""
    visible = visible_devices(environ)
    if visible == ():
        log.info(
            "no GPU is visible to this job: GPU checks and memory reclaim are off %s=%s", VARIABLE, environ[VARIABLE]
        )
        return None
    if not has_gpus(devices):
        log.info("no NVIDIA GPU on this node: GPU checks and memory reclaim are off")
        return None
    return ProbedGpus(visible, environ=environ)


class ProbedGpus:
    """The GPUs in `visible` by a process that is started when it is first asked. Threads may share one."""

    def __init__(
        self, visible: tuple[str, ...] | None, command: Sequence[str] = PROBE, environ: Mapping[str, str] | None = None
    ) -> None:
        self._environ = environ
        self._visible = visible
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._is_closed = False

    def states(self, seconds: float) -> tuple[GpuState, ...]:
        return self._ask("states", tuple[GpuState, ...], seconds)

    def memory(self, seconds: float) -> tuple[GpuMemory, ...]:
        return self._ask("memory", tuple[GpuMemory, ...], seconds)

    def domains(self, seconds: float) -> tuple[GpuDomain, ...]:
        return self._ask("domains", tuple[GpuDomain, ...], seconds)

    def close(self) -> None:
        """End the process. One that hangs in the driver is left behind."""
        self._is_closed = True
        if not self._lock.acquire(timeout=_AFTER_EOF_SECONDS):
            # A question is under way: its end ends that too.
            process = self._process
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            return
        try:
            if self._process is not None:
                self._end(self._process)
        finally:
            self._process = None
            self._lock.release()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_AFTER_EOF_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill(process)
        if process.stdout is not None:
            process.stdout.close()

    def _ask(self, what: str, kind: type[T], seconds: float) -> T:
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            raise NvmlHangs(f"asking NVML: the question before this one had no answer within {seconds:g} s")
        try:
            answer = self._ask_twice(what, deadline, seconds)
        finally:
            self._lock.release()
        if answer.error is not None:
            raise (NvmlAbsent if answer.is_absent else NvmlUnreachable)(answer.error)
        return msgspec.json.decode(answer.value, type=kind)

    def _ask_twice(self, what: str, deadline: float, seconds: float) -> Answer:
        """Once more where the process ended: it may have been killed while it was idle, for memory or by hand."""
        try:
            return self._exchange(self._running(), self._question(what), deadline, seconds)
        except _Ended:
            pass
        try:
            return self._exchange(self._running(), self._question(what), deadline, seconds)
        except _Ended as ended:
            raise (NvmlUnreachable if ended.is_crash else NvmlAbsent)(f"asking NVML: {ended}") from ended

    def _question(self, what: str) -> Question:
        self._number += 1
        return Question(number=self._number, what=what, visible=self._visible)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise NvmlAbsent("asking NVML: the launcher ends")
        if self._stuck is not None:
            if self._stuck.poll() is None:
                # Another one would hang as well, and they would become more with every round.
                raise NvmlHangs("asking NVML: an earlier question still hangs in the driver")
            self._stuck = None
        if self._process is None:
            self._unread = b""
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=None if self._environ is None else dict(self._environ),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise NvmlAbsent(f"starting {self._command[0]}: {error.strerror or error}") from error
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], question: Question, deadline: float, seconds: float
    ) -> Answer:
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
            while True:
                line = self._read_line(process, deadline)
                if line is None:
                    self._give_up(process)
                    raise NvmlHangs(f"asking NVML: no answer within {seconds:g} s")
                answer = msgspec.json.decode(line, type=Answer)
                if answer.number == question.number:
                    return answer
        except (OSError, EOFError) as error:
            self._give_up(process)
            raise _Ended(process.poll()) from error
        except msgspec.DecodeError as error:
            self._give_up(process)
            raise NvmlUnreachable(f"asking NVML: its answer cannot be read: {error}") from error

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """A line, None when it did not come in time. Raises EOFError."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not is_readable(process.stdout.fileno(), left):
                return None
            found = os.read(process.stdout.fileno(), 1 << 16)
            if not found:
                raise EOFError
            self._unread += found
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        self._kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        try:
            # One that ended by itself shall show its own exit code.
            process.wait(0.05)
            return
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_AFTER_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            # In uninterruptible sleep in the driver: nobody may wait for it.
            self._stuck = process


def serve(source: int, sink: int, nvml: Nvml | None = None) -> None:
    """Answer questions until the input ends."""
    waiting = b""
    known: dict[tuple[str, ...] | None, Nvml] = {}
    while True:
        if not is_readable(source, IDLE_SECONDS):
            for library in known.values():
                library.close()
            known.clear()
        # No deadline: the input ends with the launcher.
        found = os.read(source, 1 << 16)
        if not found:
            return
        *lines, waiting = (waiting + found).split(b"\n")
        for line in lines:
            question = msgspec.json.decode(line, type=Question)
            library = nvml or known.setdefault(question.visible, Nvml(question.visible))
            os.write(sink, msgspec.json.encode(_answer(library, question)) + b"\n")


def _answer(library: Nvml, question: Question) -> Answer:
    asked = {"states": library.states, "memory": library.memory, "domains": library.domains}[question.what]
    try:
        return Answer(number=question.number, value=msgspec.Raw(msgspec.json.encode(asked())))
    except NvmlAbsent as error:
        return Answer(number=question.number, error=str(error), is_absent=True)
    except NvmlUnreachable as error:
        return Answer(number=question.number, error=str(error))


def main() -> None:
    """The process. What libraries print must not come between the answers."""
    sink = os.dup(1)
    os.dup2(2, 1)
    serve(0, sink)


if __name__ == "__main__":
    main()
