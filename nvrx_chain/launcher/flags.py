"""From what was typed to the settings of a launcher; and what of the others' flags is ignored or refused, with why.

Touches: the secret's file (reads), directories of logs (looks).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.capture import CaptureSettings, capture_settings
from nvrx_chain.launcher.domain import parse_segment
from nvrx_chain.launcher.environment import SECRET
from nvrx_chain.launcher.hang_limits import HangLimits, hang_limits
from nvrx_chain.launcher.health_settings import HealthSettings, make_health_settings
from nvrx_chain.launcher.log_settings import MIB, log_limits, log_places
from nvrx_chain.launcher.numa import make_numa_binding
from nvrx_chain.launcher.progress import progress_settings
from nvrx_chain.launcher.reclaim import make_reclaim_settings
from nvrx_chain.launcher.settings import (
    LaunchSettings,
    LogSettings,
    RecordSettings,
    WorkerStore,
    parse_bool,
    parse_endpoint,
    parse_nnodes,
    parse_rdzv_conf,
    parse_seconds,
)

_EVENTS = "nothing is polled: events are awaited"
_ONE_WRITER = "there is one writer"
IGNORED: dict[str, str] = {
    "--monitor-interval": _EVENTS,
    "--ft-workload-check-interval": _EVENTS,
    "--ft-node-health-check-interval": "checks run before each round",
    "--ft-restart-check-interval": _EVENTS,
    "--ft-skip-section-response": "the client never waits",
    "--ft-check-remaining-processes": "what a rank leaves behind is always ended",
    "--ft-restart-policy": "any failed rank restarts the job",
    "--ft-rdzv-impl": "there is one rendezvous",
    "--ft-log-level": "the launcher logs at INFO",
    "--ft-ignore-missing-cfg": "there is no file of settings",
    "--ft-log-aggregator-count": _ONE_WRITER,
    "--ft-log-leaf-max-queue-chunks": "see --log-memory-mb",
    "--ft-log-server-log-prefix": "the writer's own words are in the launcher log",
    "--ft-log-server-graceful-shutdown-timeout": "the writer ends when all lines are written",
    "--ft-enable-nic-healthcheck": "NICs are not checked; --health-check runs a program that does",
    "--start-method": "ranks are programs",
    "--node-rank": "ranks follow the place of the node",
    "--local-ranks-filter": "logs have every rank",
}
"""Flags of torchrun and ft_launcher that steer nothing here; their value is dropped."""

_FILE = "give each setting as a flag: a file with a wrong section would be accepted silently"
_NIC = "NICs are not watched: use --health-check with a program that does"
_ATTRIBUTION = "logs are not attributed here: write the verdict of such a service to --verdict-file"
_APPLOG = "use --per-cycle-applog-prefix: one file for each cycle"
REFUSED: dict[str, str] = {
    "--ft-cfg-path": _FILE,
    "--ft-node-health-check-endpoint": "use --health-check with a program that asks it",
    "--ft-enable-nic-monitor": _NIC,
    "--ft-pci-topo-file": _NIC,
    "--ft-link-down-path-template": _NIC,
    "--ft-link-state-path-template": _NIC,
    "--ft-enable-dist-storage-healthcheck": "use --storage-health-check-path or --health-check",
    "--ft-rank-termination-signal": "ranks get TERM, and KILL after --stop-grace",
    "--ft-install-exception-hook": "put it into the script: sys.excepthook",
    "--ft-attribution-endpoint": _ATTRIBUTION,
    "--ft-attribution-stop-action": _ATTRIBUTION,
    "--ft-attribution-startup-timeout": _ATTRIBUTION,
    "--ft-attribution-llm-api-key-file": _ATTRIBUTION,
    "--ft-attribution-llm-base-url": _ATTRIBUTION,
    "--ft-attribution-llm-model": _ATTRIBUTION,
    "--ft-attribution-analysis-backend": _ATTRIBUTION,
    "--ft-attribution-log-level": _ATTRIBUTION,
    "--ft-attribution-export-url": _ATTRIBUTION,
    "--logs-specs": _APPLOG,
    "--log-dir": _APPLOG,
    "--redirects": _APPLOG,
    "-r": _APPLOG,
    "--tee": _APPLOG,
    "-t": _APPLOG,
    "--run-path": "name the script itself",
    "--master-addr": "use --rdzv-endpoint HOST:PORT",
    "--master-port": "use --rdzv-endpoint HOST:PORT",
}
"""Flags of theirs that would be missed if they were dropped."""


def build_settings(flags: Mapping[str, Any], environ: Mapping[str, str]) -> LaunchSettings:
    """`flags` by the name of their parameter. Raises UsageError."""
    return LaunchSettings(
        **_meeting(flags, environ),
        procs_per_node=flags["nproc_per_node"],
        argv=tuple(flags["command"]),
        module=flags["module"],
        no_python=flags["no_python"],
        role=flags["role"],
        max_restarts=flags["max_restarts"],
        stop_grace=flags["stop_grace"],
        term_timeout=flags["term_timeout"],
        no_restart_exit_code=flags["no_restart_exit_code"],
        warm_workers=flags["warm_workers"],
        preload=tuple(filter(None, (name.strip() for name in flags["preload"].split(",")))),
        refill_delay=flags["refill_delay"],
        worker_store=WorkerStore(flags["worker_store"]),
        numa=make_numa_binding(
            flags["gpus_per_numa"],
            environ,
            strict=parse_bool("--numa-bind-strict", flags["numa_bind_strict"]),
        ),
        records=_records(flags),
        progress=progress_settings(
            min_progress_iterations=flags["min_progress_iterations"],
            max_no_progress_cycles=flags["max_no_progress_cycles"],
            min_cycle_seconds=flags["min_cycle_seconds"],
        ),
        logs=_logs(flags),
        hang=_hang(flags),
        capture=_capture(flags),
        health=_health(flags, environ),
        reclaim=make_reclaim_settings(
            flags["gpu_memory_reclaim_timeout"],
            flags["gpu_memory_tolerance_mb"],
            flags["gpu_memory_poll_interval"],
        ),
    )


def _meeting(flags: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Where and with whom: the settings of the rendezvous by their names."""
    least, most = parse_nnodes(flags["nnodes"])
    conf = parse_rdzv_conf(flags["rdzv_conf"])
    alone = flags["standalone"] or (most == 1 and not flags["rdzv_endpoint"])
    if flags["standalone"] and most > 1:
        raise UsageError("reading --standalone", part=f"--nnodes {flags['nnodes']}", hint="one node meets nobody")
    if not alone and not flags["rdzv_endpoint"]:
        raise UsageError("joining the job: it is not said where", hint="give --rdzv-endpoint HOST:PORT")
    host, port = ("localhost", 0) if alone else parse_endpoint(flags["rdzv_endpoint"])
    is_host = parse_bool("is_host in --rdzv-conf", conf["is_host"]) if "is_host" in conf else None
    return {
        "min_nodes": least,
        "max_nodes": most,
        "host": host,
        "port": port,
        "run_id": flags["rdzv_id"],
        "is_host": True if alone else is_host,
        "local_addr": flags["local_addr"],
        "secret": _read_secret(flags["secret_file"], environ),
        "join_timeout": parse_seconds("join_timeout", conf.get("join_timeout", "600")),
        "connect_timeout": parse_seconds("store_connect_wait_seconds", conf.get("store_connect_wait_seconds", "120")),
        "last_call_timeout": parse_seconds("last_call_timeout", conf.get("last_call_timeout", "1")),
        "last_call_max": flags["last_call_max"],
        "first_round_grace": flags["first_round_grace"],
        "liveness_timeout": flags["liveness_timeout"],
        "rebalance_on_restart": flags["rebalance_on_restart"],
        "segment": parse_segment(flags["segment"] if flags["segment"] is not None else conf.get("segment")),
    }


