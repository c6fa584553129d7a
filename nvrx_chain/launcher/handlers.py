"""Which signals a process has a handler for. Touches: /proc."""

from __future__ import annotations


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False when it cannot be looked at."""
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status if ":" in line)
        return bool(int(lines["SigCgt"], 16) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False
