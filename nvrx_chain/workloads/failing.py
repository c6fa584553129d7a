"""The ways in which a rank fails on order, each by the real thing: a signal, an abort, an exception out of nowhere.

Touches: this process, which most of them end or freeze.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from nvrx_chain.workloads.faults import Fault, FaultKind

_LARGEST_MUTEX = 256


class InjectedFault(RuntimeError):
    """The exception of a fault: it goes through like any bug of a training program would."""


def fail(fault: Fault) -> None:
    """Fail as told; `hang` is the training loop's to do. Raises InjectedFault for the kinds that are exceptions.

    Comes back after a SIGSTOP that somebody continued, and after a SIGTERM that the rank handles.
    """
    if fault.kind is FaultKind.EXIT:
        assert fault.exit_code is not None
        # Not sys.exit: its clean-up would wait for peers that cannot know that this rank has left.
        os._exit(fault.exit_code)
    if fault.kind in _EXCEPTIONS:
        raise InjectedFault(f"injected fault {fault.fault_id}")
    _WAYS[fault.kind]()


def fail_node() -> NoReturn:
    """Take the launcher of this node away, as a failed health check does: its task ends, and a spare takes the seat."""
    os.kill(os.getppid(), signal.SIGKILL)
    os._exit(1)


def _send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _raise_asynchronously() -> None:
    """Between two bytecodes of the main thread, wherever it is then: as a watchdog raises it."""
    main = threading.main_thread().ident
    assert main is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(InjectedFault))
    _run_bytecodes()


def _raise_from_a_handler() -> None:
    def throw(number: int, frame: FrameType | None) -> NoReturn:
        raise InjectedFault("injected fault in the handler of a signal")

    signal.signal(signal.SIGUSR1, throw)
    os.kill(os.getpid(), signal.SIGUSR1)
    _run_bytecodes()


def _interrupt() -> None:
    # A process that a script started in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    _run_bytecodes()


def _run_bytecodes() -> NoReturn:
    """The interpreter looks for exceptions and signals between bytecodes of loops."""
    for _ in range(10_000_000):
        pass
    raise AssertionError("the exception that was asked for was never raised")


def _abort() -> None:
    _leave_no_core()
    os.abort()


def _segfault() -> None:
    _leave_no_core()
    ctypes.string_at(0)


def _leave_no_core() -> None:
    # A core of a training process fills the run directory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _lock_gil() -> None:
    """Wait in C without giving up the interpreter: no thread and no Python handler of this process runs again."""
    # A mutex, because a wait for a lock goes on after a signal; zeros are an unlocked one on Linux.
    mutex, library = ctypes.create_string_buffer(_LARGEST_MUTEX), ctypes.PyDLL(None)
    for _ in range(2):
        library.pthread_mutex_lock(mutex)
    raise AssertionError("a mutex was locked twice")


_EXCEPTIONS = frozenset({FaultKind.EXCEPTION, FaultKind.WORKLOAD_EXC})
_WAYS: Mapping[FaultKind, Callable[[], None]] = {
    FaultKind.SIGKILL: _send(signal.SIGKILL),
    FaultKind.SIGTERM: _send(signal.SIGTERM),
    FaultKind.SIGSTOP: _send(signal.SIGSTOP),
    FaultKind.SIGINT: _interrupt,
    FaultKind.ASYNC_EXC: _raise_asynchronously,
    FaultKind.SIGNAL_EXC: _raise_from_a_handler,
    FaultKind.OS_ABORT: _abort,
    FaultKind.SEGFAULT: _segfault,
    FaultKind.LOCK_GIL: _lock_gil,
}
