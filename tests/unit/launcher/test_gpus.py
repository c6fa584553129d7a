"""NVML as it answers on healthy, sick, old and partitioned GPUs: what counts as sick, and what says nothing."""

from __future__ import annotations

import sys

import pytest

from nvrx_chain.launcher.checks import judge_gpu
from nvrx_chain.launcher.gpu_facts import GpuState, NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.gpus import Nvml
from nvrx_chain.launcher.visible import visible_devices
from tests.fakes.fake_pynvml import Device, FakePynvml, eight, uuid


def look(module: FakePynvml, visible: tuple[str, ...] | None = None) -> tuple[GpuState, ...]:
    return Nvml(visible, module).states()


def reasons(module: FakePynvml, visible: tuple[str, ...] | None = None, tolerance: int = 0) -> list[str]:
    return [reason for state in look(module, visible) for reason in judge_gpu(state, tolerance)]


def sick(**changes: object) -> FakePynvml:
    devices = eight()
    devices[3] = Device(uuid=uuid(3), **changes)  # type: ignore[arg-type]
    return FakePynvml(devices)


def test_eight_healthy_gpus_have_nothing_against_them_and_nothing_unobserved() -> None:
    states = look(FakePynvml(eight()))
    assert [state.name for state in states] == [uuid(number) for number in range(8)]
    assert all(
        state == GpuState(name=state.name, uncorrected_errors=0, recovery_action="none", remap_failed=False)
        for state in states
    )
    assert reasons(FakePynvml(eight())) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"uncorrected": 1}, "1 uncorrected ECC errors"),
        ({"recovery": 1}, "GPU reset"),
        ({"recovery": 2}, "node reboot"),
        ({"recovery": 4}, "drain and reset"),
        ({"recovery": 77}, "action 77"),
        ({"remap_failed": 1}, "broken row"),
    ],
)
def test_a_sick_gpu_is_named_with_its_uuid_and_what_ails_it(changes: dict[str, object], said: str) -> None:
    (reason,) = reasons(sick(**changes))
    assert uuid(3) in reason
    assert said in reason


def test_a_lost_gpu_cannot_be_reached() -> None:
    assert reasons(sick(lost=True)) == ["GPU 3 cannot be reached: NVML: Gpu is lost"]


def test_errors_up_to_the_tolerance_are_borne() -> None:
    assert reasons(sick(uncorrected=2), tolerance=2) == []
    assert len(reasons(sick(uncorrected=3), tolerance=2)) == 1


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"],
)
@pytest.mark.parametrize("answer", ["NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION", "MISMATCH"])
def test_what_a_driver_does_not_know_is_unobserved_and_not_sick(function: str, answer: str) -> None:
    module = FakePynvml(eight(), failing={function: answer})
    assert reasons(module) == []
    assert all(len(state.unobserved) == 1 for state in look(module))


@pytest.mark.parametrize(
    "name",
    [
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetFieldValues",
        "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceIsMigDeviceHandle",
    ],
)
def test_what_an_old_pynvml_does_not_have_is_no_reason_to_give_up_a_node(name: str) -> None:
    assert reasons(FakePynvml(eight(), missing=frozenset({name}))) == []


def test_a_field_that_fails_inside_a_call_that_succeeds_is_unobserved() -> None:
    module = sick(recovery=1, recovery_return=3)
    assert reasons(module) == []
    assert look(module)[3].recovery_action is None


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "TIMEOUT", "UNKNOWN"])
def test_any_other_error_of_a_device_is_sickness(error: str) -> None:
    module = FakePynvml(eight()[:1], failing={"nvmlDeviceGetTotalEccErrors": error})
    assert len(reasons(module)) == 1


@pytest.mark.parametrize("error", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "UNKNOWN"])
def test_nvml_that_does_not_open_is_unreachable(error: str) -> None:
    with pytest.raises(NvmlUnreachable, match="opening NVML"):
        look(FakePynvml(eight(), failing={"nvmlInit": error}))
    with pytest.raises(NvmlUnreachable, match="counting"):
        look(FakePynvml(eight(), failing={"nvmlDeviceGetCount": error}))


def test_a_library_that_is_not_installed_is_a_fault_of_every_node_and_not_of_this_one() -> None:
    with pytest.raises(NvmlAbsent, match="NVIDIA_DRIVER_CAPABILITIES"):
        look(FakePynvml(eight(), failing={"nvmlInit": "LIBRARY_NOT_FOUND"}))


def test_without_pynvml_there_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlAbsent, match="pip install"):
        Nvml(None).states()


def test_only_the_devices_of_cuda_visible_devices_are_looked_at() -> None:
    # Trap 27 of ft_launcher: it counts from 0 whatever the job was given.
    module = FakePynvml(eight())
    module.devices[0].lost = True
    assert reasons(module, ("4", "6")) == []
    assert [state.name for state in look(module, ("4", "6"))] == [uuid(4), uuid(6)]
    assert [state.name for state in look(module, (uuid(5),))] == [uuid(5)]
    module.devices[0].lost = False
    assert [state.name for state in look(module, ("GPU-00000007",))] == [uuid(7)]


