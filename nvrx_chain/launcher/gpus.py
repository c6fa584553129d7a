"""What NVML says of our GPUs. Touches: NVML, through pynvml, which is imported here only and need not be installed.

Runs in a process of its own (`gpu_probe.py`), for a sick GPU can hang NVML for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nvrx_chain.launcher.gpu_facts import GpuDomain, GpuMemory, GpuState, NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.visible import find_by_beginning, parse_index, parse_old_mig

T = TypeVar("T")

RECOVERY_ACTIONS = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and reset",
    5: "recovery of the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
"""NVML_GPU_RECOVERY_ACTION_* of nvml.h; a later driver may have more."""

_WITHOUT_ANSWER = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_NOT_READY",
)
"""Errors that say nothing about the health of a device."""


class _NoAnswer(Exception):
    """This driver, pynvml or device has no answer to a question."""


class _Sick(Exception):
    """A device cannot be reached."""


class Nvml:
    """NVML for the devices named in `visible`, None for all. It may hang in any call."""

    def __init__(self, visible: Sequence[str] | None, module: Any = None) -> None:
        self._visible = visible
        self._module = module
        self._open = False

    def states(self) -> tuple[GpuState, ...]:
        """The health of each device."""
        return tuple(self._state(name, handle) for name, handle in self._devices())

    def memory(self) -> tuple[GpuMemory, ...]:
        """Use of memory and processes of each device."""
        return tuple(self._memory(name, handle) for name, handle in self._devices())

    def domains(self) -> tuple[GpuDomain, ...]:
        """The NVLink domain of each device."""
        return tuple(self._domain(name, handle) for name, handle in self._devices())

    def close(self) -> None:
        """Let go of the devices: an open NVML keeps them from being reset."""
        if self._open:
            self._open = False
            self._module.nvmlShutdown()

    # Devices

    def _require(self) -> Any:
        if self._module is None:
            self._module = _import_pynvml()
        if not self._open:
            try:
                self._module.nvmlInit()
            except self._module.NVMLError as error:
                if getattr(error, "value", None) == self._module.NVML_ERROR_LIBRARY_NOT_FOUND:
                    raise NvmlAbsent(
                        "opening NVML",
                        hint="no libnvidia-ml.so.1; in a container NVIDIA_DRIVER_CAPABILITIES needs `utility`",
                    ) from error
                raise NvmlUnreachable(f"opening NVML: {error}") from error
            self._open = True
        return self._module

    def _devices(self) -> list[tuple[str, Any]]:
        """Name and handle of each; in place of a handle the reason why there is none."""
        nvml = self._require()
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise NvmlUnreachable(f"counting the GPUs: {error}") from error
        words = [str(index) for index in range(count)] if self._visible is None else self._visible
        return [self._find(word, count) for word in words]

    def _find(self, word: str, count: int) -> tuple[str, Any]:
        nvml = self._require()
        try:
            handle = self._handle(word, count)
            return (_text(nvml.nvmlDeviceGetUUID(handle)), handle)
        except nvml.NVMLError as error:
            return (_call(word), _Sick(f"NVML: {error}"))
        except _Sick as reason:
            return (_call(word), reason)

    def _handle(self, word: str, count: int) -> Any:
        nvml = self._require()
        index = parse_index(word)
        if index is not None:
            if index >= count:
                raise _Sick(f"NVML shows {count} devices only")
            return nvml.nvmlDeviceGetHandleByIndex(index)
        old_mig = parse_old_mig(word)
        if old_mig is not None:
            return self._old_mig_handle(*old_mig)
        full = word if "GPU-" not in word or len(word) >= 40 else find_by_beginning(word, self._uuids(count))
        if full is None:
            raise _Sick("it names no device of this node, or several")
        return nvml.nvmlDeviceGetHandleByUUID(full)

    def _uuids(self, count: int) -> list[str]:
        nvml = self._require()
        found = []
        for index in range(count):
            # A lost device must not hide the others, which may be the only ones of this job.
            with contextlib.suppress(nvml.NVMLError):
                found.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))))
        return found

    def _old_mig_handle(self, gpu: str, gpu_instance: int, compute_instance: int) -> Any:
        nvml = self._require()
        parent = nvml.nvmlDeviceGetHandleByUUID(gpu)
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_NOT_FOUND:
                    continue  # a place without an instance
                raise
            found = (nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle))
            if found == (gpu_instance, compute_instance):
                return handle
        raise _Sick("there is no such MIG instance")

    def _whole(self, handle: Any) -> Any:
        """The GPU that a MIG instance is a part of, else the device itself: errors are counted for the whole."""
        nvml = self._require()
        try:
            if self._ask(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)):
                return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except _NoAnswer:
            pass
        return handle

    # Questions

    def _ask(self, question: Callable[[], T]) -> T:
        """Its answer. Raises _NoAnswer, or _Sick."""
        nvml = self._require()
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        try:
            return question()
        except AttributeError as error:
            raise _NoAnswer(f"this pynvml has no such function ({error})") from error
        except nvml.NVMLError as error:
            if self._is_no_answer(getattr(error, "value", None)):
                raise _NoAnswer(str(error)) from error
            raise _Sick(f"NVML: {error}") from error
        except mismatch as error:
            raise _NoAnswer(str(error)) from error

    def _is_no_answer(self, code: int | None) -> bool:
        return code in {getattr(self._module, name, -1) for name in _WITHOUT_ANSWER}

    def _state(self, name: str, handle: Any) -> GpuState:
        if isinstance(handle, _Sick):
            return GpuState(name=name, error=str(handle))
        unobserved: list[str] = []

        def observe(what: str, question: Callable[[Any], T]) -> T | None:
            try:
                return self._ask(lambda: question(whole))
            except _NoAnswer as reason:
                unobserved.append(f"{what}: {reason}")
                return None

        try:
            whole = self._whole(handle)
            return GpuState(
                name=name,
                uncorrected_errors=observe("ECC errors", self._uncorrected),
                recovery_action=observe("recovery action", self._recovery_action),
                remap_failed=observe("row remapping", self._remap_failed),
                unobserved=tuple(unobserved),
            )
        except _Sick as reason:
            return GpuState(name=name, error=str(reason))

    def _uncorrected(self, handle: Any) -> int:
        nvml = self._require()
        return int(
            nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        )

    def _remap_failed(self, handle: Any) -> bool:
        _, _, _, failed = self._require().nvmlDeviceGetRemappedRows(handle)
        return bool(failed)

    def _recovery_action(self, handle: Any) -> str:
        nvml = self._require()
        answer = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
        # The call succeeds also where the field does not.
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        code = int(answer.value.uiVal)
        return RECOVERY_ACTIONS.get(code, f"action {code}")

    def _memory(self, name: str, handle: Any) -> GpuMemory:
        if isinstance(handle, _Sick):
            return GpuMemory(name=name, error=str(handle))
        try:
            used: float | None = self._used_mb(handle)
        except _NoAnswer:
            used = None
        except _Sick as reason:
            return GpuMemory(name=name, error=str(reason))
        try:
            pids: tuple[int, ...] | None = self._pids(handle)
        except _NoAnswer:
            pids = None
        except _Sick as reason:
            return GpuMemory(name=name, error=str(reason))
        return GpuMemory(name=name, used_mb=used, pids=pids)

    def _used_mb(self, handle: Any) -> float:
        nvml = self._require()
        try:
            # The first version counts what the driver reserves as used, which is more than any tolerance.
            info = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        except _NoAnswer:
            info = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return float(info.used) / (1 << 20)

    def _pids(self, handle: Any) -> tuple[int, ...]:
        nvml = self._require()
        found = {process.pid for process in self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))}
        with contextlib.suppress(_NoAnswer):
            found |= {
                process.pid for process in self._ask(lambda: nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
            }
        return tuple(sorted(found))

    def _domain(self, name: str, handle: Any) -> GpuDomain:
        if isinstance(handle, _Sick):
            return GpuDomain(name=name, reason=str(handle))
        try:
            found = self._cluster_uuid(self._whole(handle))
        except (_NoAnswer, _Sick) as reason:
            return GpuDomain(name=name, reason=str(reason))
        # Devices without a fabric, and those that have not been registered with it yet, have a UUID of zeros.
        if found.int == 0:
            return GpuDomain(name=name, reason="its ClusterUUID is zero")
        return GpuDomain(name=name, cluster_uuid=str(found))

    def _cluster_uuid(self, handle: Any) -> uuid.UUID:
        nvml = self._require()

        def ask_versioned() -> Any:
            info = nvml.c_nvmlGpuFabricInfoV_t()
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
            return info

        def ask_plain() -> Any:
            info = nvml.c_nvmlGpuFabricInfo_t()
            nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
            return info

        try:
            info = self._ask(ask_versioned)
        except _NoAnswer:
            info = self._ask(ask_plain)
        return uuid.UUID(bytes=bytes(info.clusterUuid))


def _call(word: str) -> str:
    return f"GPU {word}" if parse_index(word) is not None else word


def _import_pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlAbsent("opening NVML", hint="pynvml is not installed: pip install 'nvrx-chain[gpu]'") from error
    return pynvml


def _text(value: str | bytes) -> str:
    # Older releases of pynvml answer in bytes.
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
