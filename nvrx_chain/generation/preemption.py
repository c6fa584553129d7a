"""Whether a TERM came from a preemption: Slurm notes it on the job before it sends the signal. Touches: Slurm."""

from __future__ import annotations

import threading

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.slurm.states import JobState

ANSWER_SECONDS = 2.0
"""KillWait may be as short as 5 s, and the closed file waits for this answer."""

_NEVER = ("", "None", "N/A", "Unknown", "(null)")


def was_preempted(context: TaskContext) -> bool:
    """True when Slurm says so in time. A Slurm that does not answer leaves it a plain termination."""
    found: list[bool] = []

    def look() -> None:
        records = context.client.show_job(context.array_job_id)
        if records is None or isinstance(records, Unobserved):
            return
        for record in records:
            if record.array_task_id == context.identity.array_task_id:
                noted = record.fields.get("PreemptTime", "") not in _NEVER
                found.append(noted or record.state is JobState.PREEMPTED)

    thread = threading.Thread(target=look, name="preemption", daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return any(found)
