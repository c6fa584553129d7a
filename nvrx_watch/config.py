"""The settings of a watcher, checked once: what is wrong at the start is fatal, what goes wrong later degrades a pass.

Touches: the configuration file and the files of secrets, reads only.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.records.files import read_bytes
from nvrx_watch.model import ActionKind
from nvrx_watch.plain_text import nearest
from nvrx_watch.thresholds import WatchThresholds

DEFAULT_LIVE_INTERVAL = 15.0
_THRESHOLDS = "thresholds"
_SECRET_BYTES = 4096


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file sets: options by parameter name, and the table of thresholds."""

    options: Mapping[str, Any]
    thresholds: Mapping[str, Any]


class SinkConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages go. Secrets: never printed."""

    heartbeat_url: str | None
    pd_routing_key: str | None
    pd_url: str | None
    webhook_url: str | None
    notify: tuple[str, ...]
    alert_cooldown_seconds: float
    metrics_port: int | None
    metrics_address: str
    textfile_directory: Path | None

    def __repr__(self) -> str:
        return "SinkConfig(...)"


class WatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One watcher. `interval_seconds` None: one pass."""

    jobid: str | None
    run_directory: Path | None
    all_mine: bool
    asks_slurm: bool
    user: str | None
    interval_seconds: float | None
    live: bool
    as_json: bool
    act: bool
    allowed: frozenset[ActionKind]
    as_operator: bool
    dry_run: bool
    leave_after_seconds: float
    disabled: frozenset[str]
    work_directory: Path | None
    cycle_info_glob: str | None
    iteration_file: Path | None
    job_name: str | None
    max_restarts: int | None
    iteration_pattern: str | None
    state_directory: Path
    sinks: SinkConfig
    thresholds: WatchThresholds
    verbose: bool


