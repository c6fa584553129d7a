"""The file of `--config`: every value is checked here, so that what is wrong names the key, the file and the cure.

Values are never shown: any of them may be a secret under the wrong key. Touches: the file, reads only.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from nvrx_chain.errors import Unobserved, UsageError
from nvrx_chain.records.files import read_bytes
from nvrx_watch.plain_text import nearest, plain
from nvrx_watch.thresholds import WatchThresholds

_THRESHOLDS = "thresholds"
_NAMED_OTHERWISE = {"json": "as_json"}
_NO_SETTINGS = frozenset({"config", "version", "list_detectors", "explain"})
"""Questions, and the file itself: with one of them in it no run would watch anything."""
_NOT_WRITTEN_WITH_UNDERSCORE = {"as_json": "json"}
_LONGEST_SHOWN = 200


class OptionKind(msgspec.Struct, frozen=True, kw_only=True):
    """What an option takes. `number`: float or int within `least` and `most`, None for a text.

    `many`: a list of texts, or one text, which `separator` cuts; `is_joined`: the option itself is such a text.
    `as_text`: a number is taken for its digits.
    """

    is_flag: bool = False
    number: type[float] | type[int] | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    separator: str = ""
    is_joined: bool = False
    as_text: bool = False


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file sets: options by parameter name, and the thresholds."""

    options: Mapping[str, Any]
    thresholds: WatchThresholds


