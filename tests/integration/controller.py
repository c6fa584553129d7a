"""A slurmctld that goes away and comes back, and what it remembers of its jobs. Touches: the cluster's controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nvrx_chain.sandbox import FaultKind, FaultReport
from tests.integration.cluster import Cluster, wait_for

SAVES_SECONDS = 120  # a save follows a change within 5 s on an idle machine


@contextmanager
def controller_away(cluster: Cluster, *, kill: bool = False) -> Iterator[FaultReport]:
    """slurmctld is frozen or dead, checked by a client that gets no answer; and back."""
    report = cluster.sandbox.stop_controller(kill=kill)
    try:
        assert (report.kind, len(report.pids) >= 1) == (FaultKind.STOP_CONTROLLER, True), report
        assert cluster.run(["squeue", "-h"], check=False).returncode != 0, "the controller answers"
        yield report
    finally:
        cluster.sandbox.start_controller()


def wait_for_saved_jobs(cluster: Cluster, job: int) -> None:
    """Until the controller has written down all that it knows now; `job` is one that it knows.

    One that is killed before forgets what is new: jobs and their ids, a hold, a cancel. A save that is under way may
    lack the newest change, so the second one from now counts; each update asks for one.
    """
    saved = cluster.sandbox.directory / "nvrx-sandbox" / "state" / "job_state"
    seen: list[int] = []

    def saved_twice() -> bool:
        cluster.run(["scontrol", "update", f"jobid={job}", "admincomment=save"])
        try:
            written = saved.stat().st_mtime_ns
        except FileNotFoundError:
            return False  # between the old file and the new one
        if written not in seen:
            seen.append(written)
        return len(seen) == 3

    wait_for(saved_twice, SAVES_SECONDS, f"two more saves of {saved}")
