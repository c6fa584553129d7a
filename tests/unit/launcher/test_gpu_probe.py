"""The process that asks NVML answers for our devices, and is not started where there are none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nvrx_chain.launcher.gpu_probe import has_gpus, open_gpus
from tests.fakes.descriptors import many_descriptors
from tests.fakes.fake_pynvml import uuid
from tests.fakes.gpu_probes import HEALTHY, Probes


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


def test_what_a_library_prints_does_not_come_between_the_answers(probes: Probes) -> None:
    noisy = "real = FakePynvml.nvmlInit\n        def init(self): os.write(1, b'{}\\n'); real(self)\n        "
    probe = probes.start(noisy + "FakePynvml.nvmlInit = init\n        " + HEALTHY)
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
