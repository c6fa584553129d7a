"""The configuration files of a sandbox, as text. Pure; golden files hold them.

Why each odd line stands here is said where it stands; all of it was established on Slurm 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

import shlex

from nvrx_chain.sandbox.config import Addresses, Place, Ports, SandboxConfig

_SLURM_CONF = """\
ClusterName=sandbox
SlurmctldHost=localhost({controller_address})
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge_socket}
StateSaveLocation={data}/state
SlurmdSpoolDir={runtime}/spool/%n
SlurmctldPidFile={runtime}/pid/slurmctld.pid
SlurmdPidFile={runtime}/pid/slurmd.%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
{accounting}
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
GresTypes=gpu
MaxArraySize={max_array_size}
KillWait={kill_wait}
KillOnBadExit={kill_on_bad_exit}
SlurmdTimeout={slurmd_timeout}
{private}{node_lines}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def render_slurm_conf(config: SandboxConfig, place: Place, ports: Ports) -> str:
    """slurm.conf. `config_overrides`, since the virtual nodes claim more CPUs than the machine has."""
    return _SLURM_CONF.format(
        controller_address=place.addresses(config).controller,
        controller_port=ports.controller,
        munge_socket=place.munge_socket,
        data=place.data_link,
        runtime=place.runtime,
        logs=place.logs,
        accounting=_accounting_lines(config, place, ports),
        max_array_size=config.max_array_size,
        kill_wait=config.kill_wait_seconds,
        kill_on_bad_exit=config.kill_on_bad_exit,
        slurmd_timeout=config.slurmd_timeout_seconds,
        private="PrivateData=jobs\n" if config.private_jobs else "",
        node_lines="\n".join(_node_lines(config, place, ports)),
    )


def _node_lines(config: SandboxConfig, place: Place, ports: Ports) -> list[str]:
    gres = f" Gres=gpu:{config.gpus_per_node}" if config.gpus_per_node else ""
    addresses = place.addresses(config)
    return [
        f"NodeName={name} NodeHostname={name} NodeAddr={addresses.node(index)} Port={port}"
        f" CPUs={config.cpus_per_node} RealMemory=64000{gres} State=UNKNOWN"
        for index, (name, port) in enumerate(zip(config.node_names, ports.nodes, strict=True), start=1)
    ]


def _accounting_lines(config: SandboxConfig, place: Place, ports: Ports) -> str:
    if ports.database_daemon is None:
        return "AccountingStorageType=accounting_storage/none"
    return "\n".join(
        (
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={place.addresses(config).controller if config.network else 'localhost'}",
            f"AccountingStoragePort={ports.database_daemon}",
            # Without it 22.05 asks the machine's own munge, and the controller dies without a list of TRES.
            f"AccountingStoragePass={place.munge_socket}",
        )
    )


def render_gres_conf(config: SandboxConfig, place: Place) -> str:
    """gres.conf. Slurm wants a distinct character device per GPU; links to /dev/null are that."""
    if not config.gpus_per_node:
        return ""
    nodes = f"n[1-{config.nodes}]" if config.nodes > 1 else "n1"
    files = f"gpu[0-{config.gpus_per_node - 1}]" if config.gpus_per_node > 1 else "gpu0"
    return f"NodeName={nodes} Name=gpu File={place.devices}/{files}\n"


def render_cgroup_conf() -> str:
    """cgroup.conf that keeps slurmd away from cgroups; `CgroupPlugin=disabled` would stop slurmd of 22.05."""
    return "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/nonexistent\n"


def render_slurmdbd_conf(config: SandboxConfig, place: Place, ports: Ports) -> str:
    """slurmdbd.conf. It must lie beside slurm.conf, be of mode 600 and belong to SlurmUser."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={place.munge_socket}
DbdHost=localhost
DbdAddr={place.addresses(config).controller}
DbdPort={ports.database_daemon}
SlurmUser=root
LogFile={place.log("slurmdbd")}
PidFile={place.runtime}/pid/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def render_database_conf(place: Place) -> str:
    """The option file of the private MariaDB: no TCP at all, one socket that only root reaches, small buffers."""
    return f"""\
[mysqld]
user=root
datadir={place.data_link}/database
socket={place.database_socket}
pid-file={place.runtime}/pid/mariadbd.pid
skip-networking
skip-log-bin
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
loose-innodb_snapshot_isolation=OFF
"""


def render_hosts(config: SandboxConfig, place: Place, host_file: str) -> str:
    """The hosts file that nodes see: the machine's own, then one address per node name.

    One name or one address for all nodes would make launchers take them for one machine.
    """
    addresses = place.addresses(config)
    own = [f"{addresses.node(index)} {name}" for index, name in enumerate(config.node_names, start=1)]
    return "\n".join((host_file.rstrip("\n"), *own)) + "\n"


_NODE_SCRIPT = """\
#!/bin/bash
# The first process of a virtual node. Runs in the node's own UTS, PID and mount namespaces.
# usage: node.sh NAME HOSTS_FILE SLURMD SLURM_CONF SLURMSTEPD SHARED
set -eu
hostname "$1"
mount --bind "$2" /etc/hosts
# A mount of its own for what stands for the shared file system: it can stall here and go on elsewhere.
mount --bind "$6" "$6"
# In the foreground, since a command started with & ignores SIGINT, and so would every job. It may fail: a machine
# outlives its slurmd. While bash waits for it or for the sleep, it collects orphans like the init of a machine.
"$3" -D -N "$1" -f "$4" -d "$5" || echo "slurmd of $1 ended: $?"
while :; do
    sleep infinity
done
"""


def render_network(config: SandboxConfig, place: Place) -> str:
    """What `ip -batch` makes of this machine: a bridge, and for each node a namespace with a cable into the bridge."""
    addresses = place.addresses(config)
    lines = [
        f"link add {addresses.bridge} type bridge",
        f"address add {addresses.controller}/24 dev {addresses.bridge}",
        f"link set {addresses.bridge} up",
    ]
    for index in range(1, config.nodes + 1):
        end, namespace = addresses.host_end(index), addresses.namespace(index)
        lines += [
            f"netns add {namespace}",
            f"link add {end} type veth peer name eth0 netns {namespace}",
            f"link set {end} master {addresses.bridge} up",
        ]
    return "\n".join(lines) + "\n"


def render_node_network(addresses: Addresses, index: int) -> str:
    """What `ip -batch` makes inside the namespace of a node."""
    return f"link set lo up\naddress add {addresses.node(index)}/24 dev eth0\nlink set eth0 up\n"


def render_node_script() -> str:
    """The script that becomes a node."""
    return _NODE_SCRIPT


_STEPD_SCRIPT = """\
#!/bin/sh
# Becomes slurmstepd, after asking the kernel to give it the orphans of its step (prctl 36, PR_SET_CHILD_SUBREAPER, kept
# across exec). Without cgroups Slurm knows a step's processes as descendants of slurmstepd: an orphan would outlive the
# step, or keep it completing for a minute. Python ignores SIGPIPE (13) and SIGXFSZ (25), which jobs would inherit.
exec {python} -I -S -c '
import ctypes, os, signal, sys
signal.signal(13, signal.SIG_DFL)
signal.signal(25, signal.SIG_DFL)
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
' {slurmstepd} "$@"
"""


def render_stepd_script(python: str, slurmstepd: str) -> str:
    """The program that slurmd starts in place of slurmstepd."""
    return _STEPD_SCRIPT.format(python=shlex.quote(python), slurmstepd=shlex.quote(slurmstepd))
