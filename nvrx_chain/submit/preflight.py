"""Would this chain run here as asked? Pure checks over facts gathered once; each problem is one line with a hint.

A fact that could not be observed is no problem by itself, except that a real submit needs an answer from Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvrx_chain.errors import PreflightError, Unobserved
from nvrx_chain.masking import mask_words
from nvrx_chain.records.manifest import CompletionKind, LauncherKind
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.slurm.model import Partition
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.directory import DirectoryState
from nvrx_chain.submit.entry import Refusal, decide_entry, find_differences
from nvrx_chain.submit.facts import SubmitFacts
from nvrx_chain.submit.faults import describe_faults
from nvrx_chain.submit.mounts import Reach
from nvrx_chain.submit.plan import SubmitPlan
from nvrx_chain.submit.preflight_limits import check_array_size, check_job_count, check_submit_limits
from nvrx_chain.submit.preflight_nodes import check_container, check_places
from nvrx_chain.submit.problem import Problem, Severity, error, note, warning
from nvrx_chain.submit.rendered_only import used_rendered_only

Check = Callable[[ChainConfig, SubmitFacts], Iterator[Problem]]


def find_problems(config: ChainConfig, facts: SubmitFacts, *, dry_run: bool) -> tuple[Problem, ...]:
    """Every problem, errors first. With `dry_run` a Slurm that does not answer is a note, not an error."""
    problems = [problem for check in CHECKS for problem in check(config, facts)]
    problems.extend(_check_reachable(facts, dry_run=dry_run))
    order = list(Severity)
    return tuple(sorted(problems, key=lambda problem: order.index(problem.severity)))


def refuse_errors(problems: tuple[Problem, ...]) -> None:
    """Raise PreflightError naming every error."""
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        lines = [f"{problem.message} ({problem.hint})" if problem.hint else problem.message for problem in errors]
        raise PreflightError(
            "submitting: refused before anything was queued",
            part="; ".join(lines),
            hint="mend each and repeat the command; --dry-run shows them without a submit",
        )


def _check_reachable(facts: SubmitFacts, *, dry_run: bool) -> Iterator[Problem]:
    unseen = (answer for answer in (facts.cluster, facts.partitions, facts.queue) if isinstance(answer, Unobserved))
    first = next(unseen, None)
    if first is None:
        return
    if dry_run:
        yield note(f"the cluster was not checked: {first.reason}")
    else:
        yield error(f"Slurm does not answer: {first.reason}", "try again when `scontrol ping` says UP")


def check_segment(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """The launcher fills whole segments, so the training nodes must divide into them."""
    segment, nodes = config.shape.segment, config.shape.min_nodes
    if segment is None:
        return
    if nodes % segment:
        yield error(
            f"{nodes} training nodes do not divide into segments of {segment}",
            "choose --train-tasks x --nodes-per-task as a multiple of --segment",
        )
    if not config.launcher.kind.is_fault_tolerant:
        yield warning(f"{config.launcher.kind.value} knows no segments", "--segment has no effect with it")


def check_run_directory(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Every node must see the run directory, and its files must be ours to keep."""
    owner = facts.directory.owner_uid
    if owner is not None and owner != facts.uid:
        yield error(f"the run directory {config.run_directory} belongs to uid {owner}", "choose another --run-dir")
    if facts.directory.open_to is not None:
        yield warning(
            f"{facts.directory.open_to} may write in the run directory {config.run_directory}",
            "nobody's files but yours are believed there, and yours can be taken away: chmod go-w",
        )
    found = facts.file_system
    if isinstance(found, Unobserved):
        yield note(f"the file system of the run directory was not checked: {found.reason}")
    elif found.reach is Reach.SHARED or config.allow_local_run_directory:
        return
    else:
        message = f"the run directory {config.run_directory} is on {found.kind} ({found.mount_point})"
        if found.reach is Reach.TEMPORARY:
            yield error(
                f"{message}, which only this machine sees",
                "choose --run-dir on a shared file system, or --allow-local-run-dir on a cluster of one machine",
            )
        else:
            yield warning(
                f"{message}, a disk of this machine",
                "every node must see it; if they do, --allow-local-run-dir ends this warning",
            )


