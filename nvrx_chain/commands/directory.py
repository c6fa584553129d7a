"""Where a command is typed. Apart from the desk: submit's dry run starts without what the desk imports.

Touches: the current directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def current_directory(environ: Mapping[str, str]) -> Path:
    """The current directory as the shell names it, links kept: the real path of an automounter is often this node's."""
    shell_name = environ.get("PWD", "")
    try:
        if os.path.isabs(shell_name) and os.path.samefile(shell_name, "."):
            return Path(shell_name)
    except OSError:
        pass
    return Path.cwd()
