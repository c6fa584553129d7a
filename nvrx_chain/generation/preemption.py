"""Whether a TERM came from a preemption: Slurm notes it on the job before it sends the signal. Touches: Slurm."""

from __future__ import annotations

import threading

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.background import Background
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.slurm.states import JobState

ANSWER_SECONDS = 2.0
"""KillWait may be as short as 5 s, and the closed file waits for this answer."""

POLL_SECONDS = 0.05

_NEVER = ("", "None", "N/A", "Unknown", "(null)")


def was_preempted(context: TaskContext) -> bool:
    """True when Slurm says so in time. A Slurm that does not answer leaves it a plain termination."""

    def look() -> bool:
        records = context.client.show_job(context.array_job_id)
        if records is None or isinstance(records, Unobserved):
            return False
        mine = [record for record in records if record.array_task_id == context.identity.array_task_id]
        return any(
            record.state is JobState.PREEMPTED or record.fields.get("PreemptTime", "") not in _NEVER for record in mine
        )

    question: Background[bool] = Background(context.spawn, "preemption")
    question.start(look)
    never = threading.Event()
    deadline = context.clock.monotonic() + ANSWER_SECONDS
    while context.clock.monotonic() < deadline:
        answer = question.take()
        if answer is not None:
            return answer.value is True
        context.clock.wait(never, POLL_SECONDS)
    return False
