"""The `nvrx-watch` command. The watcher is not part of this release: the command says so and what to use instead."""

from __future__ import annotations

import sys

BAD_USAGE = 64


def main() -> int:
    """Say what to use; exit 64, so that a cron line that expects a watcher does not look clean."""
    sys.stderr.write(
        "nvrx-watch: the watcher is not part of this release (use `nvrx-chain status RUN_DIR`,"
        " which reads the same files)\n"
    )
    return BAD_USAGE
