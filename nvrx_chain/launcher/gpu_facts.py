"""What the launcher knows and asks about its GPUs, as values. Pure.

Three things are kept apart: a device that NVML cannot reach (sick), a question that this driver, pynvml or GPU has no
answer to (not observed, never sick), and NVML that is not there at all (`NvmlAbsent`: a fault of the installation, the
same on every node).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from nvrx_chain.errors import NvrxError


class NvmlAbsent(NvrxError):
    """pynvml or NVML's library is not installed."""


class NvmlUnreachable(NvrxError):
    """NVML is installed and does not work: driver not loaded, of another version, or hanging."""


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The health of one device. None is not observed, and `unobserved` says why."""

    name: str
    """Its UUID, or how CUDA_VISIBLE_DEVICES calls it when it cannot be reached."""
    error: str | None = None
    """Why it cannot be reached; then nothing else is known."""
    uncorrected_errors: int | None = None
    """Uncorrected ECC errors since the last reset of the device."""
    recovery_action: str | None = None
    """What the driver asks for, `none` when nothing."""
    remap_failed: bool | None = None
    """Whether a broken row of memory could not be replaced."""
    unobserved: tuple[str, ...] = ()


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who uses how much of one device. None is not observed."""

    name: str
    used_mb: float | None = None
    """Without what the driver keeps for itself, where NVML tells the two apart."""
    pids: tuple[int, ...] | None = None
    """As the kernel's first PID namespace numbers them."""
    error: str | None = None


class GpuDomain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The NVLink domain of one device. `cluster_uuid` is None where there is none, and `reason` says more."""

    name: str
    cluster_uuid: str | None = None
    reason: str = ""


class GpuLibrary(Protocol):
    """What the launcher asks about its GPUs, each time for so many seconds at most.

    Raises NvmlAbsent and NvmlUnreachable.
    """

    def states(self, seconds: float) -> tuple[GpuState, ...]: ...

    def memory(self, seconds: float) -> tuple[GpuMemory, ...]: ...

    def domains(self, seconds: float) -> tuple[GpuDomain, ...]: ...
