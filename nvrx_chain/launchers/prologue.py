"""The launcher behind the user's prologue. Pure."""

from __future__ import annotations

from dataclasses import replace

from nvrx_chain.launchers.seats import LaunchPlan

_SOURCE = """\
prologue=$1
shift
if [ -e "$prologue" ] && { [ -L "$prologue" ] || [ ! -O "$prologue" ]; }; then
  printf 'the prologue %s is not a file of this user, the launcher is not started\\n' "$prologue" >&2
  exit 1
fi
. "$prologue" || {
  code=$?
  printf 'the prologue %s ended with %s, the launcher is not started\\n' "$prologue" "$code" >&2
  exit "$code"
}
exec "$@"
"""
# exec: the launcher is the process that the wrapper started, and gets its signals.


def behind_prologue(plan: LaunchPlan, prologue: str | None) -> LaunchPlan:
    """The same launch after a Bash that sources the script: what it exports is what the launcher gets."""
    if prologue is None:
        return plan
    return replace(plan, argv=("bash", "-c", _SOURCE, "nvrx-chain", prologue, *plan.argv))
