"""One short job on a compute node, and the same probe there through srun; the job is cancelled by its id at the end.

sbatch first and srun into it: the id is known before anything waits, and Slurm's reason for waiting can be told.
Touches: Slurm (sbatch, squeue, srun, scancel), the scratch directory in the run directory.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from nvrx_chain.clock import Clock
from nvrx_chain.doctor.facts import Place, unpack_place
from nvrx_chain.doctor.model import NodeVisit
from nvrx_chain.doctor.probe import ANSWER, MARK, NODE_SECONDS, ProbeRequest, probe_argv
from nvrx_chain.errors import SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command import CommandResult, TimedOut, run_command, scrubbed_environment
from nvrx_chain.slurm.model import QueuedTask
from nvrx_chain.slurm.parse.replies import one_line
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit.children import running_child

JOB_NAME = "nvrx-doctor"
PROBE_SECONDS = max(NODE_SECONDS.values()) + 15.0
POLL_SECONDS = 0.5
GONE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitRequest:
    """Which node (None: any), how long to wait for it, and what is asked there by which interpreter."""

    node: str | None
    partition: str | None
    sbatch_args: tuple[str, ...]
    wait_seconds: float
    interpreter: str
    probe: ProbeRequest

    @property
    def life_seconds(self) -> int:
        """The job ends by itself after this, also when whoever asked for it was killed."""
        return math.ceil(self.wait_seconds + PROBE_SECONDS)

    def argv(self, stamp: str) -> tuple[str, ...]:
        """For sbatch. Not exclusive: a corner of a node tells as much."""
        where = (f"--nodelist={self.node}",) if self.node else ()
        which = (f"--partition={self.partition}",) if self.partition else ()
        return (
            "--parsable",
            f"--job-name={JOB_NAME}",
            f"--comment={stamp}",
            "--nodes=1",
            "--ntasks=1",
            f"--time={math.ceil(self.life_seconds / 60) + 1}",
            "--no-requeue",
            "--chdir=/",
            "--output=/dev/null",
            "--error=/dev/null",
            *which,
            *where,
            *self.sbatch_args,
            f"--wrap=exec sleep {self.life_seconds}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Whoever visits: Slurm, time, the caller's environment and user, and where progress is told."""

    client: SlurmClient
    clock: Clock
    environ: Mapping[str, str]
    user: str
    say: Callable[[str], None]

    def visit(self, request: VisitRequest) -> NodeVisit:
        """Never raises for what Slurm does; an interrupt cancels the job and goes on."""
        stamp = f"{JOB_NAME}:{secrets.token_hex(6)}"
        job, left, is_queued = None, None, True
        self.say("asking Slurm for a node")
        try:
            job = self.client.submit(request.argv(stamp)).array_job_id
            seen = self._look(request, job)
        except SlurmAmbiguous as error:
            seen = NodeVisit(place=Unobserved(str(error)))
        except (SlurmError, OSError) as error:
            is_queued = job is not None
            seen = NodeVisit(place=Unobserved("no job ran"), problem=str(error), mend=_REFUSED)
        finally:
            if is_queued:
                left = self._cancel(job, stamp)
        return dataclasses.replace(seen, job_id=job, left=left)

    def _look(self, request: VisitRequest, job: int) -> NodeVisit:
        began = self.clock.monotonic()
        task = self._wait_for_node(job, began + request.wait_seconds)
        waited = self.clock.monotonic() - began
        if isinstance(task, Unobserved):
            return NodeVisit(place=task)
        if task.state is JobState.RUNNING:
            self.say(f"looking at {task.nodelist}")
            return self._probe(request, job, task.nodelist, waited)
        if task.state.is_pending:
            return NodeVisit(
                place=Unobserved(
                    f"no node free within {request.wait_seconds:g} s, Slurm says {task.reason or 'nothing'}"
                ),
                mend="--timeout SECONDS waits longer, --partition and --on-node NODE choose another place",
            )
        return NodeVisit(
            place=Unobserved("the job ended before it was looked at"),
            node=task.nodelist or None,
            problem=f"a job of two lines ended as {task.raw_state} ({task.reason or 'no reason'})",
            mend="slurmd's log on that node says why; your generations would end the same way",
        )

    def _wait_for_node(self, job: int, deadline: float) -> QueuedTask | Unobserved:
        """The job's row once it is not pending any more, or at the deadline."""
        never = threading.Event()
        while True:
            queue = self.client.queue(self.user)
            row = queue if isinstance(queue, Unobserved) else queue.task(job, 0)
            if isinstance(row, QueuedTask) and not (row.state.is_pending or row.state is JobState.CONFIGURING):
                return row
            if self.clock.monotonic() >= deadline:
                return row if row is not None else Unobserved(f"squeue never showed job {job}; a cache in front of it?")
            self.clock.wait(never, POLL_SECONDS)

    def _probe(self, request: VisitRequest, job: int, node: str, waited: float) -> NodeVisit:
        argv = ("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--chdir=/", "--input=none")
        environ = scrubbed_environment(self.environ)[0]
        answer = msgspec.structs.replace(request.probe, part=ANSWER, seconds=PROBE_SECONDS)
        # The login node's side of the exchange of files, in a process that may hang.
        with running_child(probe_argv(sys.executable, answer), self.environ):
            began_at = self.clock.now().timestamp()
            done = run_command(
                (*argv, *probe_argv(request.interpreter, request.probe)), environ, timeout_seconds=PROBE_SECONDS
            )
            ended_at = self.clock.now().timestamp()
        place, problem, mend = _read_answer(done, request.interpreter, node)
        return NodeVisit(
            place=place,
            node=node,
            waited_seconds=waited,
            problem=problem,
            mend=mend,
            began_at=began_at,
            ended_at=ended_at,
        )

    def _cancel(self, job: int | None, stamp: str) -> str | None:
        """Cancel by id until a reading shows it gone. What may be left, in words; None when nothing is.

        Without an id nobody knows whether sbatch queued a job: it is looked for by its stamp.
        """
        never, deadline = threading.Event(), self.clock.monotonic() + GONE_SECONDS
        targets = set() if job is None else {job}
        while True:
            refusal = next((said for said in map(self._scancel, sorted(targets)) if said), None)
            queue = self.client.queue(self.user)
            if isinstance(queue, Unobserved):
                refusal = queue.reason
            else:
                mine = [row for row in queue.tasks if row.comment == stamp or row.array_job_id == job]
                targets |= {row.array_job_id for row in mine}
                if targets and all(_is_over(row) for row in mine):
                    return None
            if self.clock.monotonic() >= deadline:
                return f"{_named(targets)}: {refusal or 'squeue still shows it'}"
            self.clock.wait(never, POLL_SECONDS)

    def _scancel(self, job: int) -> str | None:
        try:
            self.client.cancel([str(job)])
        except SlurmError as error:
            return str(error)
        return None


