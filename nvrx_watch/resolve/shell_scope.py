"""The variables of a script that is read and not run: what they hold on every way through it, as far as one can tell.

A branch (if, case, loop, function) gets a scope of its own, and `absorb` says what holds after it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvrx_watch.resolve.shell_text import UNKNOWN

CURRENT_DIRECTORY = "PWD"


class Scope:
    """Variables by name; a name that is not there, or is None, holds nothing that the script gave it.

    `is_open`: something unreadable was sourced, which may have assigned any name.
    """

    def __init__(self, parent: Scope | None = None, *, is_function: bool = False) -> None:
        self.is_function = is_function
        self._parent = parent
        self._values: dict[str, str | None] = {}
        self._local: set[str] = set()
        self._is_open = False

    @property
    def is_branch(self) -> bool:
        """Whether what stands here may not be reached."""
        return self._parent is not None

    @property
    def is_open(self) -> bool:
        return self._is_open or (self._parent is not None and self._parent.is_open)

    def open(self) -> None:
        """Something may have assigned anything."""
        self._is_open = True

    def get(self, name: str) -> str | None:
        """What the variable holds, None when it was never assigned."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            scope = scope._parent
        return None

    def set(self, name: str, value: str | None) -> None:
        """Assign a name; None takes it away."""
        self._values[name] = value

    def set_local(self, name: str, value: str) -> None:
        """Assign a name that does not outlive its function. Outside a function it is a plain assignment."""
        self._values[name] = value
        scope: Scope | None = self
        while scope is not None:
            if scope.is_function:
                scope._local.add(name)
                return
            scope = scope._parent

    def child(self, *, is_function: bool = False) -> Scope:
        """A scope whose assignments do not (yet) count here."""
        return Scope(self, is_function=is_function)

    def assigned(self) -> dict[str, str | None]:
        """What was assigned here and outlives this scope."""
        return {name: value for name, value in self._values.items() if name not in self._local}

    def absorb(self, branches: Sequence[Scope], *, is_exhaustive: bool, repeats: bool = False) -> None:
        """Take over what branches assigned, of which one is taken (`is_exhaustive`) or at most one.

        A name that already holds something keeps it unless every branch assigns it; one that holds nothing gets the
        value on which all branches that assign it agree. A value made by a body that `repeats` is not the last one.
        """
        assigned = [branch.assigned() for branch in branches]
        for name in dict.fromkeys(name for values in assigned for name in values):
            found = [values[name] for values in assigned if name in values]
            agreed = UNKNOWN if repeats or len(set(found)) > 1 else found[0]
            before = self.get(name)
            if is_exhaustive and len(found) == len(assigned):
                self.set(name, agreed)
            elif name == CURRENT_DIRECTORY and before != agreed:
                self.set(name, UNKNOWN)
            elif not before:
                self.set(name, agreed)
        if any(branch._is_open for branch in branches):
            self.open()
