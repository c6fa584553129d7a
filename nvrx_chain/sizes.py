"""Numbers of bytes as people read them. Pure."""

from __future__ import annotations


def render_size(size: int) -> str:
    """Bytes in the unit that suits them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
