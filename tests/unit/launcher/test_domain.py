"""The NVLink domain of a node in segment mode: from the GPUs, a variable or a file, or one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.launcher.domain import parse_segment, read_domain
from tests.fakes.fake_pynvml import Device, Direct, FakePynvml, eight, uuid


@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_segment_is_simple_mode_and_asks_nobody(text: str | None) -> None:
    assert parse_segment(text) is None
    assert read_domain(None, "n1", {"NVRX_CHAIN_NVLINK_DOMAIN": "x"}, None) is None


@pytest.mark.parametrize("text", ["0", "-2", "two", "2.0"])
def test_a_segment_that_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="number of nodes of a segment"):
        parse_segment(text)
    assert parse_segment("16") == 16


def test_the_domain_is_the_cluster_uuid_that_all_our_gpus_share() -> None:
    assert read_domain(2, "n1", {}, Direct(FakePynvml(eight()))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_only_our_devices_decide() -> None:
    devices = [*eight(), Device(uuid=uuid(8), cluster=bytes(16))]
    assert read_domain(2, "n1", {}, Direct(FakePynvml(devices), ("0", "1"))) is not None
    with pytest.raises(NvrxError, match="no GPU of n1 is ours"):
        read_domain(2, "n1", {}, Direct(FakePynvml(devices), ()))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (FakePynvml([Device(uuid=uuid(0), cluster=bytes(16))]), "its ClusterUUID is zero"),
        (
            FakePynvml(
                eight(),
                failing={"nvmlDeviceGetGpuFabricInfoV": "NOT_SUPPORTED", "nvmlDeviceGetGpuFabricInfo": "NOT_SUPPORTED"},
            ),
            "Not supported",
        ),
        (FakePynvml([Device(uuid=uuid(0), lost=True)]), "Gpu is lost"),
        (FakePynvml(eight(), failing={"nvmlInit": "LIBRARY_NOT_FOUND"}), "libnvidia-ml"),
        (FakePynvml([Device(uuid=uuid(0)), Device(uuid=uuid(1), cluster=b"x" * 16)]), "are in"),
    ],
)
def test_a_missing_or_mixed_domain_is_one_line_with_a_hint(module: FakePynvml, said: str) -> None:
    with pytest.raises(NvrxError) as caught:
        read_domain(2, "n1", {}, Direct(module))
    assert said in str(caught.value)
    assert "n1" in str(caught.value)
    assert "NVRX_CHAIN_NVLINK_DOMAIN" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_machine_without_gpus_cannot_be_in_segment_mode() -> None:
    with pytest.raises(NvrxError, match="n1 has no NVIDIA GPU"):
        read_domain(2, "n1", {}, None)


def test_a_variable_overrules_the_gpus_and_a_file_names_every_node(tmp_path: Path) -> None:
    path = tmp_path / "domains & nodes.txt"
    path.write_text("n1 left\nn10 right\n\nbroken\nn2   right \n")
    environ = {"NVRX_CHAIN_NVLINK_DOMAIN_FILE": str(path)}
    assert [read_domain(2, node, environ, None) for node in ("n1", "n2", "n10")] == ["left", "right", "right"]
    with pytest.raises(UsageError, match="no line `n3 DOMAIN`"):
        read_domain(2, "n3", environ, None)
    assert read_domain(2, "n3", environ | {"NVRX_CHAIN_NVLINK_DOMAIN": "named"}, None) == "named"
    with pytest.raises(UsageError, match="No such file"):
        read_domain(2, "n1", {"NVRX_CHAIN_NVLINK_DOMAIN_FILE": str(tmp_path / "none")}, None)
