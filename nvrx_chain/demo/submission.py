"""What a demo submits: the scenario's flags as `nvrx-chain submit` would read them.

Touches: one child process that looks for the launcher.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvrx_chain.demo.scenario import Scenario
from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.hooks import Hook, switched_off
from nvrx_chain.records.manifest import LauncherKind
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.interpreters import probe_interpreters
from nvrx_chain.submit.settings import read_settings

RUN_DIRECTORY = "chain"
FRESH_START = "--fresh-start"
_FT_LAUNCHER_MODULE = "nvidia_resiliency_ext"


def build_submission(
    scenario: Scenario,
    place: Path,
    *,
    launcher: LauncherKind | None,
    python: str,
    interpreter: str,
    say: Callable[[str], None],
) -> ChainConfig:
    """The chain of a scenario below `place`. Without a `launcher` ft_launcher, or torchrun where `python` lacks it.

    Raises UsageError.
    """
    chosen = launcher or LauncherKind.FT_LAUNCHER
    config = _build(scenario, place, chosen, python, interpreter)
    if config.launcher.kind is LauncherKind.FT_LAUNCHER and not _has_ft_launcher(config):
        say(f"{python} cannot import {_FT_LAUNCHER_MODULE} (ft_launcher): taking torchrun")
        config = _build(scenario, place, LauncherKind.TORCHRUN, python, interpreter)
    return config


def _build(scenario: Scenario, place: Path, launcher: LauncherKind, python: str, interpreter: str) -> ChainConfig:
    # No environment and a directory of our own: the user's settings are meant for the user's chains.
    settings = read_settings(_flags(scenario, place, launcher, python), {}, place)
    return build_config(settings, directory=place, interpreter=interpreter)


def _flags(scenario: Scenario, place: Path, launcher: LauncherKind, python: str) -> dict[str, Any]:
    flags = {
        "launcher": launcher.value,
        "python": python,
        "run_dir": str(place / RUN_DIRECTORY),
        # Every node of a sandbox is this machine.
        "allow_local_run_dir": True,
        **scenario.submit_flags(place),
    }
    if scenario.workload is not None:
        flags["workload"] = "mock-gpt"
        flags["command"] = (*scenario.workload, "--log-interval", "1", *_hooked_words())
    return flags


def _hooked_words() -> tuple[str, ...]:
    """With the hook a training that forgets its checkpoints, which the demo must notice."""
    return (FRESH_START,) if switched_off(Hook.NO_RESUME) else ()


def _has_ft_launcher(config: ChainConfig) -> bool:
    """False only when the interpreter answers and lacks it; submit's own check explains everything else better."""
    lacking = [
        probe
        for probe in probe_interpreters(config)
        if not isinstance(probe, Unobserved)
        and _FT_LAUNCHER_MODULE in probe.needed
        and _FT_LAUNCHER_MODULE not in probe.found
    ]
    return not lacking
