"""Waiting for the GPU memory of dead ranks: our pids, our devices, the time-out honoured, nothing awaited in vain."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.gpu_facts import GpuDomain, GpuMemory, GpuState, NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.reclaim import (
    Reclaim,
    Reclaimed,
    ReclaimSettings,
    belongs_to_dead,
    find_held,
    knows_pids,
    make_reclaim_settings,
)
from tests.fakes.fake_pynvml import Device, Direct, FakePynvml, eight, uuid

DEAD = frozenset({4194301, 4194302})
"""Numbers that no process of this machine has."""
QUICK = ReclaimSettings(timeout_seconds=5.0, poll_seconds=0.01)


class Changing(Direct):
    """NVML whose devices change before each look."""

    def __init__(
        self, module: FakePynvml, change: Callable[[int, FakePynvml], None], visible: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(module, visible)
        self._fake = module
        self._change = change
        self.looks = 0

    def memory(self, seconds: float) -> tuple[GpuMemory, ...]:
        self._change(self.looks, self._fake)
        self.looks += 1
        return super().memory(seconds)


def hold(number: int, pids: tuple[int, ...] = (), used: int = 0) -> FakePynvml:
    devices = eight()
    devices[number].pids = pids
    devices[number].used = used
    return FakePynvml(devices)


def give_back_after(looks: int) -> Callable[[int, FakePynvml], None]:
    def change(look: int, module: FakePynvml) -> None:
        if look >= looks:
            for device in module.devices:
                device.pids, device.used = (), 0

    return change


def test_it_waits_until_none_of_our_dead_is_listed() -> None:
    gpus = Changing(hold(2, (4194302,)), give_back_after(4))
    done = Reclaim(QUICK, gpus, pids_known=True).wait(DEAD)
    assert (done.is_free, gpus.looks) == (True, 5)


def test_memory_in_use_without_our_pids_is_not_waited_for_where_pids_are_known() -> None:
    gpus = Changing(hold(2, (os.getpid(),), used=40 << 30), give_back_after(99))
    assert Reclaim(QUICK, gpus, pids_known=True).wait(DEAD).is_free
    assert gpus.looks == 1


def test_where_pids_mean_nothing_the_use_of_the_device_decides() -> None:
    gpus = Changing(hold(2, (4194302,), used=513 << 20), give_back_after(3))
    assert Reclaim(QUICK, gpus, pids_known=False).wait(DEAD).is_free
    assert gpus.looks == 4
    under = Changing(hold(2, (4194302,), used=512 << 20), give_back_after(99))
    assert Reclaim(QUICK, under, pids_known=False).wait(DEAD).is_free
    assert under.looks == 1


def test_where_nvml_lists_no_processes_the_use_of_the_device_decides() -> None:
    module = hold(2, used=600 << 20)
    module.failing["nvmlDeviceGetComputeRunningProcesses"] = "NOT_SUPPORTED"
    gpus = Changing(module, give_back_after(2))
    assert Reclaim(QUICK, gpus, pids_known=True).wait(DEAD).is_free
    assert gpus.looks == 3


def test_only_our_devices_are_waited_for() -> None:
    # Trap 27 of ft_launcher: it waits for devices 0 and up, whoever uses them.
    gpus = Changing(hold(0, (4194302,), used=40 << 30), give_back_after(99), visible=("4", uuid(5)))
    assert Reclaim(QUICK, gpus, pids_known=True).wait(DEAD).is_free
    assert Reclaim(QUICK, gpus, pids_known=False).wait(DEAD).is_free
    assert gpus.looks == 2


def test_when_the_time_is_up_it_says_what_is_held_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gpus = Changing(hold(3, (4194301, 4194302)), give_back_after(10**9))
    settings = ReclaimSettings(timeout_seconds=0.2, poll_seconds=0.05)
    with caplog.at_level(logging.ERROR):
        done = Reclaim(settings, gpus, pids_known=True).wait(DEAD)
    assert done.held == (f"{uuid(3)} is held by pid 4194301, 4194302",)
    assert 0.2 <= done.seconds < 1.5
    assert "was not given back" in caplog.text


def test_it_looks_at_once_and_then_ever_more_slowly() -> None:
    gpus = Changing(hold(3, (4194301,)), give_back_after(10**9))
    Reclaim(ReclaimSettings(timeout_seconds=0.5, poll_seconds=2.0), gpus, pids_known=True).wait(DEAD)
    # After 0, 20, 40, 60, 80, 100, 125 ms and so on; a busy machine may lose some.
    assert 5 <= gpus.looks <= 15


def test_without_gpus_or_with_a_time_out_of_0_nothing_is_waited_for() -> None:
    assert Reclaim(QUICK, None).wait(DEAD) == Reclaimed(seconds=0.0)
    assert not Reclaim(QUICK, None).is_needed
    gpus = Changing(hold(3, (4194301,)), give_back_after(10**9))
    assert Reclaim(ReclaimSettings(timeout_seconds=0.0), gpus).wait(DEAD) == Reclaimed(seconds=0.0)
    assert gpus.looks == 0


@pytest.mark.parametrize("error", [NvmlAbsent("opening NVML"), NvmlUnreachable("opening NVML: broken")])
def test_nvml_that_cannot_be_asked_is_not_waited_for(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def memory(self, seconds: float) -> tuple[GpuMemory, ...]:
            raise error

        def states(self, seconds: float) -> tuple[GpuState, ...]:
            raise error

        def domains(self, seconds: float) -> tuple[GpuDomain, ...]:
            raise error

    reclaim = Reclaim(QUICK, Broken(), pids_known=True)
    with caplog.at_level(logging.WARNING):
        assert reclaim.wait(DEAD).unobserved is not None
        assert reclaim.wait(DEAD).is_free
    assert len(caplog.records) == (1 if isinstance(error, NvmlAbsent) else 2)


def test_a_device_that_cannot_be_reached_is_not_waited_for() -> None:
    module = hold(3, (4194301,))
    module.devices[3] = Device(uuid=uuid(3), lost=True)
    gpus = Changing(module, give_back_after(10**9))
    assert Reclaim(QUICK, gpus, pids_known=True).wait(DEAD).is_free


def test_the_result_is_posted_once_from_another_thread() -> None:
    posted: list[Reclaimed] = []
    done = threading.Event()

    def post(result: Reclaimed) -> None:
        posted.append(result)
        done.set()

    Reclaim(QUICK, Changing(hold(2, (4194302,)), give_back_after(2)), pids_known=True).begin(DEAD, post)
    assert done.wait(10.0)
    assert [result.is_free for result in posted] == [True]


def test_what_a_device_says_nothing_about_is_not_held() -> None:
    assert find_held([GpuMemory(name="GPU 0")], DEAD, QUICK, lambda pid: True) == ()


# Whose a pid is that NVML lists


def test_a_process_that_lives_and_is_not_of_a_dead_session_is_a_stranger() -> None:
    assert not belongs_to_dead(os.getpid(), DEAD)
    assert not belongs_to_dead(1, DEAD)


def test_a_pid_that_is_gone_or_a_zombie_is_one_of_the_dead() -> None:
    assert belongs_to_dead(4194302, frozenset())
    child = subprocess.Popen(["/bin/true"])
    deadline = time.monotonic() + 10.0
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert belongs_to_dead(child.pid, frozenset())
    child.wait()


def test_a_child_of_a_dead_rank_is_known_by_its_session(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    rank = subprocess.Popen(["/bin/sh", "-c", f"sleep 60 & echo $! > '{note}.new'; mv '{note}.new' '{note}'; wait"],
                            start_new_session=True)  # fmt: skip
    deadline = time.monotonic() + 10.0
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    child = int(note.read_text())
    rank.kill()
    rank.wait()
    try:
        assert psutil.pid_exists(child)
        assert belongs_to_dead(child, {rank.pid})
        assert not belongs_to_dead(child, {rank.pid + 1})
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_proc_hides_is_not_taken_for_dead(tmp_path: Path) -> None:
    assert not belongs_to_dead(os.getpid(), DEAD, proc=tmp_path)


def test_pids_are_known_in_the_first_pid_namespace_alone(tmp_path: Path) -> None:
    (tmp_path / "pid").touch()
    assert not knows_pids(tmp_path / "pid")
    assert not knows_pids(tmp_path / "none")
    inode = os.stat("/proc/self/ns/pid").st_ino
    assert knows_pids() is (inode == 4026531836)


def test_in_a_pid_namespace_of_its_own_pids_are_not_known() -> None:
    program = "from nvrx_chain.launcher.reclaim import knows_pids; print(knows_pids())"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"this machine gives no PID namespace: {done.stderr.strip()}")
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "wrong", [(-1.0, 512.0, 2.0), (50.0, -1.0, 2.0), (50.0, 512.0, 0.0), (float("nan"), 512.0, 2.0)]
)
def test_settings_that_make_no_sense_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="reclaim"):
        make_reclaim_settings(*wrong)
    assert make_reclaim_settings(50.0, 512.0, 2.0) == ReclaimSettings()
