from __future__ import annotations

from collections.abc import Sequence

from nvrx_watch.ui.cells import Spans
from nvrx_watch.ui.marks import GenerationMark, MarkKind
from nvrx_watch.ui.screen_model import CycleMark
from nvrx_watch.ui.strip import strip_rows, timeline_rows
from tests.unit.watch.build import NOW, ago


def text(rows: Sequence[Spans]) -> list[str]:
    return ["".join(span.text for span in row) for row in rows]


def mark(job: int, kind: MarkKind, word: str | None = None) -> GenerationMark:
    return GenerationMark(array_job_id=job, sequence=job, kind=kind, word=word or kind.value)


def chain(ended: int, queued: int) -> list[GenerationMark]:
    marks = [mark(job, MarkKind.ENDED, "walltime" if job % 32 == 0 else "failed") for job in range(ended)]
    marks.append(mark(ended, MarkKind.RUNNING))
    return marks + [mark(ended + 1 + job, MarkKind.QUEUED) for job in range(queued)]


def test_a_short_chain_is_shown_whole() -> None:
    assert text(strip_rows(chain(2, 1), 2, 80, 1)) == ["0 walltime > 1 failed > [2 running] > 3 queued"]


def test_a_hundred_generations_fold_into_counts_by_outcome() -> None:
    (row,) = text(strip_rows(chain(96, 3), 96, 80, 1))
    assert row == "… 96 ended (93 failed, 3 walltime) > [96 running] > 3 queued"


def test_as_many_of_the_newest_as_fit_are_shown() -> None:
    (row,) = text(strip_rows(chain(96, 3), 96, 100, 1))
    assert row == "… 95 ended (92 failed, 3 walltime) > 95 failed > [96 running] > 97 queued > +2 queued"


def test_unknown_generations_fold_too() -> None:
    marks = [mark(job, MarkKind.UNKNOWN, "?") for job in range(100)]
    assert text(strip_rows(marks, None, 30, 1)) == ["0 ? > 1 ? > 2 ? > +97 unknown"]


def cycle(number: int, seconds: float | None, *, is_open: bool = False) -> CycleMark:
    started_at = ago(240) if is_open else None
    return CycleMark(label=f"#{number}", started_at=started_at, seconds=seconds, is_open=is_open)


def test_a_longer_cycle_has_a_longer_bar_and_the_newest_is_last() -> None:
    bars, labels = text(timeline_rows([cycle(0, 720), cycle(1, 45), cycle(2, None, is_open=True)], 60, NOW))
    assert labels == "#0 12m   #1 45s #2 4m+"
    assert bars == "━━━━━━━━ ━━━    ━━━━━━>"


def test_the_oldest_cycles_are_counted_when_room_is_short() -> None:
    _, labels = text(timeline_rows([cycle(number, 60) for number in range(200)], 40, NOW))
    assert labels == "…197 earlier #197 1m #198 1m #199 1m"


def test_a_cycle_without_times_is_unknown_not_zero() -> None:
    bars, labels = text(timeline_rows([cycle(0, None)], 40, NOW))
    assert (bars, labels) == ("", "#0 ?")


def test_a_cycle_of_a_year_does_not_fill_the_screen() -> None:
    bars, _ = text(timeline_rows([cycle(0, 3e7)], 80, NOW))
    assert len(bars) == 20
