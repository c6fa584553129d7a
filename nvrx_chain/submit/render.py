"""The batch script: the template with its fields filled in, every value quoted for the shell.

Touches: the template file, in the installed package or beside it in a checkout.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from nvrx_chain import __version__
from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.shape import array_argument

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "sbatch_templates", _PACKAGE.parent / "sbatch_templates")
_TEMPLATE = "generation.sbatch"
_FIELD = re.compile(r"@([A-Z_]+)@")


def read_template() -> str:
    """The template as shipped. Raises NvrxError when the installation lacks it."""
    for place in _PLACES:
        try:
            return (place / _TEMPLATE).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
    raise NvrxError(
        f"reading the template {_TEMPLATE}: it is not installed",
        part=", ".join(map(str, _PLACES)),
        hint="install nvrx-chain again",
    )


def script_fields(config: ChainConfig) -> Mapping[str, str]:
    """The values of the template's fields; those of the assignments are quoted, those of directives plain by kind."""
    return {
        "JOB_NAME": config.name,
        "ARRAY": array_argument(config.shape),
        "NODES": str(config.shape.nodes_per_task),
        "WALLTIME_WARNING": str(int(config.thresholds.walltime_warning)),
        "RUN_DIR": shlex.quote(str(config.run_directory)),
        "PYTHON": shlex.quote(config.interpreter),
        "CHAIN_ID": shlex.quote(config.chain_id),
        "SCRIPT_VERSION": shlex.quote(__version__),
    }


def render_script(template: str, fields: Mapping[str, str]) -> str:
    """Fill every `@FIELD@` in one pass, so that a value which looks like a field stays as it is.

    Raises UsageError for a value with a line break or NUL, NvrxError when template and fields do not match.
    """
    for name, value in fields.items():
        if any(character in value for character in "\0\n\r"):
            raise UsageError(
                f"rendering {_TEMPLATE}: a line break or NUL in {name}",
                part=repr(value),
                hint="the script is line by line: choose a name without",
            )
    wanted = set(_FIELD.findall(template))
    if wanted != set(fields):
        raise NvrxError(
            f"rendering {_TEMPLATE}: fields do not match",
            part=", ".join(sorted(wanted ^ set(fields))),
            hint="install nvrx-chain again: template and package are of different versions",
        )
    return _FIELD.sub(lambda match: fields[match.group(1)], template)