def check_name(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Two live chains of one name wait for each other; squeue takes upper and lower case for the same."""
    if isinstance(facts.queue, Unobserved):
        return
    own = facts.directory.manifest.chain_id if facts.directory.manifest else config.chain_id
    for task in facts.queue.tasks:
        if task.state.is_terminal or task.user != facts.user or task.name.lower() != config.name.lower():
            continue
        stamp = parse_comment(task.comment)
        if stamp is None or stamp[0] != own:
            yield error(
                f"the name {config.name} is in use: job {task.array_job_id} is called {task.name}",
                "choose another --name, or wait until that job has left the queue",
            )
            return


def check_partition(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """The partition exists, is up, and gives the time, the nodes and the GPUs that are asked for."""
    if isinstance(facts.partitions, Unobserved):
        return
    known = {partition.name: partition for partition in facts.partitions}
    asked = config.partition.split(",") if config.partition else [p.name for p in known.values() if p.is_default]
    if not asked:
        yield error("this cluster has no default partition", "give --partition: " + ", ".join(known))
        return
    for name in asked:
        if name not in known:
            yield error(f"there is no partition {name}", "known: " + ", ".join(known))
            return
    # Slurm starts a job in whichever of the listed partitions can take it, so one that fits is enough.
    complaints = [tuple(_misfits(config, known[name])) for name in asked]
    if all(complaints):
        yield from complaints[0]


def _misfits(config: ChainConfig, partition: Partition) -> Iterator[Problem]:
    where = f"partition {partition.name}"
    if not partition.available:
        yield warning(f"{where} is not up", "the chain will wait until it is")
    yield from _time_misfit(config, partition)
    gpus = config.shape.gpus_per_node
    if partition.gpus_per_node is not None and gpus > partition.gpus_per_node:
        yield error(
            f"{where} has {partition.gpus_per_node} GPUs per node, {gpus} are asked for",
            "lower --gpus-per-node or choose another --partition",
        )
    if config.shape.min_nodes > partition.node_count:
        yield error(
            f"{where} has {partition.node_count} nodes, the training tasks need {config.shape.min_nodes}",
            "a generation could never assemble; lower --train-tasks or --nodes-per-task",
        )
    elif config.shape.max_nodes > partition.node_count:
        yield warning(
            f"{where} has {partition.node_count} nodes, tasks and hot spares need {config.shape.max_nodes}",
            "some hot spares can never run beside the training tasks",
        )


def _time_misfit(config: ChainConfig, partition: Partition) -> Iterator[Problem]:
    maximum, limit = partition.max_time_seconds, config.time_limit
    if maximum is None or limit is None:
        return
    if limit.seconds is None or limit.seconds > maximum:
        yield error(
            f"the time limit {limit.text} is above MaxTime of partition {partition.name}, {maximum // 60} minutes",
            "lower --time-limit",
        )


def check_launcher(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """The interpreters exist and can import what they will be asked to run."""
    if facts.probes is None:
        yield note(f"whether {config.launcher.python} can run the launcher was not checked")
        return
    for probe in facts.probes:
        if isinstance(probe, Unobserved):
            yield error(probe.reason, "give an interpreter that runs here with --python")
            continue
        lacking = [module for module in probe.needed if module not in probe.found]
        if lacking:
            yield error(
                f"{probe.interpreter} cannot import {' and '.join(lacking)}",
                _how_to_get(lacking, config.launcher.kind),
            )


def _how_to_get(lacking: list[str], kind: LauncherKind) -> str:
    if "nvrx_chain" in lacking:
        return "install nvrx-chain into that interpreter; the job runs it isolated from PYTHONPATH"
    if kind is LauncherKind.FT_LAUNCHER and "torch" not in lacking:
        return "pip install nvidia-resiliency-ext there, name another with --python, or use --launcher torchrun"
    return "install it there, or name the interpreter of your training environment with --python"


def check_workload(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """The program that the user named is there, and what happens without one is said."""
    if config.workload.built_in:
        yield note("the workload is the built-in mock training (mock-gpt); name your own after --")
    if facts.program_exists is False and config.container is None:
        yield error(f"the workload {config.workload.program} is not there", config.workload.hint)


def check_environment(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """What of --export is not as its author may think, and secrets that stand where others can read them."""
    if config.export.unset:
        yield warning(f"--export names {' '.join(config.export.unset)}, not set here", "set it, or give NAME=VALUE")
    words = (*config.workload.words, *config.launcher.command)
    if mask_words(words) != words:
        yield warning(
            "the workload's command line holds what looks like a secret, and every process list on its nodes will show"
            " it",
            "name a variable instead: --export ALL,NAME",
        )


def check_rendered_only(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Nobody should find out at night that they are the first."""
    names = used_rendered_only(config)
    if names:
        yield note(f"rendered as documented and never run by the tests of nvrx-chain: {', '.join(names)}")


def check_faults(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """A chain that hurts itself says so: the variable may have been left in the shell."""
    if config.faults is not None:
        yield warning(describe_faults(config.faults), "--fault-inject, --inject-gpu-failure, --no-restart-demo")


def check_completion(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Exit code 0 proves little, so the rule that takes its place is said."""
    if config.completion.kind is CompletionKind.TWO_QUIET_EXITS:
        yield note(
            "no criterion of a finished training: the chain counts as finished when two generations in a row exit 0"
            " at the same checkpoint iteration; better: --done-file, --target-iteration or --complete-on-exit-zero"
        )


def check_entry(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Nothing is submitted into a directory with a live chain, or with another one's records."""
    entry = decide_entry(config, facts.directory, facts.queue, facts.cluster)
    if isinstance(entry, Refusal):
        yield error(entry.message, entry.hint)


def check_half(plan: SubmitPlan, directory: DirectoryState) -> Iterator[Problem]:
    """A half-submitted chain is completed as it was begun. Not among CHECKS: it needs the plan."""
    refusal = find_differences(plan, directory)
    if refusal is not None:
        yield error(refusal.message, refusal.hint)


CHECKS: tuple[Check, ...] = (
    check_array_size,
    check_job_count,
    check_submit_limits,
    check_segment,
    check_run_directory,
    check_entry,
    check_name,
    check_partition,
    check_launcher,
    check_workload,
    check_places,
    check_container,
    check_environment,
    check_rendered_only,
    check_faults,
    check_completion,
)
