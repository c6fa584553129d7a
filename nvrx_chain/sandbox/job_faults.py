"""Faults of a job whose nodes live on: the batch shell of an array task, its whole batch step, one training rank.

The victim is found by what the kernel says of it: it lives in a node of this sandbox, and the environment that it got
at its exec names the array job (and the array task, or the rank). Touches: those processes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox.bringup import Site
from nvrx_chain.sandbox.faults import FaultKind, FaultReport, kill_all, stop_all
from nvrx_chain.sandbox.members import NodeView, descendants, describe, find_node
from nvrx_chain.sandbox.procfs import Process, find_process, list_processes, read_arguments, read_environment

RUN_TASK_WORD = "run-task"


class BatchScope(enum.Enum):
    """How much of a batch step dies."""

    SHELL = "shell"
    WHOLE_STEP = "whole-batch-step"
    RUN_TASK = "run-task"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStep:
    """The batch step of one array task: the node, the shell that Slurm started, and all that is part of the step."""

    node: str
    shell: Process
    processes: tuple[Process, ...]


def kill_batch(site: Site, array_job_id: int, array_task_id: int, scope: BatchScope) -> FaultReport:
    """SIGKILL in the batch step of one array task; node, slurmd and slurmstepd live on.

    Raises SandboxError when the task runs no batch step here, or, for RUN_TASK, not exactly one such process.
    """
    task = f"task {array_task_id} of array job {array_job_id}"
    doing = f"killing {task}"
    step = _require_step(site, array_job_id, array_task_id, doing)
    hit_at = site.clock.now()
    if scope is BatchScope.WHOLE_STEP:
        # Stopped first, so that none of them sees another one die.
        victims: Sequence[Process] = stop_all(
            site.clock, lambda: _find_step_processes(site, step, array_job_id, array_task_id), doing=doing
        )
    elif scope is BatchScope.RUN_TASK:
        victims = [_require_run_task(step, doing)]
    else:
        victims = [step.shell]
    kill_all(site.clock, victims, doing=doing)
    return FaultReport(
        kind=FaultKind.KILL_TASK_0,
        target=f"{task} on {step.node} ({scope.value})",
        pids=tuple(victim.pid for victim in victims),
        hit_at=hit_at,
        verified=f"{len(victims)} dead, {_require_alive(site, step.node, doing)}",
    )


def kill_rank(site: Site, array_job_id: int, rank: int) -> FaultReport:
    """SIGKILL of the training process that has RANK=`rank` in an array job.

    Raises SandboxError unless there is exactly one (children that inherited the variable do not count).
    """
    doing = f"killing rank {rank} of array job {array_job_id}"
    node, victim = _require_rank(site, array_job_id, rank, doing)
    hit_at = site.clock.now()
    kill_all(site.clock, [victim], doing=doing)
    return FaultReport(
        kind=FaultKind.KILL_RANK,
        target=f"rank {rank} of array job {array_job_id} on {node}",
        pids=(victim.pid,),
        hit_at=hit_at,
        verified=f"pid {victim.pid} is dead, {_require_alive(site, node, doing)}",
    )


def find_batch_step(site: Site, array_job_id: int, array_task_id: int) -> BatchStep | None:
    """The batch step of an array task; None when it runs on no live node of the sandbox."""
    for view in _live_nodes(site):
        for process in view.inside:
            environ = read_environment(process.pid)
            if _is_of_task(environ, array_job_id, array_task_id) and _is_batch_shell(process, environ):
                step = BatchStep(node=view.name, shell=process, processes=())
                parts = _find_step_processes(site, step, array_job_id, array_task_id)
                return BatchStep(node=view.name, shell=process, processes=parts)
    return None


def find_ranks(site: Site, array_job_id: int, rank: int) -> tuple[tuple[str, Process], ...]:
    """Every process of an array job that was started as this rank, with its node; not the children of one."""
    found = []
    for view in _live_nodes(site):
        same = [process for process in view.inside if _is_rank(process, array_job_id, rank)]
        pids = {process.pid for process in same}
        found += [(view.name, process) for process in same if process.parent not in pids]
    return tuple(found)


def _require_step(site: Site, array_job_id: int, array_task_id: int, doing: str) -> BatchStep:
    step = find_batch_step(site, array_job_id, array_task_id)
    if step is None:
        raise SandboxError(f"{doing}: no node of this sandbox runs its batch shell", hint="see squeue")
    return step


def _require_run_task(step: BatchStep, doing: str) -> Process:
    named = [process for process in step.processes if RUN_TASK_WORD in read_arguments(process.pid)[1:]]
    return _require_one(_topmost(named), f"{doing}: want one {RUN_TASK_WORD} process in the batch step")


def _require_rank(site: Site, array_job_id: int, rank: int, doing: str) -> tuple[str, Process]:
    found = find_ranks(site, array_job_id, rank)
    victim = _require_one([process for _, process in found], f"{doing}: want one such process")
    return found[0][0], victim


def _require_one(processes: Sequence[Process], message: str) -> Process:
    if len(processes) != 1:
        raise SandboxError(
            f"{message}, found {len(processes)}",
            part="; ".join(describe(process) for process in processes) or None,
            hint="see `squeue`: repeat it while the job's processes run",
        )
    return processes[0]


def _require_alive(site: Site, node: str, doing: str) -> str:
    """The blow must not have taken the node along. Raises SandboxError when it did."""
    view = find_node(site.state, node)
    if view is None or not view.slurmds(site.programs["slurmd"]):
        raise SandboxError(f"{doing}: node {node} went with it", hint=f"`sandbox revive-node {node}` starts it again")
    return f"node {node} and its slurmd live"


def _live_nodes(site: Site) -> Iterator[NodeView]:
    for name in site.state.config.node_names:
        view = find_node(site.state, name)
        if view is not None:
            yield view


def _find_step_processes(site: Site, step: BatchStep, array_job_id: int, array_task_id: int) -> tuple[Process, ...]:
    """The shell, its descendants, and orphans of the step that its shell or others left behind.

    An orphan is told from a process of a job step by SLURM_STEP_ID, which only what srun launched has.
    """
    view = find_node(site.state, step.node)
    if view is None:
        return ()
    below = descendants([step.shell], list_processes())
    orphans = []
    for process in view.inside:
        environ = read_environment(process.pid)
        if _is_of_task(environ, array_job_id, array_task_id) and "SLURM_STEP_ID" not in environ:
            orphans.append(process)
    shell = find_process(step.shell.id)
    found = {process.id: process for process in (*below, *orphans, *((shell,) if shell else ()))}
    return tuple(found.values())


def _is_batch_shell(process: Process, environ: dict[str, str]) -> bool:
    """Whether the parent is the slurmstepd of this very job's batch step, which names itself so in its title."""
    title = " ".join(read_arguments(process.parent))
    return title.startswith("slurmstepd: ") and f"[{environ.get('SLURM_JOB_ID')}.batch]" in title


def _is_of_task(environ: dict[str, str], array_job_id: int, array_task_id: int) -> bool:
    ids = (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID"))
    return ids == (str(array_job_id), str(array_task_id))


def _is_rank(process: Process, array_job_id: int, rank: int) -> bool:
    environ = read_environment(process.pid)
    return (environ.get("SLURM_ARRAY_JOB_ID"), environ.get("RANK")) == (str(array_job_id), str(rank))


def _topmost(processes: Iterable[Process]) -> list[Process]:
    found = list(processes)
    pids = {process.pid for process in found}
    return [process for process in found if process.parent not in pids]
