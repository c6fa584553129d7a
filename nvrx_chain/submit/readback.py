"""Is the queued job the one that was asked for? Plugins and variables of a site change jobs on their way in. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.slurm.model import JobDetail
from nvrx_chain.submit.plan import PlannedGeneration, SubmitPlan

_NO_DEPENDENCY = ("", "(null)")


def lacks_singleton(record: JobDetail) -> bool:
    """Whether the record does not (any longer) wait as a singleton."""
    return "singleton" not in record.dependency


def find_changes(
    plan: SubmitPlan, generation: PlannedGeneration, records: tuple[JobDetail, ...], *, has_predecessor: bool
) -> tuple[str, ...]:
    """What differs, one short sentence per option; empty when the job is as asked for or was not seen.

    `has_predecessor`: an earlier generation is still in the queue. Slurm forgets `singleton` once it is fulfilled, so
    its absence says nothing about a generation without one.
    """
    changes = [change for record in records for change in _record_changes(plan, generation, record, has_predecessor)]
    throttles = {record.array_task_throttle for record in records} - {None}
    if records and plan.manifest.shape.total > 1 and throttles != {plan.manifest.shape.throttle}:
        changes.append(f"--array: the job has the throttle {', '.join(map(str, throttles)) or 'none'}")
    return tuple(dict.fromkeys(changes))


def _record_changes(
    plan: SubmitPlan, generation: PlannedGeneration, record: JobDetail, has_predecessor: bool
) -> Iterator[str]:
    manifest = plan.manifest
    if record.requeue is not False:
        yield f"--no-requeue: the job has Requeue={record.fields.get('Requeue', 'unknown')}"
    if record.name != manifest.job_name:
        yield f"--job-name: the job is called {record.name!r}"
    if record.comment != generation.stamp:
        yield f"--comment: the job has {record.comment!r}"
    if record.work_dir != manifest.run_directory:
        yield f"--chdir: the job runs in {record.work_dir!r}"
    if lacks_singleton(record) and (has_predecessor or record.dependency not in _NO_DEPENDENCY):
        yield f"--dependency: the job has {record.dependency or 'none'}, not singleton"
