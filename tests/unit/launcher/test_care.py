"""The health of a node as the launcher's loop calls it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nvrx_chain.launcher import care as care_module
from nvrx_chain.launcher.care import NodeCare, check_deadline_seconds
from nvrx_chain.launcher.gpu_probe import ProbedGpus
from nvrx_chain.launcher.health_settings import HealthSettings, make_health_settings
from nvrx_chain.launcher.place import read_place
from nvrx_chain.launcher.reclaim import ReclaimSettings
from tests.fakes.gpu_probes import command

ENVIRON = {"SLURM_PROCID": "2", "PATH": os.environ["PATH"]}


def care(settings: HealthSettings, environ: dict[str, str] = ENVIRON) -> NodeCare:
    return NodeCare(settings, ReclaimSettings(timeout_seconds=0.5), read_place(environ, "host"), environ)


def on_a_gpu_node(monkeypatch: pytest.MonkeyPatch, module: str) -> NodeCare:
    """Over the real process, with a fake pynvml in it."""
    monkeypatch.setattr(care_module, "open_gpus", lambda environ: ProbedGpus(None, command(f"module = {module}")))
    return care(HealthSettings())


def test_a_node_without_gpus_is_healthy_and_has_nothing_to_wait_for(tmp_path: Path) -> None:
    node = care(HealthSettings(storage_paths=(tmp_path,)), {**ENVIRON, "CUDA_VISIBLE_DEVICES": ""})
    node.start_background()
    assert node.check(0) is None
    assert not node.must_reclaim
    node.reclaim()
    assert node.domain(None) is None
    node.close()


def test_an_injected_failure_is_the_reason_in_its_round_alone() -> None:
    node = care(make_health_settings({"NVRX_INJECT_GPU_FAILURE": "1:2"}))
    assert [node.check(0), node.check(2)] == [None, None]
    assert node.check(1) == "injected: NVRX_INJECT_GPU_FAILURE names 1:2"
    node.close()


def test_a_sick_gpu_is_the_reason_and_the_domain_comes_from_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    node = on_a_gpu_node(monkeypatch, "FakePynvml([Device(uuid=uuid(0)), Device(uuid=uuid(1), recovery=2)])")
    assert node.must_reclaim
    assert node.check(0) == "gpu: GPU-00000001-1111-2222-3333-444444444444 needs a recovery action: node reboot"
    assert node.domain(4) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    node.reclaim()
    node.close()


def test_memory_of_ranks_that_are_gone_is_waited_for_without_their_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = 4194301
    node = on_a_gpu_node(monkeypatch, f"FakePynvml([Device(uuid=uuid(0), pids=({gone},), used=9 << 30)])")
    # Also where pids mean nothing, by the use of the device.
    assert node._reclaim.wait(()).held
    node.close()


def test_the_secret_of_the_job_is_not_given_to_a_health_check() -> None:
    environ = {**os.environ, "SLURM_PROCID": "0", "NVRX_CHAIN_LAUNCH_SECRET": "hunter2"}
    settings = make_health_settings(environ, command="sh -c 'env | grep -c ^NVRX_CHAIN_LAUNCH_SECRET'")
    node = care(settings, environ)
    assert node.check(0) is not None, "grep finds nothing and ends with 1"
    assert "ended with 1: 0" in str(node.check(0))
    node.close()


def test_the_deadline_is_over_the_longest_limit() -> None:
    assert check_deadline_seconds(HealthSettings()) == 35.0
    assert check_deadline_seconds(HealthSettings(gpu=False)) == 10.0
    assert check_deadline_seconds(HealthSettings(command=(sys.executable,))) == 65.0
