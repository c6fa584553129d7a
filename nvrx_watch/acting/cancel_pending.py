"""CANCEL_PENDING: release the waiting spares of a generation whose task 0 has ended. Touches: Slurm.

The one thing that `--act` does by itself. It never cancels a task that runs, one that cannot be named alone, or
anything of a generation whose task 0 may live.
"""

from __future__ import annotations

from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_watch.acting.cancelling import cancel_by_id, read_rows
from nvrx_watch.acting.deed import Deed, failed, nothing_left, refused, would_ask
from nvrx_watch.acting.desk import ActionDesk
from nvrx_watch.acting.own_jobs import doubt_about_end, is_unnamed, known_jobs, waits_by_own_id
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionRequest, Queue, Snapshot


def cancel_pending(request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    """Read the queue anew, cancel what waits, read again. Raises IdentityError when the job is not the chain's."""
    job, known = request.array_job_id, known_jobs(snapshot)
    if job is None or not isinstance(snapshot.queue, Queue) or not snapshot.queue.rows(job):
        return refused(f"this pass did not see job {job} as one of the chain's")
    if not snapshot.subject.is_ours and not has_cycle_records(snapshot):
        return refused("no generation has a cycle record: any array of jobs looks like this one")
    accounting = snapshot.accounting
    ends = accounting if isinstance(accounting, Unobserved) else known.accounted(accounting.get(job, ()), job)
    reading = desk.client.queue(snapshot.subject.user)
    if isinstance(reading, Unobserved):
        return failed(f"the queue could not be read again: {reading.reason}")
    rows = known.rows(reading, job)
    # The pass must have seen the end as well: what ended just now has not had its grace.
    doubt = doubt_about_end(job, snapshot.queue.rows(job), ends) or doubt_about_end(job, rows, ends)
    if doubt is not None:
        return refused(doubt)
    specs = tuple(row.spec for row in rows if waits_by_own_id(row))
    unnamed = any(is_unnamed(row) for row in rows)
    note = "tasks that Slurm does not name one by one were left alone" if unnamed else ""
    if not specs:
        return refused(note) if unnamed else nothing_left(f"nothing of job {job} waits any more")
    if desk.rights.dry_run:
        return would_ask(specs, note)
    deed = cancel_by_id(desk, specs, read_rows(desk, known, (job,)), pending_only=True).deed()
    if not unnamed:
        return deed
    state = ActionState.INCOMPLETE if deed.state is ActionState.DONE else deed.state
    return replace(deed, state=state, why="; ".join(text for text in (deed.why, note) if text))


def has_cycle_records(snapshot: Snapshot) -> bool:
    """Whether a launcher wrote records for a generation of a chain that nvrx-chain did not submit. Pure.

    A parameter sweep whose first task has ended looks like an orphaned generation otherwise, and sweeps are made to
    wait for each other by singleton, too.
    """
    return any(one.has_directory for one in snapshot.generations)
