"""The settings of a watcher, checked once: what is wrong at the start is fatal, what goes wrong later degrades a pass.

Touches: the files of secrets, reads only; config_file.py reads the file of `--config`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.slurm.client_kind import SlurmClientKind, describe_unproven
from nvrx_watch.model import ActionKind
from nvrx_watch.thresholds import WatchThresholds

DEFAULT_LIVE_INTERVAL = 15.0


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
    slurm_client: SlurmClientKind
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
    notes: tuple[str, ...] = ()
    """What is no mistake and should be mended all the same."""


def build_config(
    options: Mapping[str, Any], thresholds: WatchThresholds, environ: Mapping[str, str], detectors: frozenset[str]
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
    for name in ("allow", "act_as_operator", "dry_run"):
        if options[name] and not options["act"]:
            raise UsageError(
                f"choosing actions: --{name.replace('_', '-')} does nothing without --act", hint="add --act"
            )
    if options["live"] and options["as_json"]:
        raise UsageError("choosing the output: --live and --json exclude each other", hint="leave one of them out")
    interval = options["interval"]
    for name in ("interval", "alert_cooldown", "leave_after"):
        if options[name] is not None and not math.isfinite(options[name]):
            raise UsageError(f"reading --{name.replace('_', '-')}: {options[name]} is no number of seconds")
    if options["live"] and interval is None:
        interval = DEFAULT_LIVE_INTERVAL
    notes: list[str] = []
    sinks = _sinks(options, notes)
    asks_slurm, client = options["platform"] == "slurm", SlurmClientKind(options["slurm_client"])
    unproven = describe_unproven(client) if asks_slurm else None
    if unproven is not None:
        notes.append(unproven)
    return WatchConfig(
        jobid=options["jobid"],
        run_directory=options["run_dir"],
        all_mine=options["all_mine"],
        asks_slurm=asks_slurm,
        slurm_client=client,
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
        sinks=sinks,
        thresholds=_with_keep_queued(thresholds, options["keep_queued"]),
        verbose=options["verbose"],
        notes=tuple(notes),
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


def _sinks(options: Mapping[str, Any], notes: list[str]) -> SinkConfig:
    addresses = list(options["notify"])
    from_file = _secret(options, "notify", None, notes)
    addresses += from_file.splitlines() if from_file else []
    return SinkConfig(
        heartbeat_url=_secret(options, "heartbeat_url", options["heartbeat_url"], notes),
        pd_routing_key=_secret(options, "pd_routing_key", options["pd_routing_key"], notes),
        pd_url=options["pd_url"],
        webhook_url=_secret(options, "webhook_url", options["webhook_url"], notes),
        notify=tuple(address.strip() for address in addresses if address.strip()),
        alert_cooldown_seconds=options["alert_cooldown"],
        metrics_port=options["metrics_port"],
        metrics_address=options["metrics_address"],
        textfile_directory=options["textfile"],
    )


def _secret(options: Mapping[str, Any], name: str, given: str | None, notes: list[str]) -> str | None:
    """The value, or the content of the file that holds it. Raises UsageError; the secret itself is never in it."""
    path: Path | None = options[f"{name}_file"]
    flag = f"--{name.replace('_', '-')}"
    if path is None:
        return given or None
    if given:
        raise UsageError(f"reading {flag}-file: {flag} is given too", hint="give one of them")
    from nvrx_watch.secret_file import read_secret_file

    found = read_secret_file(path, f"{flag}-file", many_lines=name == "notify")
    if found.note is not None:
        notes.append(found.note)
    return found.text


def _default_state_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "nvrx-watch"
    # From cron there may be no HOME; the password database knows it.
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".local" / "state" / "nvrx-watch"
