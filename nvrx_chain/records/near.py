"""Where chains lie that nobody gave a directory of their own. Pure."""

from __future__ import annotations

CHAINS_DIRECTORY = "nvrx-chains"
"""Below the current directory: submit makes run directories there, and the other commands look for chains in it."""
