"""From the kind of launcher in the manifest to the module that knows its command line."""

from __future__ import annotations

from collections.abc import Callable

from nvrx_chain.launchers import command, ft_launcher, nvrx, torchrun
from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest
from nvrx_chain.records.manifest import LauncherKind

_PLANNERS: dict[LauncherKind, Callable[[LaunchRequest], LaunchPlan]] = {
    LauncherKind.NVRX: nvrx.plan,
    LauncherKind.FT_LAUNCHER: ft_launcher.plan,
    LauncherKind.TORCHRUN: torchrun.plan,
    LauncherKind.COMMAND: command.plan,
}


def plan_launch(request: LaunchRequest) -> LaunchPlan:
    """The command line and environment of the launcher on one node."""
    return _PLANNERS[request.launcher.kind](request)
