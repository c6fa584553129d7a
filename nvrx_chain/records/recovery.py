"""From the marks of all launchers to how long each step of a recovery took. Pure.

Every launcher notes when it knew of the failure, so each measures on its own monotonic clock from there; only the
moment that the word took to travel (milliseconds) is left out. A launcher that came later has no such note: its marks
are placed by wall clock, which two nodes may have set differently, and are called approximate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvrx_chain.records.marks import Mark, MarkName

_OF_WHO_TRAINS = frozenset({MarkName.JOINED, MarkName.ROUND_FILLED})
"""A spare that joins minutes later is not what a round waited for."""
STEPS = tuple(name for name in MarkName if name is not MarkName.FAILURE_DETECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How the job came to train in one cycle.

    `seconds`: from the failure until the last launcher had done a step; of the first cycle from its first mark.
    `approximate`: the steps for which two wall clocks were compared.
    """

    cycle: int
    began_at: float
    node: str
    rank: int | None
    detail: str
    seconds: Mapping[MarkName, float]
    approximate: Collection[MarkName]
    iteration: int | None
    launchers: int
    """That started workers."""

    @property
    def is_recovered(self) -> bool:
        """Whether a step was committed: a process that started is not training."""
        return MarkName.FIRST_STEP in self.seconds


def fold_marks(marks: Iterable[Mark]) -> tuple[Recovery, ...]:
    """One entry per cycle, in order."""
    cycles: defaultdict[int, list[Mark]] = defaultdict(list)
    for mark in marks:
        cycles[mark.cycle].append(mark)
    return tuple(_fold_cycle(cycle, found) for cycle, found in sorted(cycles.items()))


def _fold_cycle(cycle: int, marks: Sequence[Mark]) -> Recovery:
    failures = [mark for mark in marks if mark.name is MarkName.FAILURE_DETECTED]
    first = _choose_first(failures or marks)
    # The moment when each launcher knew, in its own time.
    knew: dict[str, Mark] = {}
    for mark in failures or [first]:
        if mark.agent not in knew or mark.at < knew[mark.agent].at:
            knew[mark.agent] = mark
    trains = {mark.agent for mark in marks if mark.name is MarkName.WORKERS_STARTED}
    seconds: dict[MarkName, float] = {}
    approximate: set[MarkName] = set()
    for mark in marks:
        if mark.name is MarkName.FAILURE_DETECTED:
            continue
        if mark.name in _OF_WHO_TRAINS and trains and mark.agent not in trains:
            continue
        elapsed, is_exact = _measure(mark, knew.get(mark.agent), first)
        seconds[mark.name] = max(elapsed, seconds.get(mark.name, 0.0))
        if not is_exact:
            approximate.add(mark.name)
    steps = [mark for mark in marks if mark.name is MarkName.FIRST_STEP and mark.iteration is not None]
    return Recovery(
        cycle=cycle,
        began_at=first.at,
        node=first.node,
        rank=first.rank,
        detail=first.detail or "",
        seconds={name: seconds[name] for name in STEPS if name in seconds},
        approximate=tuple(name for name in STEPS if name in approximate),
        iteration=max((mark.iteration for mark in steps if mark.iteration is not None), default=None),
        launchers=len(trains),
    )


def _choose_first(marks: Sequence[Mark]) -> Mark:
    """The earliest; among failures one that names its rank: the launcher that saw it, not one that heard of it.

    Their wall clocks may differ by more than the word took to travel.
    """
    return min(marks, key=lambda mark: (mark.rank is None and mark.name is MarkName.FAILURE_DETECTED, mark.at))


def _measure(mark: Mark, knew: Mark | None, first: Mark) -> tuple[float, bool]:
    """Seconds after the failure, and whether no two wall clocks were compared for it."""
    if knew is not None and knew.boot == mark.boot:
        return max(0.0, mark.monotonic - knew.monotonic), True
    if mark.boot == first.boot and mark.node == first.node:
        # Another launcher of the same node: one clock.
        return max(0.0, mark.monotonic - first.monotonic), True
    return max(0.0, mark.at - first.at), False
