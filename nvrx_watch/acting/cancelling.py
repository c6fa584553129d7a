"""Cancelling tasks by their own ids, and believing only what a later reading of the queue shows. Touches: Slurm.

scancel says yes when nothing matched and may fail after it worked, so neither counts. Nothing is asked twice in one
pass: the next pass looks anew, and asks anew if it still finds the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec

from nvrx_chain.errors import IdentityError, SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch.acting.deed import Deed
from nvrx_watch.acting.desk import ActionDesk
from nvrx_watch.acting.own_jobs import KnownJobs
from nvrx_watch.action_model import ActionState

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SLOW_POLL_SECONDS = 3.0
QUICK_POLLS = 4
SPECS_PER_CALL = 200

ReadRows = Callable[[], tuple[QueuedTask, ...] | Unobserved]
"""A new reading of the queue: the chain's own rows of the array jobs at hand."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What a reading after the cancel shows. `started`: asked for while they waited, and running by then.

    `refusal`: what scancel said, empty when it said yes. `blind`: why there was no such reading.
    """

    asked: tuple[str, ...]
    gone: tuple[str, ...] = ()
    still_there: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    refusal: str = ""
    blind: str = ""

    def deed(self) -> Deed:
        """What came of it, as a reading shows it and not as scancel said."""
        texts = [self.refusal] if self.refusal else []
        if self.blind:
            texts.append(f"the queue could not be read afterwards: {self.blind}")
        if self.started:
            texts.append(f"left alone, started meanwhile: {' '.join(self.started)}")
        failed = self.blind or (self.refusal and self.still_there)
        state = ActionState.FAILED if failed else ActionState.INCOMPLETE if self.still_there else ActionState.DONE
        return Deed(state=state, asked=self.asked, gone=self.gone, still_there=self.still_there, why="; ".join(texts))


def read_rows(desk: ActionDesk, known: KnownJobs, array_job_ids: Sequence[int]) -> ReadRows:
    """A reader of these array jobs; rows that are not the chain's make it blind: nothing is said about such a job."""

    def read() -> tuple[QueuedTask, ...] | Unobserved:
        reading = desk.client.queue(known.subject.user)
        if isinstance(reading, Unobserved):
            return reading
        try:
            return tuple(row for job in array_job_ids for row in known.rows(reading, job))
        except IdentityError as error:
            return Unobserved(str(error))

    return read


def cancel_by_id(desk: ActionDesk, specs: Sequence[str], read: ReadRows, *, pending_only: bool) -> Cancelled:
    """Ask once for each of these tasks, then read until they are gone, at most `verify_seconds`.

    With `pending_only` Slurm itself leaves alone what has started since it was read.
    """
    asked = tuple(specs)
    log.info("cancelling tasks=%s pending_only=%s", asked, pending_only)
    refusal = _ask(desk, asked, pending_only)
    never, polls = threading.Event(), 0
    give_up_at = desk.clock.monotonic() + desk.verify_seconds
    while True:
        rows = read()
        waited_for = asked if isinstance(rows, Unobserved) else _waited_for(asked, rows, pending_only)
        polls += 1
        pause = POLL_SECONDS if polls < QUICK_POLLS else SLOW_POLL_SECONDS
        if not waited_for or desk.clock.monotonic() + pause > give_up_at:
            return _result(asked, rows, refusal, pending_only)
        desk.clock.wait(never, pause)


def blocks(row: QueuedTask) -> bool:
    """Whether it holds a node and keeps singleton from starting the next generation; COMPLETING does not."""
    return not (row.state.is_terminal or row.state.is_pending or row.state is JobState.COMPLETING)


def _ask(desk: ActionDesk, specs: Sequence[str], pending_only: bool) -> str:
    """Ask for all of them; what went wrong. A refusal stops no other call, an unclear answer does: look first."""
    refusals: list[str] = []
    for at in range(0, len(specs), SPECS_PER_CALL):
        try:
            desk.client.cancel(specs[at : at + SPECS_PER_CALL], pending_only=pending_only)
        except SlurmAmbiguous as error:
            refusals.append(str(error))
            break
        except SlurmError as error:
            refusals.append(str(error))
    return "; ".join(refusals)


def _waited_for(asked: Sequence[str], rows: Sequence[QueuedTask], pending_only: bool) -> tuple[str, ...]:
    """What may still go. A task that started meanwhile does not: it was asked for as a waiting one."""
    alive = set(_still_there(asked, rows))
    if pending_only:
        alive -= {row.spec for row in rows if blocks(row)}
    return tuple(spec for spec in asked if spec in alive)


def _still_there(asked: Sequence[str], rows: Sequence[QueuedTask]) -> tuple[str, ...]:
    shown = {row.spec for row in rows if row.state.is_pending or blocks(row)}
    # A list that was cut short may hide any task of its array.
    hiding = {str(row.array_job_id) for row in rows if row.array_task_id is None and not row.state.is_terminal}
    return tuple(spec for spec in asked if spec in shown or spec.partition("_")[0] in hiding)


def _result(
    asked: tuple[str, ...], rows: tuple[QueuedTask, ...] | Unobserved, refusal: str, pending_only: bool
) -> Cancelled:
    if isinstance(rows, Unobserved):
        # Unknown is never gone, nor known to be there.
        return Cancelled(asked=asked, refusal=refusal, blind=rows.reason)
    there = _still_there(asked, rows)
    running = {row.spec for row in rows if blocks(row)} if pending_only else set()
    return Cancelled(
        asked=asked,
        gone=tuple(spec for spec in asked if spec not in there),
        still_there=there,
        started=tuple(spec for spec in there if spec in running),
        refusal=refusal,
    )
