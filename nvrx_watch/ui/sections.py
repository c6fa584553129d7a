"""The upper part of the screen: who it is, the generations, the current one, its cycles, how far training is. Pure."""

from __future__ import annotations

from nvrx_chain.clock import render_age
from nvrx_chain.errors import Unobserved
from nvrx_watch.ui.cells import Span, Spans, shorten_middle, spans_width
from nvrx_watch.ui.marks import ChainWord, MarkKind, TaskFold
from nvrx_watch.ui.rows import LABEL_WIDTH, NARROW, Rank, Row, labelled, plain
from nvrx_watch.ui.screen_generation import CurrentGeneration, NodeFold, Spares
from nvrx_watch.ui.screen_model import Progress, ScreenModel
from nvrx_watch.ui.strip import flow, strip_rows, timeline_rows, wrap
from nvrx_watch.ui.words import UNKNOWN, render_rate, seconds_since

_STATE_STYLES = {
    ChainWord.RUNNING: "bold green",
    ChainWord.HELD: "bold yellow",
    ChainWord.RAN_DRY: "bold red",
    ChainWord.UNKNOWN: "bold yellow",
    ChainWord.NOTHING_LISTED: "bold yellow",
}
_MOST_REASONS = 2


def header_rows(model: ScreenModel, width: int, most: int) -> list[Row]:
    """State and name, verdict or hold, and where the chain lives."""
    rows = [Row(rank=Rank.TITLE, spans=_title(model, width))]
    room = max(1, width - LABEL_WIDTH)
    if model.run_directory is not None:
        where = plain(shorten_middle(model.run_directory, room))
        rows += labelled("directory", [where], Rank.DIRECTORY)
    if model.verdict is not None:
        rows += labelled("verdict", wrap(model.verdict, room, most, "bold"), Rank.HOLD, Rank.MORE_HOLD)
    if model.hold is not None:
        since = f"{render_age(seconds_since(model.held_at, model.now))} " if model.held_at is not None else ""
        rows += labelled("held", wrap(f"{since}{model.hold}", room, most, "bold yellow"), Rank.HOLD, Rank.MORE_HOLD)
    return rows


def chain_rows(model: ScreenModel, width: int, most: int) -> list[Row]:
    """The strip of generations."""
    if not model.generations:
        return labelled("chain", [plain(_no_generations(model))], Rank.CHAIN)
    current = model.current.array_job_id if model.current is not None else None
    lines = strip_rows(model.generations, current, max(1, width - LABEL_WIDTH), most)
    return labelled("chain", lines, Rank.CHAIN, Rank.MORE_CHAIN)


def generation_rows(model: ScreenModel, width: int, most: int) -> list[Row]:
    """The current generation: tasks by state, nodes, spares."""
    one, room = model.current, max(1, width - LABEL_WIDTH)
    if one is None:
        return []
    label = "last" if one.kind is MarkKind.ENDED else "current"
    rows = labelled(label, flow(_generation_parts(one, model), room, most), Rank.TASKS, Rank.SPARES)
    if one.kind is MarkKind.ENDED:
        return rows
    sick = (Span("  unwell: " + ", ".join(one.sick), "bold yellow"),) if one.sick else ()
    if one.active is not None:
        # What Slurm calls unwell is worth more than the end of a long list of nodes.
        left = max(LABEL_WIDTH, room - spans_width(sick))
        rows += labelled("active", [(*_nodes(one.active, left), *sick)], Rank.ACTIVE)
    if one.standby is not None:
        rows += labelled("standby", [_nodes(one.standby, room)], Rank.STANDBY)
    return rows + labelled("spares", [plain(_spares(one.spares))], Rank.SPARES)


def cycle_rows(model: ScreenModel, width: int) -> list[Row]:
    """The cycles of the current generation, two rows."""
    if model.current is None:
        return []
    if not isinstance(model.cycles, tuple) or not model.cycles:
        return labelled(
            "cycles", [plain(UNKNOWN if isinstance(model.cycles, Unobserved) else model.no_cycles)], Rank.CYCLES
        )
    bars, labels = timeline_rows(model.cycles, max(1, width - LABEL_WIDTH), model.now)
    return labelled("", [bars], Rank.BARS) + labelled("cycles", [labels], Rank.CYCLES)


