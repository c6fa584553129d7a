from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from nvrx_chain.sandbox import render
from nvrx_chain.sandbox.config import Place, Ports, SandboxConfig

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = Path("/data/it's 100% a&b #1")
PLACE = Place(runtime=Path("/run/nvrx-sandbox/17"), slot=17, directory=HOSTILE)
SMALL = SandboxConfig(directory=HOSTILE, nodes=2, gpus_per_node=4)
SMALL_PORTS = Ports(controller=20000, nodes=(20001, 20002))
FULL = SandboxConfig(
    directory=HOSTILE,
    nodes=3,
    gpus_per_node=1,
    cpus_per_node=2,
    accounting=True,
    kill_wait_seconds=30,
    slurmd_timeout_seconds=300,
    max_array_size=101,
    kill_on_bad_exit=1,
)
NETWORK = dataclasses.replace(FULL, network=True)
FULL_PORTS = Ports(controller=20010, nodes=(20011, 20013, 20014), database_daemon=20015)

RENDERED = {
    "small.slurm.conf": render.render_slurm_conf(SMALL, PLACE, SMALL_PORTS),
    "full.slurm.conf": render.render_slurm_conf(FULL, PLACE, FULL_PORTS),
    "small.gres.conf": render.render_gres_conf(SMALL, PLACE),
    "full.gres.conf": render.render_gres_conf(FULL, PLACE),
    "cgroup.conf": render.render_cgroup_conf(),
    "full.slurmdbd.conf": render.render_slurmdbd_conf(FULL, PLACE, FULL_PORTS),
    "network.slurm.conf": render.render_slurm_conf(NETWORK, PLACE, FULL_PORTS),
    "network.slurmdbd.conf": render.render_slurmdbd_conf(NETWORK, PLACE, FULL_PORTS),
    "network.hosts": render.render_hosts(NETWORK, PLACE, "127.0.0.1 localhost\n"),
    "network.ip": render.render_network(NETWORK, PLACE),
    "network.n2.ip": render.render_node_network(PLACE.addresses(NETWORK), 2),
    "full.mariadb.cnf": render.render_database_conf(PLACE),
    "small.hosts": render.render_hosts(SMALL, PLACE, "127.0.0.1 localhost\n10.0.0.5 login\n"),
    "node.sh": render.render_node_script(),
    "slurmstepd.sh": render.render_stepd_script("/opt/it is python/bin/python3", "/usr/sbin/slurmstepd"),
}


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_a_file_is_rendered_as_its_golden_copy(name: str) -> None:
    """NVRX_UPDATE_GOLDEN=1 writes the golden files anew, to be read in the diff."""
    golden = GOLDEN / name
    if os.environ.get("NVRX_UPDATE_GOLDEN") == "1":
        golden.write_text(RENDERED[name])
    assert RENDERED[name] == golden.read_text()


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_no_file_holds_the_users_directory(name: str) -> None:
    # slurm.conf cannot quote it, and a socket path could become too long.
    assert "it's" not in RENDERED[name]
    assert "/data/it" not in RENDERED[name]


def test_a_sandbox_without_gpus_promises_none() -> None:
    config = SandboxConfig(directory=HOSTILE, nodes=2, gpus_per_node=0)
    assert "Gres=gpu" not in render.render_slurm_conf(config, PLACE, SMALL_PORTS)
    assert render.render_gres_conf(config, PLACE) == ""


@pytest.mark.parametrize("name", ["node.sh", "slurmstepd.sh"])
def test_shellcheck_accepts_a_script(name: str) -> None:
    done = subprocess.run(
        ["shellcheck", "-"],
        input=RENDERED[name],
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