_REFUSED = "--partition and --sbatch-arg give sbatch what your site asks for, such as --sbatch-arg=--account=NAME"


def _named(targets: set[int]) -> str:
    if targets:
        return f"job {' '.join(str(job) for job in sorted(targets))} may still be there"
    return f"sbatch may have queued a job {JOB_NAME} all the same"


def _is_over(row: QueuedTask) -> bool:
    return row.state.is_terminal or row.state is JobState.COMPLETING


def _read_answer(
    done: CommandResult | TimedOut, interpreter: str, node: str
) -> tuple[Place | Unobserved, str | None, str | None]:
    """(what the node said, what is bad, how to mend it)."""
    if isinstance(done, TimedOut):
        return Unobserved(f"{node} did not answer within {done.seconds:.0f} s"), None, _NO_WAY_BACK
    text = done.stdout.encode("utf-8", errors="surrogateescape")
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is not None:
        try:
            return unpack_place(line[len(MARK) :]), None, None
        except msgspec.DecodeError as error:
            return Unobserved(f"the answer of {node} cannot be read: {error}"), None, None
    said = one_line(done.stderr) or f"srun ended with {done.returncode}"
    if "No module named" in said or "No such file or directory" in said or "can't open file" in said:
        return Unobserved("nvrx-chain does not run there"), f"{interpreter} does not start there: {said}", _SAME_PLACE
    return Unobserved("srun brought no answer back"), f"srun on {node}: {said}", _NO_WAY_BACK


_SAME_PLACE = "install nvrx-chain on a file system that every node sees, under the same path"
_NO_WAY_BACK = "srun on the login node needs connections back from the compute nodes (SrunPortRange, firewalls)"
