"""Recorded output of real Slurm programs; tests/fixtures/slurm/README.md says what was recorded how."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2] / "fixtures" / "slurm"

VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
SEPARATOR_OF_ODD_NAMES = "\x1fab\x1f"
QUEUE_COLUMNS = ("spec", "array_job_id", "array_task", "state", "reason", "nodelist", "name", "user")
ACCOUNTING_COLUMNS = (
    "id",
    "raw_id",
    "name",
    "user",
    "state",
    "submitted",
    "eligible",
    "started",
    "ended",
    "exit",
    "derived",
    "nodelist",
    "reason",
)
NODE_COLUMNS = ("name", "state", "reason", "since")


def read_recorded(version: str, state: str, name: str) -> str:
    """The text of one recording, e.g. ("24.11.5", "running", "squeue")."""
    return (_ROOT / version / state / f"{name}.txt").read_text()
