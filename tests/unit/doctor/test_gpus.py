"""GPUs by NVML, by the kernel driver's list, or none. NVML is stood in for by a module of that name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from nvrx_chain.doctor import gpus
from nvrx_chain.doctor.gpus import read_gpus


class NvmlError(Exception):
    pass


def make_nvml(monkeypatch: pytest.MonkeyPatch, *, names: tuple[str | bytes, ...] = (), error: str = "") -> list[str]:
    """Put it in the place of pynvml; returns the calls that mattered."""
    calls: list[str] = []

    def init() -> None:
        if error:
            raise NvmlError(error)
        calls.append("init")

    module = ModuleType("pynvml")
    found = {
        "NVMLError": NvmlError,
        "nvmlInit": init,
        "nvmlShutdown": lambda: calls.append("shutdown"),
        "nvmlDeviceGetCount": lambda: len(names),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: names[handle],
        "nvmlSystemGetDriverVersion": lambda: b"570.1",
    }
    for name, value in found.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return calls


def test_nvml_tells_names_and_driver_in_text_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_nvml(monkeypatch, names=("H100", b"H100"))
    seen = read_gpus()
    assert (seen.count, seen.names, seen.driver, seen.source) == (2, ("H100", "H100"), "570.1", "NVML")
    assert calls == ["init", "shutdown"]


def test_a_driver_that_nvml_does_not_match_leaves_the_kernels_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_nvml(monkeypatch, error="Driver/library version mismatch")
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(gpus, "DRIVER_DIRECTORY", str(tmp_path))
    seen = read_gpus()
    assert (seen.count, seen.source) == (2, "driver")
    assert "mismatch" in (seen.note or "")


def test_without_library_and_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "DRIVER_DIRECTORY", "/no/such/directory")
    assert read_gpus().count == 0
