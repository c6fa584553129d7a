"""Which launcher options a script gives, gathered while it is read. Pure.

A command outweighs an assignment: a string or an array of arguments may be built and never used. Within either, all
that give an option must agree, else it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvrx_watch.resolve.shell_text import UNKNOWN, absolute, is_known

CYCLES = "--ft-cycle-info-dir"
ITERATION = "--ft-checkpoint-iteration-file"
RESTARTS = "--max-restarts"

_SPELLINGS = {
    spelling: name for name in (CYCLES, ITERATION, RESTARTS) for spelling in (name, f"--{name[2:].replace('-', '_')}")
}
MARKS = tuple(_SPELLINGS)
_PATHS = frozenset({CYCLES, ITERATION})


class FoundOptions:
    """The options found so far."""

    def __init__(self) -> None:
        self._in_commands: dict[str, set[str]] = {}
        self._in_assignments: dict[str, set[str]] = {}

    def take(self, fields: Sequence[str], here: str, *, in_command: bool) -> None:
        """Take the options out of a list of arguments, of which the last counts, as argparse has it.

        `here` is the directory from which a relative path is seen.
        """
        given: dict[str, str] = {}
        for at, field in enumerate(fields):
            word, equals, value = field.partition("=")
            name = _SPELLINGS.get(word)
            if name is None or holds_a_line(field):
                continue
            if not equals:
                # What follows may stand in another list of arguments.
                value = fields[at + 1] if at + 1 < len(fields) else UNKNOWN
            given[name] = absolute(value, here) if name in _PATHS else value or UNKNOWN
        into = self._in_commands if in_command else self._in_assignments
        for name, value in given.items():
            into.setdefault(name, set()).add(value)

    def was_given(self, name: str) -> bool:
        """Whether the option stands anywhere, known or not."""
        return name in self._in_commands or name in self._in_assignments

    def value(self, name: str) -> str | None:
        """The one value that is given, None when there is none or it cannot be told."""
        values = self._in_commands.get(name) or self._in_assignments.get(name) or set()
        only = next(iter(values)) if len(values) == 1 else UNKNOWN
        return only if is_known(only) else None


def holds_a_line(field: str) -> bool:
    """Whether one argument holds a list of arguments or a command with such options, as in `bash -c "..."`."""
    if not any(mark in field for mark in MARKS):
        return False
    first, *others = field.split() or [""]
    begins_with_option = field.startswith(first) and first.partition("=")[0] in _SPELLINGS
    # An option whose path has a blank in it is one option still.
    return bool(others) and (not begins_with_option or any(other.startswith("--") for other in others))