def read_config_file(path: Path, keys: frozenset[str]) -> ConfigFile:
    """Read the TOML file. Raises UsageError when it cannot be read, or for a key that is no option."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise UsageError(f"reading {path}: {error.strerror}", part="--config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"reading {path}: {error}", part="--config") from error
    thresholds = content.pop(_THRESHOLDS, {})
    if not isinstance(thresholds, dict):
        raise UsageError(f"reading {path}: {_THRESHOLDS} is a table of numbers", part="--config")
    options: dict[str, Any] = {}
    for key, value in content.items():
        name = {"json": "as_json"}.get(key, key.replace("-", "_"))
        if name not in keys or name == "config":
            near = nearest(name, keys)
            hint = f"did you mean {near.replace('_', '-')}?" if near else "see nvrx-watch --help"
            raise UsageError(f"reading {path}: there is no option {key!r}", hint=hint)
        options[name] = value
    return ConfigFile(options=options, thresholds=thresholds)


def build_config(
    options: Mapping[str, Any], thresholds: Mapping[str, Any], environ: Mapping[str, str], detectors: frozenset[str]
) -> WatchConfig:
    """The settings. Raises UsageError for words that contradict each other or name nothing."""
    _check_subject(options)
    named = frozenset(word.strip() for word in options["disable"].split(",") if word.strip())
    if named - detectors:
        raise UsageError(
            "choosing detectors: there is no such one",
            part=", ".join(sorted(named - detectors)),
            hint="--list-detectors",
        )
    if options["allow"] and not options["act"]:
        raise UsageError("choosing actions: --allow does nothing without --act", hint="add --act")
    interval = options["interval"]
    for name in ("interval", "alert_cooldown", "leave_after"):
        if options[name] is not None and not math.isfinite(options[name]):
            raise UsageError(f"reading --{name.replace('_', '-')}: {options[name]} is no number of seconds")
    if options["live"] and interval is None:
        interval = DEFAULT_LIVE_INTERVAL
    return WatchConfig(
        jobid=options["jobid"],
        run_directory=options["run_dir"],
        all_mine=options["all_mine"],
        asks_slurm=options["platform"] == "slurm",
        user=options["user"],
        interval_seconds=None if options["once"] else interval,
        live=options["live"],
        as_json=options["as_json"],
        act=options["act"],
        allowed=frozenset(ActionKind(word) for word in options["allow"]),
        as_operator=options["act_as_operator"],
        dry_run=options["dry_run"],
        leave_after_seconds=options["leave_after"],
        disabled=named,
        work_directory=options["work_dir"],
        cycle_info_glob=options["cycle_info_glob"],
        iteration_file=options["checkpoint_iteration_file"],
        job_name=options["job_name"],
        max_restarts=options["max_restarts"],
        iteration_pattern=_checked_pattern(options["iteration_pattern"]),
        state_directory=options["state_dir"] or _default_state_directory(environ),
        sinks=_sinks(options),
        thresholds=_with_keep_queued(_checked_thresholds(thresholds), options["keep_queued"]),
        verbose=options["verbose"],
    )


def _with_keep_queued(thresholds: WatchThresholds, wanted: int) -> WatchThresholds:
    return msgspec.structs.replace(thresholds, keep_queued=max(wanted, thresholds.keep_queued))


def _check_subject(options: Mapping[str, Any]) -> None:
    foreign = ("work_dir", "cycle_info_glob", "job_name")
    given = [name for name in ("jobid", "run_dir", "all_mine") if options[name]]
    if not given and not any(options[name] for name in foreign):
        raise UsageError("choosing a chain: none is named", hint="give a job id, --run-dir DIR or --all-mine")
    if len(given) > 1:
        words = ", ".join(name.replace("_", "-") for name in given)
        raise UsageError(f"choosing a chain: it is named more than once ({words})", hint="name it once")
    if options["platform"] == "none" and (options["jobid"] or options["all_mine"]):
        raise UsageError("choosing a chain: without a scheduler a job id means nothing", hint="use --run-dir DIR")
    if options["act"] and not given and not options["job_name"]:
        raise UsageError("choosing actions: the jobs of the chain are not named", hint="give a job id or --job-name")
    if options["platform"] == "none" and options["act"]:
        raise UsageError("choosing actions: without a scheduler there is nothing to act on", hint="leave out --act")


def _checked_thresholds(table: Mapping[str, Any]) -> WatchThresholds:
    names = {name.replace("-", "_"): value for name, value in table.items()}
    odd = [name for name, value in names.items() if isinstance(value, float | int) and not 0 <= value < math.inf]
    if odd:
        raise UsageError(f"reading [{_THRESHOLDS}]: neither zero nor a positive number", part=", ".join(odd))
    try:
        # Lax, for TOML tells 60 from 60.0.
        return msgspec.convert(names, WatchThresholds, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"reading [{_THRESHOLDS}]: {error}", part="--config", hint="see docs/detectors.md") from error


def _checked_pattern(text: str | None) -> str | None:
    if not text:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"reading --iteration-pattern: {error}", part=text) from error
    if pattern.groups != 1:
        raise UsageError("reading --iteration-pattern: it has to have exactly one group", part=text)
    return text


def _sinks(options: Mapping[str, Any]) -> SinkConfig:
    addresses = list(options["notify"])
    from_file = _secret(options, "notify", None)
    addresses += from_file.splitlines() if from_file else []
    return SinkConfig(
        heartbeat_url=_secret(options, "heartbeat_url", options["heartbeat_url"]),
        pd_routing_key=_secret(options, "pd_routing_key", options["pd_routing_key"]),
        pd_url=options["pd_url"],
        webhook_url=_secret(options, "webhook_url", options["webhook_url"]),
        notify=tuple(address.strip() for address in addresses if address.strip()),
        alert_cooldown_seconds=options["alert_cooldown"],
        metrics_port=options["metrics_port"],
        metrics_address=options["metrics_address"],
        textfile_directory=options["textfile"],
    )


def _secret(options: Mapping[str, Any], name: str, given: str | None) -> str | None:
    """The value, or the content of the file that holds it. Raises UsageError; the secret itself is never in it."""
    path: Path | None = options[f"{name}_file"]
    flag = f"--{name.replace('_', '-')}"
    if path is None:
        return given or None
    if given:
        raise UsageError(f"reading {flag}-file: {flag} is given too", hint="give one of them")
    content = read_bytes(path.resolve(), max_bytes=_SECRET_BYTES)
    if content is None or isinstance(content, Unobserved):
        why = content.reason if isinstance(content, Unobserved) else "there is no such file"
        raise UsageError(f"reading {flag}-file {path}: {why}")
    text = content.decode("utf-8", errors="replace").strip()
    if not text:
        raise UsageError(f"reading {flag}-file {path}: it is empty")
    return text


def _default_state_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "nvrx-watch"
    # From cron there may be no HOME; the password database knows it.
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local" / "state" / "nvrx-watch"