def progress_rows(model: ScreenModel, width: int, most: int) -> list[Row]:
    """Checkpoint, iteration, rate, and the time to the wall."""
    progress, room = model.progress, max(1, width - LABEL_WIDTH)
    parts = [_saved(progress, model)]
    if isinstance(progress.trained, Unobserved):
        parts.append(plain(f"trains {UNKNOWN}", "yellow"))
    elif progress.trained is not None:
        rate = f" at {render_rate(progress.per_second)}" if progress.per_second is not None else ""
        parts.append(plain(f"trains {progress.trained}{rate}"))
    if progress.target is not None:
        parts.append(plain(f"target {progress.target}"))
    rows = labelled("iteration", flow(parts, room, most), Rank.ITERATION, Rank.MORE_ITERATION)
    if progress.wall_at is not None:
        left = (progress.wall_at - model.now).total_seconds()
        style = "bold yellow" if left <= 0 else ""
        text = f"in {render_age(left)}" if left > 0 else f"was due {render_age(-left)} ago"
        rows += labelled("wall", [plain(text, style)], Rank.WALL)
    elif progress.wall_why is not None:
        rows += labelled("wall", [plain(f"{UNKNOWN} ({progress.wall_why})")], Rank.WALL)
    return rows


def footer_rows(model: ScreenModel) -> list[Row]:
    """What the site lacks, and what was skipped inside sources that did answer."""
    lines = [plain(f"without {name}: {why}") for name, why in model.without]
    lines += [plain(note) for note in model.notes]
    return labelled("note", lines, Rank.NOTES)


def _title(model: ScreenModel, width: int) -> Spans:
    """State first: it must survive a terminal of any width. The age of the pass stands at the right."""
    age = f"pass {render_age(seconds_since(model.taken_at, model.now))} ago"
    state = model.state.value.upper()
    of = f" of {model.user}" if width >= NARROW else ""
    where = f" on {model.cluster}" if model.cluster is not None and width >= NARROW else ""
    room = width - len(state) - len(age) - 4
    who = shorten_middle(f"{model.name}{of}{where}", max(4, room))
    head = (Span(state, _STATE_STYLES.get(model.state, "bold")), Span("  "), Span(who, "bold"))
    blank = width - spans_width(head) - len(age)
    return (*head, Span(" " * blank), Span(age, "dim")) if blank >= 2 else head


def _no_generations(model: ScreenModel) -> str:
    return f"{UNKNOWN}" if model.state is ChainWord.UNKNOWN else "no array job is on record"


def _generation_parts(one: CurrentGeneration, model: ScreenModel) -> list[Spans]:
    head = f"{one.array_job_id} ({one.position} of {one.of})"
    parts = [plain(head, "bold")]
    if one.kind is MarkKind.ENDED:
        return [*parts, plain(one.word)]
    if one.started_at is not None:
        parts.append(plain(f"up {render_age(seconds_since(one.started_at, model.now))}"))
    if one.phase is not None:
        parts.append(plain(one.phase, "green"))
    if one.tasks is None:
        return [*parts, plain(f"tasks {UNKNOWN}", "yellow")]
    return [*parts, *(plain(_task_text(fold)) for fold in one.tasks)]


def _task_text(fold: TaskFold) -> str:
    which = f" {fold.indices}" if fold.indices else ""
    more = "+" if fold.at_least else ""
    reasons = f" ({', '.join(fold.reasons[:_MOST_REASONS])})" if fold.reasons else ""
    return f"{fold.count}{more} {fold.state}{which}{reasons}"


def _nodes(fold: NodeFold, room: int) -> Spans:
    count = f" ({fold.count})" if fold.count else ""
    return plain(shorten_middle(fold.text, max(1, room - len(count))) + count)


def _spares(spares: Spares) -> str:
    hot = UNKNOWN if spares.hot is None else str(spares.hot)
    cold = UNKNOWN if spares.cold is None else f"{spares.cold}{'+' if spares.at_least else ''}"
    hot_of = f" of {spares.hot_of}" if spares.hot_of is not None else ""
    cold_of = f" of {spares.cold_of}" if spares.cold_of is not None else ""
    return f"hot {hot}{hot_of}, cold {cold}{cold_of}"


def _saved(progress: Progress, model: ScreenModel) -> Spans:
    """The checkpoint and for how long this watcher has seen no other."""
    if isinstance(progress.saved, Unobserved):
        was = f" (was {progress.last_saved})" if progress.last_saved is not None else ""
        return plain(f"saved {UNKNOWN}{was}", "yellow")
    age = render_age(seconds_since(progress.moved_at, model.now)) if progress.moved_at is not None else None
    # Not seen to change: the value was there when this watcher first looked, and may be older.
    least = "" if progress.moved_seen else "over "
    if progress.saved is None:
        return plain("nothing saved yet" + (f" for {least}{age}" if age is not None else ""), "bold")
    return (Span(f"saved {progress.saved}", "bold"), Span(f" {least}{age} ago" if age is not None else ""))
