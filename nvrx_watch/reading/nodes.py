"""Node lists of cycle records, expanded fast: thousands of lists that differ in a node or two. Pure.

`nvrx_chain.slurm.nodelist.expand_nodes` costs about 0.7 ms a list, of 20,000 lists 14 s. What every launcher writes
(`n[001-033,035]`) is cut from tables of names instead, which also makes equal names one object; any other text goes
through `expand_nodes`. Both give the same names.
"""

from __future__ import annotations

import re

import msgspec

from nvrx_chain.slurm.nodelist import expand_nodes

_PART = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\[([0-9,-]+)\]|([A-Za-z][A-Za-z0-9-]*)(?=,|$)", re.ASCII)
_RANGES = re.compile(r"\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_PADDED = re.compile(r"(?:^|[,-])0\d", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9-]*", re.ASCII)
_BLOCK = 128
_DIGITS = str.maketrans("123456789", "000000000")
_MOST_SHAPES = 10_000
_MOST_NODES = 100_000
_MOST_HELD = 4_000_000
"""Names in all lists of one chain together: a hostile record holds 100,000 in twenty bytes."""


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bracket begins, how long its numbers are, and where the first and the last of each range stand."""

    start: int
    width: int
    places: tuple[tuple[int, int], ...]


class NodeLists(dict[str, tuple[str, ...]]):
    """The node lists of one chain by their text. Equal texts give one tuple, equal names one string.

    A dict, because a list that is known is looked up tens of thousands of times in a pass; a text that is none, or one
    too many, raises ValueError.
    """

    def __init__(self, most_held: int = _MOST_HELD) -> None:
        super().__init__({"": ()})
        self._blocks: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self._shapes: dict[str, _Shape | None] = {}
        self._names: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._left = most_held

    def __missing__(self, text: str) -> tuple[str, ...]:
        # Also a text that is refused is looked at once only.
        found = self._refused.get(text) or self._look_at(text)
        if isinstance(found, str):
            self._refused[text] = found
            raise ValueError(found)
        self[text] = found
        return found

    def _look_at(self, text: str) -> tuple[str, ...] | str:
        try:
            names = self._cut(text)
            if names is None:
                names = tuple(self._names.setdefault(name, name) for name in expand_nodes(text))
        except (ValueError, OverflowError) as error:
            return str(error)
        if len(names) > self._left:
            return f"read the node list {text[:80]!r}: the cycle records name too many nodes"
        self._left -= len(names)
        return names

    def _cut(self, text: str) -> tuple[str, ...] | None:
        """The names, from the tables; None for a text that is not of the plain kind."""
        shaped = self._cut_shaped(text)
        if shaped is not None:
            return shaped
        names: list[str] = []
        prefix, _, ranges = text.partition("[")
        if ranges.endswith("]") and "[" not in ranges and _PREFIX.fullmatch(prefix):
            # Nearly every list: one bracket, which rises and so names each node once.
            return tuple(names) if self._add(names, prefix, ranges[:-1]) else None
        position = 0
        for match in _PART.finditer(text):
            if match.start() != position:
                return None
            position = match.end() + 1
            prefix, ranges, name = match.groups()
            if name is not None:
                names.append(self._names.setdefault(name, name))
            elif not self._add(names, prefix, ranges):
                return None
        if position != len(text) + 1:
            return None
        return tuple(dict.fromkeys(names))

    def _add(self, names: list[str], prefix: str, text: str) -> bool:
        """Add the names of one bracket. False for ranges that do not rise or whose numbers are written unlike.

        Those are for `expand_nodes` to put into order or to refuse: this way the two never differ.
        """
        if _RANGES.fullmatch(text) is None:
            return False
        width = 0
        if _PADDED.search(text) is not None:
            widths = set(map(len, text.replace("-", ",").split(",")))
            if len(widths) > 1:
                return False
            width = widths.pop()
        before, count, ranges = -1, len(names), []
        for low, high in _RANGE.findall(text):
            first = int(low)
            last = int(high) if high else first
            if first <= before or last < first:
                return False
            before = last
            count += last - first + 1
            ranges.append((first, last))
        if count > _MOST_NODES:
            return False
        for first, last in ranges:
            self._extend(names, prefix, width, first, last)
        return True

    def _cut_shaped(self, text: str) -> tuple[str, ...] | None:
        """The names of a list that differs from an earlier one in its digits only, where all numbers are as long.

        The lists of one chain have a handful of shapes, and a shape says where the numbers stand.
        """
        key = text.translate(_DIGITS)
        if key not in self._shapes:
            if len(self._shapes) >= _MOST_SHAPES:
                return None
            self._shapes[key] = _shape_of(text)
        shape = self._shapes[key]
        if shape is None:
            return None
        # Digits stand in the names of racks, too: only the numbers in the bracket are told by the shape.
        prefix, width = text[: shape.start], shape.width
        names: list[str] = []
        before = -1
        for low, high in shape.places:
            first, last = int(text[low : low + width]), int(text[high : high + width])
            if first <= before or last < first or last - first >= _MOST_NODES - len(names):
                return None
            before = last
            number = first // _BLOCK
            block = self._blocks.get((prefix, width, number))
            if block is None or last // _BLOCK != number:
                self._extend(names, prefix, width, first, last)
            else:
                start = number * _BLOCK
                names += block[first - start : last + 1 - start]
        return tuple(names)

    def _extend(self, names: list[str], prefix: str, width: int, first: int, last: int) -> None:
        for number in range(first // _BLOCK, last // _BLOCK + 1):
            start = number * _BLOCK
            block = self._blocks.get((prefix, width, number))
            if block is None:
                made = (f"{prefix}{index:0{width}d}" for index in range(start, start + _BLOCK))
                block = self._blocks[(prefix, width, number)] = tuple(made)
            names += block[max(0, first - start) : last + 1 - start]


def _shape_of(text: str) -> _Shape | None:
    """Where the numbers stand in a list of one bracket; None when they are not all as long."""
    prefix, _, ranges = text.partition("[")
    if _PREFIX.fullmatch(prefix) is None or not ranges.endswith("]") or _RANGES.fullmatch(ranges[:-1]) is None:
        return None
    offset = len(prefix) + 1
    found = [(match.span(1), match.span(2)) for match in _RANGE.finditer(ranges)]
    lengths = {end - start for spans in found for start, end in spans if start >= 0}
    if len(lengths) != 1:
        return None
    places = tuple((offset + low[0], offset + (high[0] if high[0] >= 0 else low[0])) for low, high in found)
    return _Shape(start=len(prefix), width=lengths.pop(), places=places)