@pytest.mark.parametrize(
    "word", ["8", "99999", "GPU-0000", "GPU-ffff", "MIG-77777777-1111-2222-3333-444444444444", "what"]
)
def test_a_device_that_cuda_would_not_find_makes_the_node_sick(word: str) -> None:
    (reason,) = reasons(FakePynvml(eight()), (word,))
    assert reason.removeprefix("GPU ").startswith(f"{word} cannot be reached")


def test_a_lost_device_of_others_does_not_hide_ours() -> None:
    module = FakePynvml(eight())
    module.devices[6].lost = True
    assert reasons(module, ("GPU-00000003", "5", uuid(7))) == []


def test_no_visible_device_is_nothing_to_look_at() -> None:
    assert look(FakePynvml(eight()), ()) == ()


def with_mig() -> FakePynvml:
    whole = Device(uuid=uuid(0), uncorrected=2)
    for number in (1, 2):
        whole.parts.append(
            Device(uuid=f"MIG-{number}{uuid(0)[5:]}", part_of=whole, instance=(number, 0), pids=(number,))
        )
    return FakePynvml([whole])


def test_of_a_mig_instance_the_whole_gpu_is_judged_and_its_own_memory_counts() -> None:
    module = with_mig()
    name = module.devices[0].parts[0].uuid
    (reason,) = reasons(module, (name,))
    assert reason.startswith(f"{name} has 2 uncorrected")
    (memory,) = Nvml((name,), module).memory()
    assert memory.pids == (1,)
    (domain,) = Nvml((name,), module).domains()
    assert domain.cluster_uuid is not None


def test_the_mig_names_of_drivers_before_470_are_understood() -> None:
    module = with_mig()
    (memory,) = Nvml((f"MIG-{uuid(0)}/2/0",), module).memory()
    assert memory.pids == (2,)
    (state,) = look(module, (f"MIG-{uuid(0)}/9/0",))
    assert state.error == "there is no such MIG instance"


def test_names_in_bytes_of_an_old_pynvml_are_text() -> None:
    assert look(FakePynvml(eight(), text_is_bytes=True))[0].name == uuid(0)


def test_memory_that_the_driver_keeps_for_itself_does_not_count_as_used() -> None:
    (memory,) = Nvml(("0",), FakePynvml(eight())).memory()
    assert memory.used_mb == 3.0
    (old,) = Nvml(("0",), FakePynvml(eight(), missing=frozenset({"nvmlMemory_v2"}))).memory()
    assert old.used_mb == 603.0


def test_processes_and_clients_of_mps_are_listed_together() -> None:
    module = FakePynvml([Device(uuid=uuid(0), pids=(9, 7), mps_pids=(8,))])
    assert Nvml(None, module).memory()[0].pids == (7, 8, 9)
    module.failing["nvmlDeviceGetMPSComputeRunningProcesses"] = "NOT_SUPPORTED"
    assert Nvml(None, module).memory()[0].pids == (7, 9)
    module.failing["nvmlDeviceGetComputeRunningProcesses"] = "NOT_SUPPORTED"
    (memory,) = Nvml(None, module).memory()
    assert (memory.pids, memory.used_mb) == (None, 3.0)


def test_the_domain_is_the_cluster_uuid_also_of_an_older_driver() -> None:
    expected = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert Nvml(("0",), FakePynvml(eight())).domains()[0].cluster_uuid == expected
    old = FakePynvml(eight(), failing={"nvmlDeviceGetGpuFabricInfoV": "FUNCTION_NOT_FOUND"})
    assert Nvml(("0",), old).domains()[0].cluster_uuid == expected
    older = FakePynvml(eight(), missing=frozenset({"c_nvmlGpuFabricInfoV_t", "c_nvmlGpuFabricInfo_t"}))
    (domain,) = Nvml(("0",), older).domains()
    assert domain.cluster_uuid is None
    assert "no such function" in domain.reason


def test_a_cluster_uuid_of_zeros_is_none() -> None:
    (domain,) = Nvml(None, FakePynvml([Device(uuid=uuid(0), cluster=bytes(16))])).domains()
    assert (domain.cluster_uuid, domain.reason) == (None, "its ClusterUUID is zero")


def test_closing_lets_go_of_the_devices_and_the_next_question_opens_them_again() -> None:
    module = FakePynvml(eight())
    nvml = Nvml(None, module)
    nvml.states()
    nvml.close()
    assert not module.is_open
    nvml.states()
    assert module.is_open


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        (" 2, 3 ", ("2", "3")),
        ("1,1,2", ("1", "2")),
        ("0,-1,2", ("0",)),
        ("GPU-1,MIG-2", ("GPU-1", "MIG-2")),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text: str | None, words: tuple[str, ...] | None) -> None:
    assert visible_devices({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == words
