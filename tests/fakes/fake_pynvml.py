"""A pynvml module with recorded answers, for a machine without GPUs: functions, constants and errors as the real one.

`missing` names functions that this driver or pynvml does not have, `failing` what a function raises.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from nvrx_chain.launcher.gpu_facts import GpuDomain, GpuMemory, GpuState
from nvrx_chain.launcher.gpus import Nvml

NVML_SUCCESS = 0
CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "LIB_RM_VERSION_MISMATCH": 18,
    "NO_DATA": 21,
    "VGPU_ECC_NOT_SUPPORTED": 22,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "DEPRECATED": 26,
    "NOT_READY": 27,
    "UNKNOWN": 999,
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        name = next((name for name, code in CODES.items() if code == self.value), str(self.value))
        return name.replace("_", " ").capitalize()


class NVMLLibraryMismatchError(Exception):
    """As the real one: not an NVMLError."""


class Fabric(ctypes.Structure):
    _fields_ = [("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint), ("state", ctypes.c_ubyte)]


@dataclass
class Device:
    """One GPU, or one MIG instance when `part_of` names its GPU."""

    uuid: str
    uncorrected: int = 0
    recovery: int = 0
    recovery_return: int = NVML_SUCCESS
    remap_failed: int = 0
    used: int = 3 << 20
    reserved: int = 600 << 20
    pids: tuple[int, ...] = ()
    mps_pids: tuple[int, ...] = ()
    cluster: bytes = bytes(range(16))
    lost: bool = False
    part_of: Device | None = None
    instance: tuple[int, int] = (0, 0)
    parts: list[Device] = field(default_factory=list)


@dataclass
class FakePynvml:
    """The module. `calls` has the names of the functions that were called."""

    devices: list[Device]
    missing: frozenset[str] = frozenset()
    failing: dict[str, str] = field(default_factory=dict)
    text_is_bytes: bool = False
    calls: list[str] = field(default_factory=list)
    is_open: bool = False

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    NVML_SUCCESS = NVML_SUCCESS
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlMemory_v2 = 0x02000028
    c_nvmlGpuFabricInfoV_t = Fabric
    c_nvmlGpuFabricInfo_t = Fabric

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("NVML_ERROR_"):
            return CODES[name.removeprefix("NVML_ERROR_")]
        if name.startswith(("nvml", "c_nvml", "NVML_FI")):
            if name in object.__getattribute__(self, "missing"):
                raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
            object.__getattribute__(self, "calls").append(name)
            failure = object.__getattribute__(self, "failing").get(name)
            if failure is not None:
                return _raiser(failure)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        self._require_open()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        self._require_open()
        return _alive(self.devices[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        self._require_open()
        for device in self._all():
            if device.uuid == uuid:
                return _alive(device)
        raise NVMLError(CODES["NOT_FOUND"])

    def nvmlDeviceGetUUID(self, handle: Device) -> str | bytes:
        return _alive(handle).uuid.encode() if self.text_is_bytes else _alive(handle).uuid

    def nvmlDeviceIsMigDeviceHandle(self, handle: Device) -> int:
        return int(handle.part_of is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Device) -> Device:
        assert handle.part_of is not None
        return handle.part_of

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Device) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Device, index: int) -> Device:
        # Places 0, 2, 4: those in between are empty.
        if index % 2 or index // 2 >= len(handle.parts):
            raise NVMLError(CODES["NOT_FOUND"])
        return handle.parts[index // 2]

    def nvmlDeviceGetGpuInstanceId(self, handle: Device) -> int:
        return handle.instance[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: Device) -> int:
        return handle.instance[1]

    def nvmlDeviceGetTotalEccErrors(self, handle: Device, error_type: int, counter_type: int) -> int:
        assert (error_type, counter_type) == (1, 0), "uncorrected, since the last reset"
        self._whole(handle)
        return handle.uncorrected

    def nvmlDeviceGetRemappedRows(self, handle: Device) -> tuple[int, int, int, int]:
        self._whole(handle)
        return (5, 1, 1, handle.remap_failed)

    def nvmlDeviceGetFieldValues(self, handle: Device, fields: list[int]) -> list[SimpleNamespace]:
        assert fields == [230]
        self._whole(handle)
        value = SimpleNamespace(uiVal=handle.recovery)
        return [SimpleNamespace(nvmlReturn=handle.recovery_return, value=value)]

    def nvmlDeviceGetMemoryInfo(self, handle: Device, version: int | None = None) -> SimpleNamespace:
        used = _alive(handle).used + (0 if version else handle.reserved)
        return SimpleNamespace(used=used, total=80 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Device) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in _alive(handle).pids]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Device) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in _alive(handle).mps_pids]

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Device, pointer: Any) -> int:
        return self._fill(handle, pointer)

    def nvmlDeviceGetGpuFabricInfo(self, handle: Device, pointer: Any) -> int:
        return self._fill(handle, pointer)

    def _fill(self, handle: Device, pointer: Any) -> int:
        self._whole(handle)
        # The real function takes a pointer; a structure by value would crash it.
        pointer._obj.clusterUuid[:] = list(handle.cluster)
        return NVML_SUCCESS

    def _whole(self, handle: Device) -> None:
        """Errors, recovery and fabric are those of a whole GPU: of an instance they are not supported."""
        self._require_open()
        if _alive(handle).part_of is not None:
            raise NVMLError(CODES["NOT_SUPPORTED"])

    def _require_open(self) -> None:
        if not self.is_open:
            raise NVMLError(CODES["UNINITIALIZED"])

    def _all(self) -> list[Device]:
        return [*self.devices, *(part for device in self.devices for part in device.parts)]


def _alive(device: Device) -> Device:
    if device.lost:
        raise NVMLError(CODES["GPU_IS_LOST"])
    return device


def _raiser(failure: str) -> Any:
    def fail(*_: object, **__: object) -> None:
        if failure == "MISMATCH":
            raise NVMLLibraryMismatchError("the driver is older than this binding")
        raise NVMLError(CODES[failure])

    return fail


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def eight() -> list[Device]:
    """A node of eight healthy GPUs."""
    return [Device(uuid=uuid(number)) for number in range(8)]


class Direct:
    """A GpuLibrary without a process between."""

    def __init__(self, module: FakePynvml, visible: tuple[str, ...] | None = None) -> None:
        self._nvml = Nvml(visible, module)

    def states(self, seconds: float) -> tuple[GpuState, ...]:
        return self._nvml.states()

    def memory(self, seconds: float) -> tuple[GpuMemory, ...]:
        return self._nvml.memory()

    def domains(self, seconds: float) -> tuple[GpuDomain, ...]:
        return self._nvml.domains()
