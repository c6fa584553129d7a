"""Small shell programs that stand in for Slurm's, one directory of them on PATH."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_RECORDER = """\
#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
os.execv("/bin/sh", ["sh", "-c", {body!r}, *sys.argv])
"""


class FakePrograms:
    """`put` writes a program that runs a shell snippet; `calls` tells how it was called, and in which environment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def environ(self) -> dict[str, str]:
        """An environment in which only these programs are found, whatever is installed."""
        return {"PATH": str(self._directory), "HOME": "/home/alice"}

    def path(self, name: str) -> Path:
        return self._directory / name

    def put(self, name: str, body: str) -> Path:
        """A program of this name whose shell code is `body`; its arguments are `$@`."""
        program = self.path(name)
        code = f"PATH=/usr/bin:/bin; {body}"
        program.write_text(_RECORDER.format(python=sys.executable, log=str(self._log(name)), body=code))
        program.chmod(0o755)
        return program

    def put_plain(self, name: str, body: str) -> Path:
        """A program of shell code only, which starts fast enough to be timed; its calls are not recorded."""
        program = self.path(name)
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        program.chmod(0o755)
        return program

    def calls(self, name: str) -> list[tuple[list[str], dict[str, str]]]:
        """Arguments and environment of each call so far."""
        if not self._log(name).exists():
            return []
        lines = self._log(name).read_text().splitlines()
        return [(arguments, environ) for arguments, environ in map(json.loads, lines)]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.calls"
