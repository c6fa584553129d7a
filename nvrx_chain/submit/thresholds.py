"""The durations that steer a generation, and what is done about drained nodes, as they were asked for. Pure."""

from __future__ import annotations

import itertools

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import OnDrain, Shape, Thresholds
from nvrx_chain.submit.settings import Settings, parse_seconds
from nvrx_chain.submit.time_limit import TimeLimit, fit_walltime_warning

SHORTEST_DRAIN_POLL_SECONDS = 1.0
_WITH_AN_OPTION = {"walltime_warning": "--walltime-warning", "drain_poll": "--drain-poll"}


def read_thresholds(settings: Settings, limit: TimeLimit | None) -> Thresholds:
    """The defaults with what was asked for. Raises UsageError for an unknown name and for what cannot work together."""
    chosen = dict(_read_pair(pair) for pair in settings.words("threshold"))
    warning = fit_walltime_warning(settings.seconds("walltime-warning"), limit)
    chosen |= {"walltime_warning": float(warning), "drain_poll": settings.seconds("drain-poll")}
    thresholds = msgspec.structs.replace(Thresholds(), **chosen)
    _check_thresholds(thresholds)
    return thresholds


def _read_pair(pair: str) -> tuple[str, float]:
    known = set(Thresholds.__struct_fields__) - set(_WITH_AN_OPTION)
    name, equals, value = pair.partition("=")
    if not equals or name not in known:
        hint = f"use {_WITH_AN_OPTION[name]}" if name in _WITH_AN_OPTION else f"known: {', '.join(sorted(known))}"
        raise UsageError("reading --threshold: not NAME=SECONDS of a known name", part=pair, hint=hint)
    try:
        return name, parse_seconds(value)
    except ValueError as error:
        raise UsageError(f"reading --threshold {name}: {error}", hint=f"for example {name}=30") from error


def _check_thresholds(thresholds: Thresholds) -> None:
    """Refuse durations with which a live task would be taken for dead, or a dead one never."""
    ascending = ("lease_interval", "self_fence", "lease_timeout")
    for smaller, larger in itertools.pairwise(ascending):
        if not 0 < getattr(thresholds, smaller) < getattr(thresholds, larger):
            raise UsageError(
                f"reading --threshold: {smaller} must be above zero and less than {larger}",
                hint=f"the defaults: {', '.join(f'{each} {getattr(Thresholds(), each):g}' for each in ascending)}",
            )
    if thresholds.control_poll <= 0:
        raise UsageError(
            "reading --threshold: control_poll must be above zero", hint=f"without it {Thresholds().control_poll:g}"
        )
    if 0 < thresholds.drain_poll < SHORTEST_DRAIN_POLL_SECONDS:
        raise UsageError(
            f"reading --drain-poll: {thresholds.drain_poll:g} s would be a load for the controller",
            hint=f"0 for never, or {SHORTEST_DRAIN_POLL_SECONDS:g} and more",
        )


def choose_on_drain(settings: Settings, shape: Shape, thresholds: Thresholds) -> OnDrain:
    """What was asked for, unless it could never happen."""
    chosen = OnDrain(settings.text("on-drain"))
    if chosen is not OnDrain.RESTART:
        return chosen
    if thresholds.drain_poll <= 0:
        raise UsageError(
            "reading --on-drain restart: with --drain-poll 0 no drained node is ever seen",
            hint="give --drain-poll 60, or --on-drain report",
        )
    if shape.hot_spares == 0:
        raise UsageError(
            "reading --on-drain restart: without a hot spare nothing could take the place of a drained task",
            hint="give --hot-spares, or --on-drain exclude",
        )
    return chosen
