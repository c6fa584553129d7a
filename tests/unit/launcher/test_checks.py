"""Each health check: firing, quiet, and with what it looks at unobserved."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.checks import (
    CommandCheck,
    DrainCheck,
    GpuCheck,
    InjectedFailure,
    Seen,
    SegmentFileCheck,
    StorageCheck,
    make_checks,
)
from nvrx_chain.launcher.gpu_facts import NvmlAbsent, NvmlUnreachable
from nvrx_chain.launcher.health_settings import HealthSettings, make_health_settings, parse_injections
from nvrx_chain.launcher.place import Place, read_place
from nvrx_chain.records.control import Drained, Rendezvous
from tests.fakes.drain_records import MARKER, RENDEZVOUS
from tests.fakes.fake_pynvml import Direct, FakePynvml, eight, uuid

ODD = "a path & 'more' #50%"


def place(**environ: str) -> Place:
    return read_place(
        {"SLURM_JOB_ID": "71", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1", "SLURM_NNODES": "2",
         "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[3-4]", "SLURMD_NODENAME": "n3"} | environ, "host"
    )  # fmt: skip


# GPUs


def test_a_node_with_healthy_gpus_is_quiet_and_a_sick_one_says_which() -> None:
    module = FakePynvml(eight())
    check = GpuCheck(Direct(module), 5.0, 0)
    assert check.look(0) == Seen()
    module.devices[6].uncorrected = 4
    module.devices[7].lost = True
    seen = check.look(1)
    assert len(seen.sick) == 2
    assert uuid(6) in seen.sick[0]
    assert not seen.unobserved


def test_nvml_that_does_not_work_is_sickness_and_nvml_that_is_not_there_is_not() -> None:
    broken = GpuCheck(Direct(FakePynvml(eight(), failing={"nvmlInit": "DRIVER_NOT_LOADED"})), 5.0, 0).look(0)
    assert len(broken.sick) == 1
    absent = GpuCheck(Direct(FakePynvml(eight(), failing={"nvmlInit": "LIBRARY_NOT_FOUND"})), 5.0, 0).look(0)
    assert (absent.sick, len(absent.unobserved)) == ((), 1)


def test_what_a_driver_cannot_tell_is_one_line_for_all_its_devices() -> None:
    module = FakePynvml(eight(), failing={"nvmlDeviceGetFieldValues": "NOT_SUPPORTED"})
    seen = GpuCheck(Direct(module), 5.0, 0).look(0)
    assert seen == Seen(unobserved=("recovery action: Not supported (of 8 GPUs)",))
    seen = GpuCheck(Direct(module, ("2",)), 5.0, 0).look(0)
    assert seen.unobserved == (f"recovery action: Not supported (of {uuid(2)})",)


def test_a_gpu_that_is_not_counted_any_more_has_vanished() -> None:
    module = FakePynvml(eight())
    check = GpuCheck(Direct(module), 5.0, 0)
    assert check.look(0) == Seen()
    del module.devices[2]
    assert check.look(1).sick == (f"{uuid(2)} has vanished",)
    assert check.look(2).sick == (f"{uuid(2)} has vanished",)
    module.devices.clear()
    assert len(check.look(3).sick) == 8


def test_no_device_from_the_start_is_unobserved_as_in_a_job_without_gpus_on_a_node_that_has_them() -> None:
    seen = GpuCheck(Direct(FakePynvml([])), 5.0, 0).look(0)
    assert (seen.sick, len(seen.unobserved)) == ((), 1)


# Storage


def storage(path: Path, seconds: float = 5.0, probe: tuple[str, ...] | None = None) -> Seen:
    check = (
        StorageCheck(path, os.environ, seconds, 30.0)
        if probe is None
        else StorageCheck(path, os.environ, seconds, 30.0, probe)
    )
    return check.look(0)


def test_directories_and_files_that_answer_are_healthy(tmp_path: Path) -> None:
    path = tmp_path / ODD
    path.mkdir()
    assert storage(path) == Seen()
    (path / "file").touch()
    assert storage(path) == Seen()
    assert storage(path / "file") == Seen()
    os.mkfifo(path / "fifo")
    assert storage(path / "fifo") == Seen()


def test_a_path_that_is_not_there_or_leads_nowhere_is_sickness(tmp_path: Path) -> None:
    assert storage(tmp_path / ODD).sick == (f"{tmp_path / ODD}: No such file or directory",)
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels" in storage(tmp_path / "loop").sick[0]


@pytest.mark.parametrize("hang", ["kill -STOP $$", "sleep 60", "read line < fifo"])
def test_a_path_that_does_not_answer_is_sickness_after_its_time(
    hang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    started_at = time.monotonic()
    seen = storage(Path("/mnt/data"), 0.3, ("/bin/sh", "-c", hang))
    assert seen.sick == ("/mnt/data does not answer within 0.3 s",)
    assert time.monotonic() - started_at < 2.0


def test_a_probe_that_cannot_be_started_says_nothing_about_the_path() -> None:
    seen = storage(Path("/mnt/data"), 5.0, ("/no/such/probe",))
    assert (seen.sick, len(seen.unobserved)) == ((), 1)


# A program of the user


def command(script: str, seconds: float = 5.0) -> Seen:
    return CommandCheck(["/bin/sh", "-c", script], os.environ, seconds, 0.0).look(3)


def test_a_program_that_ends_with_0_is_quiet_whatever_it_prints() -> None:
    assert command("echo ERROR") == Seen()


def test_the_reason_is_the_last_line_and_secrets_are_masked() -> None:
    assert command("echo first; echo 'xid 79 on gpu 3'; exit 2").sick == ("/bin/sh ended with 2: xid 79 on gpu 3",)
    assert "hunter2" not in command("echo API_KEY=hunter2hunter2; exit 1").sick[0]
    assert command("exit 7").sick == ("/bin/sh ended with 7",)
    assert command("kill -9 $$").sick == ("/bin/sh ended with -9",)


def test_a_program_that_hangs_is_sickness() -> None:
    assert command("echo half; sleep 60", 0.3).sick == ("/bin/sh did not end within 0.3 s: half",)


def test_the_program_knows_the_round() -> None:
    assert command('test "$NVRX_CHAIN_ROUND" = 3') == Seen()


def test_a_program_that_went_away_later_does_not_cost_the_node(tmp_path: Path) -> None:
    program = tmp_path / ODD
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    check = CommandCheck([str(program)], os.environ, 5.0, 0.0)
    assert check.look(0).sick
    program.unlink()
    seen = check.look(1)
    assert seen.sick == ()
    assert "cannot be started any more" in seen.unobserved[0]


# Drain


CONTROL = "generations/7/control"
NODES = ("n2",)


def drain(tmp_path: Path, marker: Drained | bytes | None, rendezvous: Rendezvous | None = RENDEZVOUS) -> Seen:
    control = tmp_path / CONTROL
    control.mkdir(parents=True, exist_ok=True)
    if rendezvous is not None:
        (control / "rendezvous.json").write_bytes(msgspec.json.encode(rendezvous))
    if marker is not None:
        content = marker if isinstance(marker, bytes) else msgspec.json.encode(marker)
        (control / "drained.1.json").write_bytes(content)
    return DrainCheck(control, 7, 1, NODES).look(0)


def test_a_drained_task_that_a_spare_can_replace_leaves(tmp_path: Path) -> None:
    assert drain(tmp_path, MARKER).sick == ('drained: n2 (draining, "bad disk" by root)',)


@pytest.mark.parametrize("changes", [{"is_active": False}, {"excluded": False}, {"array_job_id": 6}], ids=str)
def test_a_marker_that_does_not_exclude_this_task_now_is_quiet(tmp_path: Path, changes: dict[str, object]) -> None:
    assert drain(tmp_path, msgspec.structs.replace(MARKER, **changes)) == Seen()


@pytest.mark.parametrize(
    "changes",
    [{"task": 2}, {"task_nodes": ("n2", "n5")}, {"pid": 101}, {"boot_id": "x"}, {"answer_age_seconds": 1e6}],
    ids=str,
)
def test_a_marker_in_doubt_is_unobserved_and_the_task_takes_part(tmp_path: Path, changes: dict[str, object]) -> None:
    seen = drain(tmp_path, msgspec.structs.replace(MARKER, **changes))
    assert (seen.sick, len(seen.unobserved)) == ((), 1)


def test_without_a_marker_or_a_rendezvous_or_with_rubbish_the_task_takes_part(tmp_path: Path) -> None:
    assert drain(tmp_path, None) == Seen()
    assert drain(tmp_path / "b", MARKER, rendezvous=None).sick == ()
    assert drain(tmp_path / "c", b"{").sick == ()
    assert drain(tmp_path / "d", json.dumps({"task": 1}).encode()).sick == ()
    assert DrainCheck(tmp_path / "none" / "control", 7, 1, ()).look(0) == Seen()


def test_a_marker_that_stands_still_is_believed_no_longer_than_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(tmp_path, MARKER)
    check = DrainCheck(tmp_path / CONTROL, 7, 1, NODES)
    assert check.look(0).sick
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 601.0)
    assert check.look(1).sick == ()


# The segment file of NVRx (scenario 22)


def segment(tmp_path: Path) -> Seen:
    return SegmentFileCheck(tmp_path, "70", "1").look(0)


def test_only_a_regular_file_with_content_takes_the_task_out(tmp_path: Path) -> None:
    path = tmp_path / "segment_health_check.70.1"
    assert segment(tmp_path) == Seen()
    path.touch()
    assert segment(tmp_path) == Seen()
    path.write_bytes(b"switch 4 down\x1b[2J\nmore\n")
    assert segment(tmp_path).sick == (f"{path}: switch 4 down?[2J",)
    path.unlink()
    path.mkdir()
    assert segment(tmp_path) == Seen()
    path.rmdir()
    os.mkfifo(path)
    assert segment(tmp_path) == Seen()
    assert segment(tmp_path / "none") == Seen()


def test_a_large_file_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "segment_health_check.70.1").write_bytes(b"x" * (2 << 20))
    assert len(segment(tmp_path).sick[0]) < 500


def test_only_the_first_process_of_a_task_reads_it(tmp_path: Path) -> None:
    settings = HealthSettings(segment_dir=tmp_path)
    assert len(make_checks(settings, place(), {}, None)) == 1
    assert make_checks(settings, place(SLURM_PROCID="1"), {}, None) == ()
    (tmp_path / "segment_health_check.70.1").write_text("bad")
    (check,) = make_checks(settings, place(), {}, None)
    assert check.look(0).sick
    (plain,) = make_checks(settings, read_place({"SLURM_JOB_ID": "9", "SLURM_PROCID": "0"}, "host"), {}, None)
    (tmp_path / "segment_health_check.9.9").write_text("bad")
    assert plain.look(0).sick


# The injector


def test_an_injected_failure_meets_one_round_of_one_rank() -> None:
    check = InjectedFailure(parse_injections("1:2, 4:0"), 2)
    assert [round_number for round_number in range(6) if check.look(round_number).sick] == [1]


def test_rounds_are_those_of_the_job_so_that_a_spare_is_met_as_well() -> None:
    # Trap 33 of ft_launcher: its counter grows with local failures, and a spare has had none.
    (check,) = make_checks(HealthSettings(injections=parse_injections("5:2")), place(), {}, None)
    assert check.look(5).sick


@pytest.mark.parametrize("text", ["1", "a:1", "1:-2", "1:2:3", "1;2", "²:1"])
def test_an_injection_that_cannot_be_read_is_one_error_at_the_start(text: str) -> None:
    with pytest.raises(UsageError, match="cycle:rank"):
        make_health_settings({"NVRX_INJECT_GPU_FAILURE": text})
    assert make_health_settings({"NVRX_INJECT_GPU_FAILURE": " , "}).injections == frozenset()


# Settings


def test_paths_may_be_a_comma_list_and_must_be_absolute() -> None:
    settings = make_health_settings({}, storage_paths=["/a,/b b", "/a"])
    assert settings.storage_paths == (Path("/a"), Path("/b b"))
    with pytest.raises(UsageError, match="absolute"):
        make_health_settings({}, storage_paths=["data"])
    with pytest.raises(UsageError, match="absolute"):
        make_health_settings({}, segment_dir="health")


def test_a_program_that_cannot_be_started_is_one_error_at_the_start(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("#!/no/such/shell\n")
    with pytest.raises(UsageError, match="may not be executed"):
        make_health_settings({}, command=str(script))
    script.chmod(0o755)
    with pytest.raises(UsageError, match="/no/such/shell"):
        make_health_settings({}, command=str(script))
    with pytest.raises(UsageError, match="no such program"):
        make_health_settings({"PATH": str(tmp_path)}, command="dcgmi health -c")
    with pytest.raises(UsageError, match="quotation"):
        make_health_settings({}, command="sh -c 'x")


def test_a_program_is_found_once_and_keeps_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    settings = make_health_settings({"PATH": str(tmp_path)}, command="check.sh --all 'two words'")
    assert settings.command == (str(script), "--all", "two words")
    assert make_health_settings({}, command="  ").command == ()
    assert make_health_settings({}, command=sys.executable).command == (sys.executable,)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_limits_are_more_than_nothing_and_end(seconds: float) -> None:
    for name in ("storage_seconds", "command_seconds", "gpu_seconds"):
        with pytest.raises(UsageError, match="seconds"):
            make_health_settings({}, **{name: seconds})  # type: ignore[arg-type]


def test_every_check_that_is_asked_for_is_in_the_list_and_no_other(tmp_path: Path) -> None:
    assert make_checks(HealthSettings(), place(), {}, None) == ()
    settings = HealthSettings(
        storage_paths=(tmp_path, tmp_path / "b"),
        segment_dir=tmp_path,
        control_dir=tmp_path,
        command=("/bin/true",),
        injections=frozenset({(1, 1)}),
    )
    names = [check.name for check in make_checks(settings, place(), {}, Direct(FakePynvml(eight())))]
    assert names == ["segment_file", "drain", "gpu", "storage", "storage", "command", "injected"]
    without = HealthSettings(gpu=False)
    assert make_checks(without, place(), {}, Direct(FakePynvml(eight()))) == ()


def test_checks_that_let_the_node_take_part_in_doubt_are_the_ones_that_are_not_waited_for(tmp_path: Path) -> None:
    settings = HealthSettings(storage_paths=(tmp_path,), segment_dir=tmp_path, control_dir=tmp_path, command=("/x",))
    for check in make_checks(settings, place(), {}, Direct(FakePynvml(eight()))):
        assert check.silence_is_sick is (check.patience_seconds > 2.0) is (check.name not in ("drain", "segment_file"))


def test_errors_of_nvml_are_told_apart_by_their_class() -> None:
    assert not issubclass(NvmlAbsent, NvmlUnreachable)
