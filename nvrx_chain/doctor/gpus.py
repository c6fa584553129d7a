"""The GPUs that this process may use. Touches: NVML, and /proc/driver/nvidia/gpus where NVML cannot be asked."""

from __future__ import annotations

import os

from nvrx_chain.doctor.facts import Gpus

DRIVER_DIRECTORY = "/proc/driver/nvidia/gpus"


def read_gpus() -> Gpus:
    """Runs in a process of its own: a broken driver can hang in it or end it."""
    try:
        import pynvml
    except ImportError:
        return _from_driver("pynvml is not installed (pip install 'nvrx-chain[gpu]')")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _from_driver(f"NVML: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return _from_driver(f"NVML: {error}")
    finally:
        pynvml.nvmlShutdown()
    return Gpus(count=len(names), names=tuple(_text(name) for name in names), driver=_text(driver), source="NVML")


def _from_driver(note: str) -> Gpus:
    try:
        count = len(os.listdir(DRIVER_DIRECTORY))
    except OSError:
        count = 0
    return Gpus(count=count, source="driver", note=note)


def _text(value: str | bytes) -> str:
    # Older releases of pynvml answer in bytes.
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
