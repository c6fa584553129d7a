"""The value of every option with its origin: flag, environment, file, default, in that order. Touches: the TOML file.

An explicitly empty value means off, not the default. What cannot be read is refused by name, never guessed.
"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvrx_chain.errors import UsageError
from nvrx_chain.submit.option import REQUIRED, Kind, Option
from nvrx_chain.submit.options import OPTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "nvrx-chain.toml"
_ANOTHER_FILE = "name one that is there and that you may read"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it came from, e.g. `environment NVRX_HOT_SPARES`."""

    option: Option
    value: Any
    origin: str

    @property
    def is_default(self) -> bool:
        return self.origin == "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings by key. The typed getters trust `read_settings`, which parsed every value by its kind."""

    by_key: Mapping[str, Setting]

    def given(self, key: str) -> bool:
        """Whether anybody set it, if only to nothing."""
        return not self.by_key[key].is_default

    def text(self, key: str) -> str | None:
        value: str | None = self.by_key[key].value
        return value

    def count(self, key: str) -> int:
        value: int = self.by_key[key].value
        return value

    def optional_count(self, key: str) -> int | None:
        value: int | None = self.by_key[key].value
        return value

    def seconds(self, key: str) -> float:
        value: float = self.by_key[key].value
        return value

    def switch(self, key: str) -> bool:
        value: bool = self.by_key[key].value
        return value

    def words(self, key: str) -> tuple[str, ...]:
        value: tuple[str, ...] = self.by_key[key].value
        return value


def read_settings(flags: Mapping[str, Any], environ: Mapping[str, str], directory: Path) -> Settings:
    """Resolve every option. `flags` holds click's values by parameter name, None or () where not given.

    Raises UsageError for a value that cannot be read, an unknown key in the file, or a named file that is not there.
    """
    outside_file = {
        option.key: found for option in OPTIONS if (found := _from_call(option, flags, environ)) is not None
    }
    config = outside_file.get("config")
    in_file, file_name = _read_file(config.value if config else None, directory)
    settings: dict[str, Setting] = {}
    for option in OPTIONS:
        setting = outside_file.get(option.key)
        if setting is None and option.key in in_file:
            origin = f"file {file_name}"
            setting = Setting(option=option, value=_parse(option, in_file[option.key], origin), origin=origin)
        settings[option.key] = setting or Setting(option=option, value=option.default, origin="default")
    return Settings(settings)


def _from_call(option: Option, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Setting | None:
    given = flags.get(option.parameter)
    if given is not None and given != ():
        return Setting(option=option, value=_parse(option, given, option.flag), origin="flag")
    present = [name for name in option.environment if name in environ]
    if not present:
        return None
    if len({environ[name] for name in present}) > 1:
        raise UsageError(f"reading the environment: {' and '.join(present)} differ", hint="set one of them")
    origin = f"environment {present[0]}"
    return Setting(option=option, value=_parse(option, environ[present[0]], origin), origin=origin)


def _read_file(named: str | None, directory: Path) -> tuple[Mapping[str, Any], str]:
    """The settings of the file, by key, and its name for messages. A file that nobody named may be absent."""
    path = directory / (named or FILE_NAME)
    named_by = "--config " if named else ""
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError as error:
        if named is None:
            return {}, FILE_NAME
        raise UsageError(f"reading --config {path}: there is no such file", hint=_ANOTHER_FILE) from error
    except OSError as error:
        raise UsageError(f"reading {named_by}{path}: {error.strerror}", hint=_ANOTHER_FILE) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"reading {named_by}{path}: {error}", hint="the file must be TOML in UTF-8") from error
    allowed = [option.key for option in OPTIONS if option.in_file]
    for key in content:
        if key not in allowed:
            raise UsageError(f"reading {path}: unknown setting", part=key, hint=_nearest(key, allowed))
    return content, named or FILE_NAME


