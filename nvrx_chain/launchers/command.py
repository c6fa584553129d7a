"""Any command: a template of words with the node's place filled in and the workload for `{workload}`. Pure."""

from __future__ import annotations

from nvrx_chain.errors import UsageError
from nvrx_chain.launchers.seats import LaunchPlan, LaunchRequest

WORKLOAD = "{workload}"
FIELDS = (
    "host",
    "port",
    "nnodes",
    "min_nodes",
    "max_nodes",
    "nproc",
    "node_rank",
    "is_host",
    "job_id",
    "task_id",
    "run_id",
    "run_dir",
    "python",
    "max_restarts",
    "segment_health_dir",
)


def check_template(words: tuple[str, ...]) -> None:
    """Raise UsageError when the template names a field that does not exist or has stray braces."""
    for word in words:
        if word != WORKLOAD:
            _fill(word, dict.fromkeys(FIELDS, "0"))


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command of one node. The workload's words are appended when the template has no `{workload}`."""
    values = _values(request)
    template = request.launcher.command
    if WORKLOAD not in template:
        template = (*template, WORKLOAD)
    argv: list[str] = []
    for word in template:
        argv.extend(request.workload if word == WORKLOAD else (_fill(word, values),))
    environment = {
        "MASTER_ADDR": request.seat.rendezvous_host,
        "MASTER_PORT": str(request.seat.rendezvous_port),
    }
    return LaunchPlan(argv=tuple(argv), environment=environment)


def _values(request: LaunchRequest) -> dict[str, str]:
    shape, seat, launcher = request.shape, request.seat, request.launcher
    return {
        "host": seat.rendezvous_host,
        "port": str(seat.rendezvous_port),
        "nnodes": str(shape.min_nodes),
        "min_nodes": str(shape.min_nodes),
        "max_nodes": str(shape.max_nodes),
        "nproc": str(shape.procs_per_node),
        "node_rank": str(seat.node_rank),
        "is_host": str(int(seat.is_host)),
        "job_id": str(seat.array_job_id),
        "task_id": str(seat.array_task_id),
        "run_id": seat.run_id,
        "run_dir": seat.run_directory,
        "python": launcher.python,
        "max_restarts": str(launcher.max_restarts),
        "segment_health_dir": seat.segment_health_dir or "",
    }


def _fill(word: str, values: dict[str, str]) -> str:
    try:
        return word.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join("{" + name + "}" for name in (*FIELDS, "workload"))
        raise UsageError(
            "reading --launcher-command", part=word, hint=f"known fields: {known}; write {{{{ for a brace"
        ) from error
