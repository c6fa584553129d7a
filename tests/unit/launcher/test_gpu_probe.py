"""The process that asks NVML: it answers, hangs, crashes and goes away, and whoever asks is never held up."""

from __future__ import annotations

import logging
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nvrx_chain.launcher.gpu_probe import NvmlHangs, ProbedGpus, has_gpus, open_gpus
from nvrx_chain.launcher.gpus import NvmlAbsent, NvmlUnreachable
from tests.fakes.descriptors import many_descriptors
from tests.fakes.fake_pynvml import uuid

ROOT = Path(__file__).parents[3]
HEALTHY = "module = FakePynvml(eight())"


def command(setup: str) -> tuple[str, ...]:
    """A probe whose pynvml is the fake that `setup` names `module`."""
    program = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from nvrx_chain.launcher import gpu_probe
        from tests.fakes.fake_pynvml import *
        {setup}
        sys.modules["pynvml"] = module
        gpu_probe.IDLE_SECONDS = 0.05
        gpu_probe.main()
    """
    return (sys.executable, "-I", "-c", textwrap.dedent(program))


class Probes:
    """Starts probes and ends them with the test."""

    def __init__(self) -> None:
        self.started: list[ProbedGpus] = []

    def start(self, setup: str, visible: tuple[str, ...] | None = None) -> ProbedGpus:
        self.started.append(ProbedGpus(visible, command(setup)))
        return self.started[-1]


@pytest.fixture
def probes() -> Iterator[Probes]:
    made = Probes()
    yield made
    for probe in made.started:
        probe.close()


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_the_process_answers_for_the_visible_devices_and_ends_with_its_input(probes: Probes) -> None:
    before = children()
    probe = probes.start(HEALTHY, ("2", "5"))
    assert [state.name for state in probe.states(10.0)] == [uuid(2), uuid(5)]
    assert [memory.used_mb for memory in probe.memory(10.0)] == [3.0, 3.0]
    assert all(domain.cluster_uuid for domain in probe.domains(10.0))
    (process,) = set(children()) - set(before)
    probe.close()
    assert not process.is_running()


def test_descriptors_beyond_those_of_select_are_no_trouble(probes: Probes) -> None:
    with many_descriptors():
        assert len(probes.start(HEALTHY).states(10.0)) == 8


def test_one_process_serves_many_questions_also_after_it_let_go_of_the_devices(probes: Probes) -> None:
    before = set(children())
    probe = probes.start(HEALTHY)
    probe.states(10.0)
    first = set(children()) - before
    time.sleep(0.2)
    probe.states(10.0)
    assert set(children()) - before == first


def test_what_a_library_prints_does_not_come_between_the_answers(probes: Probes) -> None:
    noisy = "real = FakePynvml.nvmlInit\n        def init(self): os.write(1, b'{}\\n'); real(self)\n        "
    probe = probes.start(noisy + "FakePynvml.nvmlInit = init\n        " + HEALTHY)
    assert len(probe.states(10.0)) == 8


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
    with pytest.raises(NvmlUnreachable, match="signal 11"):
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
    probe.states(10.0)
    probe.close()
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


def test_a_machine_has_gpus_when_it_has_their_device_nodes(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    assert not has_gpus(tmp_path)
    (tmp_path / "nvidia12").touch()
    assert has_gpus(tmp_path)
    assert not has_gpus(tmp_path / "not there")


def test_gpus_that_are_not_ours_are_not_opened_and_one_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert open_gpus({}, tmp_path) is None
        (tmp_path / "nvidia0").touch()
        assert open_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, tmp_path) is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "no NVIDIA GPU on this node",
        "no GPU is visible to this job",
    ]
    assert open_gpus({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) is not None


def test_closing_does_not_wait_for_a_question_that_hangs(probes: Probes) -> None:
    before = set(children())
    probe = probes.start("FakePynvml.nvmlInit = lambda self: time.sleep(60)\n        " + HEALTHY)
    failed = threading.Event()

    def ask() -> None:
        with pytest.raises(NvmlUnreachable):
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
