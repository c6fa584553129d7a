"""A cycle record that ft_launcher 0.7.0 wrote on a cluster of three nodes."""

from __future__ import annotations

RECORDED: dict[str, str | int] = {
    "job_id": "8",
    "cycle_start_time": "2026-11-30T00:47:45.727842Z",
    "cycle_end_time": "2026-11-30T00:48:34.763277Z",
    "cycle_log_file": "/shared/alice/run/logs/nvrx_singleton_8_date_26-11-30_time_00-47-40_cycle0.log",
    "active_nodes": "n[1,3]",
    "generation": "1",
    "active_ranks": "0-1",
    "attempt_index": 0,
    "cycle_number": 0,
    "standby_nodes": "",
}
