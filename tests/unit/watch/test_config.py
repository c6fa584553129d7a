"""Options, environment and file become one checked configuration; what is wrong is said before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_watch.config import WatchConfig, build_config
from nvrx_watch.model import ActionKind
from nvrx_watch.thresholds import WatchThresholds

DETECTORS = frozenset({"restart_storm", "chain_held"})
DEFAULTS: dict[str, Any] = {
    "jobid": None,
    "run_dir": Path("/run/dir"),
    "all_mine": False,
    "platform": "slurm",
    "slurm_client": "command",
    "user": None,
    "once": False,
    "interval": None,
    "live": False,
    "as_json": False,
    "act": False,
    "allow": (),
    "act_as_operator": False,
    "dry_run": False,
    "keep_queued": 1,
    "leave_after": 3600.0,
    "disable": "",
    "work_dir": None,
    "cycle_info_glob": None,
    "checkpoint_iteration_file": None,
    "job_name": None,
    "max_restarts": None,
    "iteration_pattern": None,
    "state_dir": None,
    "heartbeat_url": None,
    "heartbeat_url_file": None,
    "pd_routing_key": None,
    "pd_routing_key_file": None,
    "pd_url": None,
    "webhook_url": None,
    "webhook_url_file": None,
    "notify": (),
    "notify_file": None,
    "alert_cooldown": 14400.0,
    "metrics_port": None,
    "metrics_address": "127.0.0.1",
    "textfile": None,
    "verbose": False,
}


def build(
    environ: Mapping[str, str] | None = None, thresholds: WatchThresholds | None = None, **options: Any
) -> WatchConfig:
    environ = environ or {"HOME": "/home/ann"}
    return build_config({**DEFAULTS, **options}, thresholds or WatchThresholds(), environ, DETECTORS)


def test_the_default_is_one_pass_that_only_observes() -> None:
    config = build()
    assert config.interval_seconds is None
    assert not config.act
    assert config.allowed == frozenset()
    assert config.state_directory == Path("/home/ann/.local/state/nvrx-watch")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"run_dir": None}, "none is named"),
        ({"jobid": "1"}, "more than once"),
        ({"all_mine": True}, "more than once"),
        ({"jobid": "1", "run_dir": None, "platform": "none"}, "--run-dir"),
        ({"platform": "none", "act": True}, "nothing to act on"),
        ({"disable": "restart_storm,nonsense"}, "nonsense"),
        ({"allow": ("fence",)}, "--act"),
        ({"interval": math.nan}, "--interval"),
        ({"alert_cooldown": math.inf}, "--alert-cooldown"),
        ({"run_dir": None, "work_dir": Path("/w"), "act": True}, "--job-name"),
        ({"iteration_pattern": "("}, "--iteration-pattern"),
        ({"iteration_pattern": "step"}, "exactly one group"),
    ],
)
def test_words_that_mean_nothing_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build(**options)


def test_live_has_an_interval_and_once_ends_it() -> None:
    assert build(live=True).interval_seconds is not None
    assert build(live=True, once=True).interval_seconds is None
    assert build(interval=30.0, once=True).interval_seconds is None


def test_actions_and_detectors_are_read_as_sets() -> None:
    config = build(act=True, allow=("fence", "hold"), disable=" restart_storm ,, chain_held")
    assert config.allowed == {ActionKind.FENCE, ActionKind.HOLD}
    assert config.disabled == DETECTORS


def test_the_state_directory_follows_the_environment() -> None:
    assert build(environ={"XDG_STATE_HOME": "/x"}).state_directory == Path("/x/nvrx-watch")
    assert build(environ={}).state_directory.is_absolute()


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    key = tmp_path / "a key"
    key.write_text("R0UT1NG\n")
    addresses = tmp_path / "addresses"
    addresses.write_text("json://a\n\n json://b \n")
    config = build(pd_routing_key_file=key, notify_file=addresses, notify=("json://c",))
    assert config.sinks.pd_routing_key == "R0UT1NG"
    assert config.sinks.notify == ("json://c", "json://a", "json://b")
    assert "R0UT1NG" not in repr(config)


def test_a_secret_that_is_given_twice_or_cannot_be_read_is_fatal_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        build(webhook_url_file=tmp_path / "none")
    with pytest.raises(UsageError, match="given too") as caught:
        build(webhook_url_file=tmp_path / "none", webhook_url="https://secret")
    assert "secret" not in str(caught.value)


def test_a_secret_that_everybody_may_read_is_said_and_used(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("R0UT1NG")
    key.chmod(0o644)
    config = build(pd_routing_key_file=key)
    assert config.sinks.pd_routing_key == "R0UT1NG"
    assert ["chmod 600" in note for note in config.notes] == [True]


def test_a_client_that_was_only_checked_against_recordings_is_said_in_one_line() -> None:
    assert build().notes == ()
    (note,) = build(slurm_client="pyslurm").notes
    assert "recorded behaviour only" in note
    # Nothing is asked, so nothing is said.
    assert build(slurm_client="pyslurm", platform="none", user=None).notes == ()