class _Wrong(Exception):
    """A value that is not of its kind: what it is, and how to write it."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


def read_config_file(path: Path, kinds: Mapping[str, OptionKind]) -> ConfigFile:
    """Read the TOML file. Raises UsageError when it cannot be read, for a key that is no option and for a wrong value.

    `kinds` has every option by its parameter name.
    """
    where = f"reading {plain(str(path), _LONGEST_SHOWN)}"
    content = _parse(path, where)
    thresholds = _check_thresholds(content.pop(_THRESHOLDS, {}), where)
    options: dict[str, Any] = {}
    for key, value in content.items():
        name = _NAMED_OTHERWISE.get(key, key.replace("-", "_"))
        if name not in kinds or name in _NO_SETTINGS:
            near = nearest(name, kinds.keys() - _NO_SETTINGS)
            hint = f"did you mean {_written(near)}?" if near else "see nvrx-watch --help"
            raise UsageError(f"{where}: there is no option {_shown(key)}", hint=hint)
        if name in options:
            raise UsageError(f"{where}: {_shown(key)} is set twice", hint="write it once, with - or with _")
        try:
            options[name] = _checked(value, kinds[name])
        except _Wrong as wrong:
            raise UsageError(f"{where}: {key} is {wrong.what}", hint=f"write {key} = {wrong.cure}") from None
    return ConfigFile(options=options, thresholds=thresholds)


def _parse(path: Path, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        # The real path: a link to a file of settings is as good as the file. A FIFO would block for ever.
        content = read_bytes(Path(os.path.realpath(path)))
    except ValueError as error:
        raise UsageError(f"{where}: {error}", part="--config") from error
    if content is None:
        raise UsageError(f"{where}: No such file or directory", part="--config")
    if isinstance(content, Unobserved):
        raise UsageError(f"{where}: {plain(content.reason, 2 * _LONGEST_SHOWN)}", part="--config")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        # TOMLDecodeError and UnicodeDecodeError are ValueErrors; so is what Python says to a number of 5000 digits.
        raise UsageError(f"{where}: {plain(str(error), _LONGEST_SHOWN)}", part="--config") from error


def _check_thresholds(table: object, where: str) -> WatchThresholds:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: {_THRESHOLDS} is {_described(table)}, not a table of numbers", hint="[thresholds]")
    kinds = {
        field.name: OptionKind(number=int if field.type in (int, "int") else float, least=0)
        for field in msgspec.structs.fields(WatchThresholds)
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in kinds:
            near = nearest(name, kinds)
            hint = f"did you mean {near}?" if near else "see docs/detectors.md"
            raise UsageError(f"{where}: [{_THRESHOLDS}] knows no {_shown(key)}", hint=hint)
        if name in values:
            raise UsageError(f"{where}: [{_THRESHOLDS}] sets {_shown(key)} twice", hint="write it once, with _")
        try:
            values[name] = _checked(value, kinds[name])
        except _Wrong:
            default = getattr(WatchThresholds(), name)
            kind = "a whole number" if kinds[name].number is int else "a number"
            raise UsageError(
                f"{where}: [{_THRESHOLDS}] {key} is {_described(value)}, not {kind} from 0 on",
                hint=f"write {key} = {default:g}, which is the default",
            ) from None
    return WatchThresholds(**values)


def _checked(value: object, kind: OptionKind) -> object:
    """The value as the option takes it. Raises _Wrong."""
    if kind.is_flag:
        if isinstance(value, bool):
            return value
        raise _Wrong(f"{_described(value)}, neither true nor false", "true")
    if kind.number is not None:
        return _checked_number(value, kind)
    if kind.many:
        return _checked_many(value, kind)
    if kind.as_text and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _Wrong(f"{_described(value)}, not a text", f'"{_one_of(kind)}"')
    return _checked_text(value, kind)


def _checked_number(value: object, kind: OptionKind) -> float | int:
    least, most = kind.least, kind.most
    cure = f"{least if least else 1:g}"
    wanted = "a whole number" if kind.number is int else "a number"
    if most is not None:
        wanted += f" from {least or 0:g} to {most:g}"
    elif least is not None:
        wanted += f" from {least:g} on"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not is_number or (kind.number is int and not isinstance(value, int)):
        raise _Wrong(f"{_described(value)}, not {wanted}", cure)
    # Before anything is compared: NaN is neither more nor less, and a thousand digits fit into no float.
    is_usable = abs(value) < 1 << 62 if isinstance(value, int) else math.isfinite(value)
    if not is_usable or (least is not None and value < least) or (most is not None and value > most):
        raise _Wrong(f"not {wanted}", cure)
    return value


def _checked_many(value: object, kind: OptionKind) -> list[str] | str:
    cure = f'["{_one_of(kind)}"]'
    if isinstance(value, str):
        words = [word.strip() for word in value.split(kind.separator)] if kind.separator else [value]
        value = [word for word in words if word]
    if not isinstance(value, list):
        raise _Wrong(f"{_described(value)}, not a list of texts", cure)
    for each in value:
        if not isinstance(each, str):
            raise _Wrong(f"a list with {_described(each)} in it, not one of texts", cure)
    found = [_checked_text(each, kind) for each in value]
    return kind.separator.join(found) if kind.is_joined else found


def _checked_text(value: str, kind: OptionKind) -> str:
    if not value:
        raise _Wrong("empty", f'"{_one_of(kind)}", or leave it out')
    if "\0" in value:
        raise _Wrong("a text with a NUL character in it", f'"{_one_of(kind)}"')
    if kind.choices and value not in kind.choices:
        raise _Wrong(f"none of {', '.join(kind.choices)}", f'"{kind.choices[0]}"')
    return value


def _one_of(kind: OptionKind) -> str:
    return kind.choices[0] if kind.choices else "..."


def _described(value: object) -> str:
    """What a value is, without the value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if value != value:
            return "nan"
        return "a negative number" if value < 0 else "a number" if value < 1 << 62 else "a number that is too large"
    kinds: tuple[tuple[type, str], ...] = ((str, "a text"), (list, "a list"), (dict, "a table"), (date, "a date"))
    return next((text for kind, text in kinds if isinstance(value, kind)), "a time")


def _written(name: str) -> str:
    """How the key of an option is written."""
    return _NOT_WRITTEN_WITH_UNDERSCORE.get(name, name.replace("_", "-"))


def _shown(key: str) -> str:
    return repr(key[:_LONGEST_SHOWN])