def _nearest(key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "nvrx-chain submit --show-config lists them all"


def _parse(option: Option, raw: Any, origin: str) -> Any:
    # A repeatable flag that was given once with nothing arrives as ("",).
    if raw in ("", ("",)):
        if option.off is REQUIRED:
            raise UsageError(f"{_reading(option, origin)}: it cannot be empty", hint=_leave_out(option))
        return option.off
    try:
        return _PARSERS[option.kind](option, raw)
    except ValueError as error:
        raise UsageError(f"{_reading(option, origin)}: {error}", hint=_FORMS[option.kind](option)) from error


def _reading(option: Option, origin: str) -> str:
    """The option, and where its value came from when that was not the option itself."""
    return f"reading {origin}" if origin == option.flag else f"reading {origin}: --{option.key}"


def _leave_out(option: Option) -> str:
    return "give one" if option.default is None else f"leave it out for its default, {option.default}"


def _form_of_text(option: Option) -> str:
    # The message has the choices already.
    return _leave_out(option) if option.choices else f"write it in one line, as {option.metavar}"


_FORMS: Mapping[Kind, Callable[[Option], str]] = {
    Kind.TEXT: _form_of_text,
    Kind.COUNT: lambda option: f"write it in digits, {option.minimum} or more",
    Kind.SECONDS: lambda option: "zero or more, for example 30 or 2.5",
    Kind.SWITCH: lambda option: "write 1, true, yes, on, or 0, false, no, off",
    Kind.WORDS: lambda option: "write words as for a shell, each in one line",
    Kind.PAIRS: lambda option: f"write words as for a shell, each {option.metavar}",
}
"""How a value of each kind is written."""


def _parse_text(option: Option, raw: Any) -> str:
    # `time-limit = 90` in TOML means the text 90; true or a list means a mistake.
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise ValueError(f"{raw!r} is not text")
    text = str(raw)
    if any(character in text for character in "\0\n\r"):
        raise ValueError("a line break or NUL cannot be part of it")
    if option.choices and text not in option.choices:
        raise ValueError(f"{text!r} is none of {', '.join(option.choices)}")
    return text


def _parse_count(option: Option, raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise ValueError(f"{raw!r} is not a whole number")
    text = str(raw)
    # int() would take 1_000, ٣ and spaces, which the next reader of the same setting may not.
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(f"{text!r} is not a whole number")
    if int(text) < option.minimum:
        raise ValueError(f"{text} is less than {option.minimum}")
    return int(text)


def _parse_seconds(option: Option, raw: Any) -> float:
    return parse_seconds(raw)


def parse_seconds(raw: Any) -> float:
    """A duration in seconds, zero or more. Raises ValueError."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise ValueError(f"{raw!r} is not a number of seconds")
    try:
        seconds = float(raw)
    except ValueError:
        raise ValueError(f"{raw!r} is not a number of seconds") from None
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{raw!r} is not a number of seconds")
    return seconds


def _parse_switch(option: Option, raw: Any) -> bool:
    word = str(raw).lower() if isinstance(raw, (str, bool, int)) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{raw!r} is neither yes nor no")
    return word in _TRUE


def _parse_words(option: Option, raw: Any) -> tuple[str, ...]:
    words = shlex.split(raw) if isinstance(raw, str) else raw
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{raw!r} is not a list of words")
    for word in words:
        if "\0" in word or (not option.positional and "\n" in word):
            raise ValueError(f"{word!r}: a line break or NUL cannot be part of it")
    return tuple(words)


def _parse_pairs(option: Option, raw: Any) -> tuple[str, ...]:
    if isinstance(raw, dict):
        return tuple(f"{name}={value}" for name, value in raw.items())
    return _parse_words(option, raw)


_PARSERS = {
    Kind.TEXT: _parse_text,
    Kind.COUNT: _parse_count,
    Kind.SECONDS: _parse_seconds,
    Kind.SWITCH: _parse_switch,
    Kind.WORDS: _parse_words,
    Kind.PAIRS: _parse_pairs,
}
