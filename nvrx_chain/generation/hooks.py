"""Switches by which a test proves that a mechanism matters: with it off, the demo must fail.

Set in the environment that submits (NVRX_CHAIN_TEST_HOOKS, words separated by commas); the job inherits it. Every
use is logged as a warning. Touches: the environment.
"""

from __future__ import annotations

import enum
import logging
import os

from nvrx_chain.errors import UsageError

log = logging.getLogger(__name__)

VARIABLE = "NVRX_CHAIN_TEST_HOOKS"


class Hook(str, enum.Enum):
    """What can be switched off."""

    NO_FENCE = "no-fence"
    NO_RELEASE = "no-release"
    NO_RESUME = "no-resume"


def switched_off(hook: Hook) -> bool:
    """Whether a test switched this mechanism off. Raises UsageError for a word that is no hook."""
    words = [word for word in os.environ.get(VARIABLE, "").split(",") if word]
    unknown = sorted(set(words) - {item.value for item in Hook})
    if unknown:
        raise UsageError(f"reading {VARIABLE}", part=", ".join(unknown), hint="known: no-fence, no-release, no-resume")
    if hook.value in words:
        log.warning("a test switched off mechanism=%s", hook.value)
        return True
    return False
