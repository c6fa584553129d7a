"""The launcher as it was asked for, and the interpreter that runs it and the workload. Pure."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from nvrx_chain.errors import UsageError
from nvrx_chain.launchers.command import check_template
from nvrx_chain.records.manifest import Launcher, LauncherKind
from nvrx_chain.submit.settings import Settings
from nvrx_chain.submit.workload import Workload

PYTHON_OF_AN_IMAGE = "python3"
_RESERVED_CODES = (range(0, 3), range(64, 79), range(126, 166), range(221, 222), range(255, 256))


def read_launcher(
    settings: Settings, kind: LauncherKind, workload: Workload | None, interpreter: str, directory: Path
) -> Launcher:
    """`interpreter` runs nvrx-chain; relative paths start in `directory`. Raises UsageError."""
    template = shlex_words(settings.text("launcher-command"))
    if (kind is LauncherKind.COMMAND) != bool(template):
        raise UsageError(
            "reading --launcher-command: it belongs to --launcher command, which needs it", hint="give both or neither"
        )
    check_template(template)
    code = settings.count("no-restart-exit-code")
    if code > 255 or any(code in reserved for reserved in _RESERVED_CODES):
        raise UsageError(
            f"reading --no-restart-exit-code: {code} has another meaning",
            hint="not 0-2, 64-78, 126-165, 221 or 255; 93 is what ft_launcher exits with",
        )
    return Launcher(
        kind=kind,
        python=_python(settings, workload, interpreter, directory),
        max_restarts=settings.count("max-restarts"),
        no_restart_exit_code=code,
        command=template,
    )


def _python(settings: Settings, workload: Workload | None, interpreter: str, directory: Path) -> str:
    """The interpreter of launcher and workload: --python, else the one that the user put before the script."""
    asked = settings.text("python")
    named = workload.interpreter if workload else None
    # A bare name is left to the PATH of the job.
    chosen = os.path.normpath(directory / os.path.expanduser(asked)) if asked and "/" in asked else asked
    if chosen and named and chosen != named:
        raise UsageError(f"reading the workload: it names {named}, but --python is {chosen}", hint="give one of them")
    return chosen or named or (PYTHON_OF_AN_IMAGE if settings.text("container-image") else interpreter)


def shlex_words(text: str | None) -> tuple[str, ...]:
    """Split a template as a shell would. Raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(
            f"reading --launcher-command: {error}", part=text, hint="quote it as for a shell: close every quote"
        ) from error
