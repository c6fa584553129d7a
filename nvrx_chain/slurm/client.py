"""What the rest of the project may ask of Slurm. Every answer is one of: a value, None, or `Unobserved`.

Reads never raise for a Slurm that is down, they return `Unobserved(reason)`; None or an empty tuple means
that Slurm answered and there is none. Writes raise: `SlurmError` when Slurm refused, `SlurmAmbiguous` when it
may have done it. A write that returned was *accepted*, which proves nothing: the caller reads the queue again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import (
    AccountedTask,
    ClusterConfig,
    JobDetail,
    Node,
    Partition,
    QueueReading,
    SubmitLimits,
    Submitted,
)


class SlurmClient(Protocol):
    """Contract of every client; tests/unit/slurm/test_client_contract.py runs it on each."""

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        """Every task of `user` (None: of everybody), all states, hidden partitions too, arrays expanded."""
        ...

    def accounting(self, array_job_ids: Sequence[int], since: datetime) -> tuple[AccountedTask, ...] | Unobserved:
        """What sacct knows about these array jobs. Empty is "it answered, no rows", which is not "gone"."""
        ...

    def show_job(self, job_id: int) -> tuple[JobDetail, ...] | Unobserved | None:
        """All live records of a job or array job; None when Slurm no longer (or never) knew the id."""
        ...

    def batch_script(self, job_id: int) -> str | Unobserved | None:
        """The batch script that Slurm keeps of a job; None when it knows no such job or none of it.

        Slurm shows it to the job's owner and to operators only: to anybody else it is `Unobserved`.
        """
        ...

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        """The named nodes (empty: all). A name that Slurm does not know is absent from the mapping."""
        ...

    def config(self) -> ClusterConfig | Unobserved:
        """The running configuration of the controller."""
        ...

    def partitions(self) -> tuple[Partition, ...] | Unobserved:
        """All partitions, hidden ones too."""
        ...

    def submit_limits(self, user: str) -> SubmitLimits | Unobserved:
        """How many jobs the associations of a user and the QOS allow. Asks the accounting database."""
        return Unobserved("this client does not ask for limits")

    def submit(self, argv: Sequence[str]) -> Submitted:
        """Run sbatch with these arguments (without the word `sbatch`); `--parsable` is the caller's.

        Raises SlurmError when sbatch refused the job, SlurmAmbiguous when it may have been queued anyway.
        """
        ...

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        """scancel jobs or tasks by id (`123`, `123_4`). Cancelling what is gone is no error."""
        ...

    def nudge(self, spec: str) -> None:
        """Make Slurm look at a task's node: a harmless `scancel --batch --signal=CONT`. Failure is no error.

        May take 5 s although the signal went out at once (22.05, while tasks of the array wait). Not for a task that
        is pending: it has no node to look at.
        """
        ...

    def hold(self, specs: Sequence[str]) -> None:
        """Hold pending jobs or array jobs by id."""
        ...

    def exclude(self, spec: str, nodes: Sequence[str]) -> None:
        """Keep the pending tasks of a job away from exactly these nodes; none lets them run anywhere again.

        Slurm refuses it for the tasks of the array that run, and does it for the others.
        """
        ...

    def release(self, specs: Sequence[str]) -> None:
        """Release held jobs or array jobs by id."""
        ...
