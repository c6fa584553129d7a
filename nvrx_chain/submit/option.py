"""What an option of `nvrx-chain submit` is: how it is written, where the help page has it, what empty means. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """How a value is written. WORDS and PAIRS may be given several times; in the environment they are shell words."""

    TEXT = "text"
    COUNT = "count"
    SECONDS = "seconds"
    SWITCH = "switch"
    WORDS = "words"
    PAIRS = "pairs"


class Section(enum.Enum):
    """Headings of the help page."""

    SHAPE = "Shape of a generation"
    CHAIN = "Chain"
    SITE = "What the site wants to know"
    PLACE = "Names and places"
    LAUNCH = "Launcher and workload"
    FINISH = "When is training finished"
    MEGATRON = "Megatron-LM (--workload megatron-gpt)"
    FAULTS = "Faults on order"
    CARE = "Care"
    CALL = "This call"


REQUIRED = object()
"""The meaning of an empty value for an option that has no "off"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `off` is what an explicitly empty value means, which is not the default; REQUIRED refuses it."""

    key: str
    kind: Kind
    section: Section
    help: str
    default: Any = None
    off: Any = None
    metavar: str | None = None
    minimum: int = 0
    choices: tuple[str, ...] = ()
    established: tuple[str, ...] = ()
    negatable: bool = False
    in_file: bool = True
    positional: bool = False

    @property
    def parameter(self) -> str:
        """The name under which click hands the value over."""
        return self.key.replace("-", "_")

    @property
    def flag(self) -> str:
        """How people name it in messages."""
        return "the words after --" if self.positional else f"--{self.key}"

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that set it: NVRX_<OPTION>, then the established names."""
        if self.positional:
            return ()
        return (f"NVRX_{self.parameter.upper()}", *self.established)


def count_option(key: str, section: Section, text: str, **more: Any) -> Option:
    """A whole number."""
    return Option(key=key, kind=Kind.COUNT, section=section, help=text, metavar="N", **more)


def text_option(key: str, section: Section, text: str, metavar: str, **more: Any) -> Option:
    """A text in one line."""
    return Option(key=key, kind=Kind.TEXT, section=section, help=text, metavar=metavar, **more)


def switch_option(key: str, section: Section, text: str, **more: Any) -> Option:
    """Yes or no, off where nothing is said."""
    return Option(key=key, kind=Kind.SWITCH, section=section, help=text, **{"default": False, "off": False, **more})
