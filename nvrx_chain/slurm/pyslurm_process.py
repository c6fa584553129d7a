"""The other end of pyslurm_worker.py: starts the child, asks it with a deadline, and starts another when it has ended.

Whatever libslurm does (block, call exit, crash) is "could not look" here, with its last words as the reason.
Touches: one child process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence

import msgspec

from nvrx_chain.errors import SlurmUnavailable, Unobserved, UsageError
from nvrx_chain.slurm.command import reading_environment
from nvrx_chain.slurm.parse.replies import one_line
from nvrx_chain.slurm.pyslurm_worker import Answer, Question

log = logging.getLogger(__name__)

# `-I`: a stray module in the current directory must not win. What this process would import, the child does.
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from nvrx_chain.slurm.pyslurm_worker import main; main()"
_MOST_BYTES = 1 << 28
_LAST_WORDS_BYTES = 4000
_CHUNK_BYTES = 1 << 20
_END_SECONDS = 1.0
# libslurm reads its configuration once: a watcher that runs for weeks must learn of another controller.
_LIFE_SECONDS = 900.0
_HINT = "or go without --slurm-client pyslurm and NVRX_SLURM_CLIENT"


class _WorkerLate(Exception):
    """No answer within the deadline."""


class _WorkerGone(Exception):
    """The child has ended; why."""


class PySlurmProcess:
    """Answers questions, for any number of threads, one at a time.

    `search_path` is looked in for modules before the path of this process.
    """

    def __init__(self, environ: Mapping[str, str], *, search_path: Sequence[str] = ()) -> None:
        self._environ = reading_environment(environ)
        self._path = (*search_path, *(entry for entry in sys.path if entry))
        self._lock = threading.Lock()
        # In a list, which the end of this object (or of the interpreter) empties.
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end_all, self._workers)

    def start(self, seconds: float) -> str:
        """Start the child and return PySlurm's version.

        Raises UsageError when PySlurm cannot be imported, SlurmUnavailable when the child ended or hung over it.
        """
        doing = "start PySlurm"
        with self._lock:
            _end_all(self._workers)
            try:
                hello = self._begin(time.monotonic() + seconds)
            except _WorkerLate:
                _end_all(self._workers)
                raise SlurmUnavailable(doing, part=f"it did not start in {seconds:.0f} s", hint=_HINT) from None
            except (_WorkerGone, OSError) as error:
                _end_all(self._workers)
                raise SlurmUnavailable(doing, part=str(error), hint=f"is SLURM_CONF right? {_HINT}") from error
        if hello.error is not None:
            raise UsageError(
                doing, part=one_line(hello.error), hint=f"pip install pyslurm==X.Y.*, X.Y of sinfo --version; {_HINT}"
            )
        return hello.version

    def ask(self, question: Question) -> Answer | Unobserved:
        """The answer, else why there is none, at most `question.seconds` (and a moment) later. Raises nothing."""
        ends_at = time.monotonic() + question.seconds
        if not self._lock.acquire(timeout=question.seconds):
            return Unobserved(
                f"PySlurm had no time to answer in {question.seconds:.0f} s: it is still asked other things"
            )
        try:
            return self._ask(question, ends_at)
        except _WorkerLate:
            _end_all(self._workers)
            return Unobserved(f"PySlurm did not answer in {question.seconds:.0f} s")
        except _WorkerGone as gone:
            _end_all(self._workers)
            return Unobserved(f"the process that uses PySlurm ended: {gone}")
        except BaseException:
            # An interrupt leaves an answer in the pipe, which would be taken for that of the next question.
            _end_all(self._workers)
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child. The next question starts another one."""
        with self._lock:
            _end_all(self._workers)

    @property
    def pid(self) -> int | None:
        """The child, None while there is none."""
        return self._workers[0].pid if self._workers else None

    def _ask(self, question: Question, ends_at: float) -> Answer | Unobserved:
        if self._workers and self._workers[0].is_worn_out():
            _end_all(self._workers)
        if not self._workers:
            try:
                hello = self._begin(ends_at)
            except OSError as error:
                return Unobserved(f"the process that uses PySlurm did not start: {error}")
            if hello.error is not None:
                return Unobserved(f"PySlurm cannot be imported: {one_line(hello.error)}")
        self._workers[0].send(question)
        return self._workers[0].receive(ends_at)

    def _begin(self, ends_at: float) -> Answer:
        """Start a child and wait for what it says first. Raises OSError too."""
        worker = _Worker((sys.executable, "-I", "-c", _BOOT, *self._path), self._environ)
        self._workers.append(worker)
        hello = worker.receive(ends_at)
        if hello.error is not None:
            _end_all(self._workers)
        return hello


class _Worker:
    """One child process and its pipes."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            # Ctrl-C is for the command, which then ends the child.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pid = self._process.pid
        self._started = time.monotonic()
        self._answers = self._process.stdout.fileno()
        self._errors = self._process.stderr.fileno()
        self._buffer = bytearray()
        self._last_words = b""

    def is_worn_out(self) -> bool:
        """Whether it has ended unasked, or is old."""
        return self._process.poll() is not None or time.monotonic() - self._started > _LIFE_SECONDS

    def send(self, question: Question) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise _WorkerGone(self._why_it_ended()) from error

    def receive(self, ends_at: float) -> Answer:
        """The next answer. Raises _WorkerLate and _WorkerGone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            selector.register(self._errors, selectors.EVENT_READ)
            searched = 0
            while (at := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                ready = selector.select(max(0.0, ends_at - time.monotonic()))
                if not ready:
                    raise _WorkerLate
                for key, _events in ready:
                    self._take(key.fd, selector)
        line = bytes(memoryview(self._buffer)[:at])
        del self._buffer[: at + 1]
        return self._decode(line)

    def _take(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if descriptor == self._errors:
            self._last_words = (self._last_words + chunk)[-_LAST_WORDS_BYTES:]
            if not chunk:
                selector.unregister(descriptor)
            return
        self._buffer += chunk
        if not chunk or len(self._buffer) > _MOST_BYTES:
            raise _WorkerGone(self._why_it_ended() if not chunk else "it answers without end")

    def _decode(self, line: bytes) -> Answer:
        try:
            return msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            raise _WorkerGone(f"it answers what is no answer: {error}") from error

    def _why_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        os.set_blocking(self._errors, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._errors, _CHUNK_BYTES):
                self._last_words = (self._last_words + chunk)[-_LAST_WORDS_BYTES:]
        said = one_line(self._last_words.decode("utf-8", "backslashreplace"))
        code = self._process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{how}, {said or 'without a word'}"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("a process that uses PySlurm cannot be ended pid=%s", self.pid)


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()