def _records(flags: Mapping[str, Any]) -> RecordSettings:
    names = ("cycle_info_dir", "timeline_dir", "checkpoint_iteration_file", "verdict_file")
    return RecordSettings(**{name: Path(flags[name]) if flags[name] else None for name in names})


def _logs(flags: Mapping[str, Any]) -> LogSettings:
    is_funnelled = parse_bool("--log-funnel", flags["log_funnel"])
    places = log_places(
        app_log=flags["per_cycle_applog_prefix"],
        launcher_log=flags["launcher_log"],
        rotate_bytes=flags["log_rotate_mb"] * MIB or None,
        rotate_keep=flags["log_keep"],
    )
    if is_funnelled and places.app_log is None and places.launcher_log is None:
        raise UsageError("reading --log-funnel: there is no log", hint="give --per-cycle-applog-prefix")
    return LogSettings(
        places=places,
        limits=log_limits(memory_bytes=flags["log_memory_mb"] * MIB, spill_bytes=flags["log_spill_mb"] * MIB),
        is_funnelled=is_funnelled,
        funnel_port=flags["log_port"],
        prefix_ranks=flags["log_prefix"],
    )


def _hang(flags: Mapping[str, Any]) -> HangLimits:
    return hang_limits(
        startup=flags["startup_timeout"],
        initial_heartbeat=flags["initial_heartbeat_timeout"],
        heartbeat=flags["heartbeat_timeout"],
        out_of_section=flags["out_of_section_timeout"],
        sections=flags["section_timeouts"],
        warmup=flags["warmup_timeouts"],
        warmup_iterations=flags["warmup_iterations"],
        safety_factor=flags["safety_factor"],
    )


def _capture(flags: Mapping[str, Any]) -> CaptureSettings | None:
    directory = flags["capture_dir"]
    if directory is None and flags["cycle_info_dir"]:
        directory = os.path.join(flags["cycle_info_dir"], "stacks")
    return None if directory is None else capture_settings(Path(directory), flags["capture_timeout"])


def _health(flags: Mapping[str, Any], environ: Mapping[str, str]) -> HealthSettings:
    return make_health_settings(
        environ,
        storage_paths=flags["storage_health_check_path"],
        storage_seconds=flags["storage_health_check_seconds"],
        segment_dir=flags["segment_health_check_dir"],
        control_dir=flags["control_dir"],
        command=flags["health_check"],
        command_seconds=flags["health_check_seconds"],
        command_ttl_seconds=flags["health_check_ttl"],
        gpu=flags["gpu_health_check"],
        gpu_seconds=flags["gpu_health_check_seconds"],
        gpu_ecc_tolerance=flags["gpu_ecc_tolerance"],
    )


def _read_secret(path: str | None, environ: Mapping[str, str]) -> str:
    """The secret of the job. Raises UsageError for a file that others can read."""
    if path is None:
        return environ.get(SECRET, "")
    try:
        status = os.stat(path)
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"reading the secret of the job: {error.strerror or error}", part=path) from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError("reading the secret of the job: others can read its file", part=path, hint="chmod 600")
    try:
        found = msgspec.json.decode(content)
    except msgspec.DecodeError:
        found = None
    secret = str(found["secret"]) if isinstance(found, dict) and "secret" in found else content.decode().strip()
    if not secret:
        raise UsageError("reading the secret of the job: the file is empty", part=path)
    return secret
