"""The process that asks NVML hangs, crashes and goes away, and whoever asks is never held up."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from nvrx_chain.launcher.gpu_facts import NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.gpu_probe import NvmlHangs, ProbedGpus
from tests.fakes.gpu_probes import HEALTHY, Probes

pytestmark = pytest.mark.integration


@pytest.fixture
def probes() -> Iterator[Probes]:
    made = Probes()
    yield made
    for probe in made.started:
        probe.close()


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_one_process_serves_many_questions_also_after_it_let_go_of_the_devices(probes: Probes) -> None:
    before = set(children())
    probe = probes.start(HEALTHY)
    probe.states(10.0)
    first = set(children()) - before
    time.sleep(0.2)
    probe.states(10.0)
    assert set(children()) - before == first


def test_nvml_that_hangs_is_given_up_at_the_deadline_and_its_process_is_killed(probes: Probes) -> None:
    before = set(children())
    probe = probes.start("FakePynvml.nvmlInit = lambda self: time.sleep(60)\n        " + HEALTHY)
    started_at = time.monotonic()
    with pytest.raises(NvmlHangs, match=r"no answer within 0\.5 s"):
        probe.states(0.5)
    assert time.monotonic() - started_at < 2.0
    assert set(children()) - before == set()


def test_a_frozen_process_is_a_hang_and_the_next_question_gets_a_new_one(probes: Probes) -> None:
    before = set(children())
    probe = probes.start(HEALTHY)
    probe.states(10.0)
    (process,) = set(children()) - before
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(NvmlHangs):
        probe.states(0.2)
    assert not process.is_running()
    assert len(probe.states(10.0)) == 8


def test_nvml_that_crashes_its_process_is_unreachable_and_not_absent(probes: Probes) -> None:
    probe = probes.start("FakePynvml.nvmlInit = lambda self: os.kill(os.getpid(), signal.SIGSEGV)\n        " + HEALTHY)
    with pytest.raises(NvmlUnreachable, match="ended with -11"):
        probe.states(10.0)


def test_a_process_that_was_killed_while_it_was_idle_is_replaced(probes: Probes) -> None:
    before = set(children())
    probe = probes.start(HEALTHY)
    probe.states(10.0)
    (process,) = set(children()) - before
    process.kill()
    assert len(probe.states(10.0)) == 8
    assert not process.is_running()


def test_a_process_that_is_killed_again_and_again_is_no_sick_gpu(probes: Probes) -> None:
    # As the kernel does when a node is out of memory.
    probe = probes.start("FakePynvml.nvmlInit = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n        " + HEALTHY)
    with pytest.raises(NvmlAbsent, match="ended with -9"):
        probe.states(10.0)


def test_a_process_that_python_ends_says_nothing_about_the_gpus(probes: Probes) -> None:
    probe = probes.start("sys.exit(3)\n        " + HEALTHY)
    with pytest.raises(NvmlAbsent, match="ended with 3"):
        probe.states(10.0)
    missing = ProbedGpus(None, ("/no/such/python",))
    with pytest.raises(NvmlAbsent, match="No such file"):
        missing.states(10.0)


def test_errors_of_nvml_arrive_as_what_they_are(probes: Probes) -> None:
    broken = "module = FakePynvml(eight(), failing={'nvmlInit': '%s'})"
    with pytest.raises(NvmlUnreachable, match="Driver not loaded"):
        probes.start(broken % "DRIVER_NOT_LOADED").states(10.0)
    with pytest.raises(NvmlAbsent, match="libnvidia-ml"):
        probes.start(broken % "LIBRARY_NOT_FOUND").states(10.0)


def test_who_asks_while_another_question_hangs_waits_no_longer_than_it_said(probes: Probes) -> None:
    probe = probes.start("FakePynvml.nvmlInit = lambda self: time.sleep(60)\n        " + HEALTHY)
    asked = threading.Event()

    def ask() -> None:
        asked.set()
        with pytest.raises(NvmlHangs):
            probe.states(1.0)

    first = threading.Thread(target=ask)
    first.start()
    assert asked.wait(10.0)
    started_at = time.monotonic()
    with pytest.raises(NvmlHangs):
        probe.memory(0.3)
    assert time.monotonic() - started_at < 0.9
    first.join()


def test_a_process_that_cannot_be_killed_is_left_behind_and_no_second_one_joins_it(probes: Probes) -> None:
    probe = probes.start(HEALTHY)
    # In uninterruptible sleep a process outlives SIGKILL; what is left then is one that has not ended.
    living = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        probe._stuck = living
        before = set(children())
        with pytest.raises(NvmlHangs, match="earlier question still hangs"):
            probe.states(5.0)
        assert set(children()) == before
    finally:
        living.kill()
        living.wait()
    assert len(probe.states(10.0)) == 8


def test_closing_does_not_wait_for_a_question_that_hangs(probes: Probes) -> None:
    before = set(children())
    probe = probes.start("FakePynvml.nvmlInit = lambda self: time.sleep(60)\n        " + HEALTHY)
    failed = threading.Event()

    def ask() -> None:
        with pytest.raises(NvmlAbsent, match="the launcher ends"):
            probe.states(30.0)
        failed.set()

    threading.Thread(target=ask).start()
    deadline = time.monotonic() + 10.0
    while not set(children()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    started_at = time.monotonic()
    probe.close()
    assert time.monotonic() - started_at < 1.5
    assert failed.wait(5.0)


def test_the_real_probe_says_on_this_machine_that_there_is_no_nvml() -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    probe = ProbedGpus(None)
    with pytest.raises(NvmlAbsent, match=r"pynvml is not installed|libnvidia-ml"):
        probe.states(20.0)
    probe.close()
