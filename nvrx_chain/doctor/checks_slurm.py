"""Checks of Slurm's programs and of the site's configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvrx_chain.doctor.facts import ChainFacts, Program
from nvrx_chain.doctor.model import CLUSTER, Check, Evidence, Line, bad, ok, places, unknown, warn
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.slurm.model import ClusterConfig

OLDEST = (22, 5)
SLOW_SECONDS = 2.0
_OPTIONAL = frozenset({"sacct", "sacctmgr"})


def check_programs(evidence: Evidence) -> Iterator[Line]:
    """All programs are there, of one version, and no scripts of the site that may know fewer options."""
    for place, seen in places(evidence):
        if isinstance(seen.slurm, Unobserved):
            yield unknown("slurm-programs", place, seen.slurm.reason)
            continue
        yield _judge_programs(place, seen.slurm.programs)


def _judge_programs(place: str, programs: tuple[Program, ...]) -> Line:
    name = "slurm-programs"
    broken = [program for program in programs if program.problem]
    needed = [program for program in broken if program.name not in _OPTIONAL]
    said = _complaints(broken)
    if needed:
        is_absent = any(program.path is None for program in needed)
        path = "load the Slurm module of your site or add its directory to PATH"
        return bad(
            name, place, said, path if is_absent else "try them by hand: is SLURM_CONF right, and who wraps them?"
        )
    if broken:
        return warn(
            name,
            place,
            said,
            "without sacct ends are known from the run directory only, without sacctmgr no limit of submissions is",
        )
    versions = sorted({program.version or "" for program in programs})
    scripts = [f"{program.path}" for program in programs if program.is_script]
    if len(versions) > 1:
        each = ", ".join(f"{program.name} {program.version}" for program in programs)
        return warn(name, place, each, "several Slurms are on PATH: put the cluster's own first")
    if _release(versions[0]) < OLDEST:
        return warn(name, place, f"Slurm {versions[0]}", "nvrx-chain is tested with 22.05 and newer")
    if scripts:
        mend = "scripts of the site stand in for Slurm's programs: answers may be old or cut; ask for the real ones"
        return warn(name, place, f"Slurm {versions[0]}, {', '.join(scripts)} is a script", mend)
    return ok(name, place, f"Slurm {versions[0]}, {programs[0].path}")


def _complaints(broken: list[Program]) -> str:
    """Programs with the same complaint stand together: where Slurm has no configuration each says the same."""
    by_problem: dict[str, list[str]] = {}
    for program in broken:
        by_problem.setdefault(program.problem or "", []).append(program.name)
    return "; ".join(f"{', '.join(names)}: {problem}" for problem, names in by_problem.items())


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def check_queue_options(evidence: Evidence) -> Iterator[Line]:
    """squeue takes the options that are sent to it, and those that people type."""
    for place, seen in places(evidence):
        if isinstance(seen.slurm, Unobserved):
            yield unknown("squeue", place, seen.slurm.reason)
        elif seen.slurm.queue_problem:
            yield bad(
                "squeue",
                place,
                seen.slurm.queue_problem,
                "nvrx-chain sends --noheader --all --states --format --user: the controller must answer, and no wrapper"
                " may drop them",
            )
        elif seen.slurm.typed_problem:
            yield warn("squeue", place, f"squeue -r -h -o: {seen.slurm.typed_problem}", "nvrx-chain does without")
        else:
            yield ok("squeue", place, f"answers in {seen.slurm.queue_seconds or 0.0:.2f} s and takes our options")


def check_controller(evidence: Evidence) -> Iterator[Line]:
    """The controller answers, and soon."""
    config, seconds = evidence.slurm.config, evidence.slurm.config_seconds
    if isinstance(config, Unobserved):
        yield bad("controller", CLUSTER, config.reason, "try `scontrol ping`; running chains go on, nothing new starts")
    elif seconds > SLOW_SECONDS:
        mend = "a busy controller delays hand-offs and cancels by as much"
        yield warn("controller", CLUSTER, f"{config.cluster_name}: answers in {seconds:.1f} s", mend)
    else:
        yield ok("controller", CLUSTER, f"{config.cluster_name}, Slurm {config.version}: answers in {seconds:.2f} s")


def check_accounting(evidence: Evidence) -> Iterator[Line]:
    """sacct answers, or the site has no accounting, which is no fault."""
    config, rows = evidence.slurm.config, evidence.slurm.accounting
    if not isinstance(config, Unobserved) and not config.accounting:
        kept = config.min_job_age_seconds
        seen = f"off; Slurm remembers an ended job for MinJobAge, {kept} s"
        if kept is not None and kept < 60:
            yield warn("accounting", CLUSTER, seen, "a watcher that looks more seldom misses how a job ended")
        else:
            yield ok("accounting", CLUSTER, seen)
    elif isinstance(rows, Unobserved):
        if isinstance(config, Unobserved):
            yield unknown("accounting", CLUSTER, rows.reason)
        else:
            yield warn("accounting", CLUSTER, rows.reason, "slurmdbd is down: ends are known for MinJobAge only")
    else:
        yield ok("accounting", CLUSTER, "sacct answers")


Judge = Callable[[Evidence, ClusterConfig], Iterator[Line]]


def _of_config(name: str, judge: Judge) -> Check:
    """A check that is unknown where the controller showed no configuration."""

    def check(evidence: Evidence) -> Iterator[Line]:
        config = evidence.slurm.config
        if isinstance(config, Unobserved):
            yield unknown(name, CLUSTER, "the controller showed no configuration")
        else:
            yield from judge(evidence, config)

    return check


def judge_whole_nodes(evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """--exclusive must give whole nodes: two tasks of one array on one node collide."""
    name, select = "whole-nodes", config.fields.get("SelectType", "")
    seen = f"{select or 'SelectType not shown'}, {config.fields.get('SelectTypeParameters') or 'no parameters'}"
    if isinstance(evidence.slurm.partitions, Unobserved):
        yield unknown(name, CLUSTER, f"{seen}; partitions: {evidence.slurm.partitions.reason}")
        return
    # FORCE:1 oversubscribes nothing, and is how sites spell exclusive use of CPUs.
    forced = [
        f"{partition.name} ({partition.fields['OverSubscribe']})"
        for partition in evidence.slurm.partitions
        if _is_asked(evidence, partition.name, is_default=partition.is_default)
        and partition.fields.get("OverSubscribe", "").startswith("FORCE")
        and not partition.fields["OverSubscribe"].endswith(":1")
    ]
    if forced:
        yield bad(
            name, CLUSTER, f"{seen}; shared by force: {', '.join(forced)}", "choose a partition that is not shared"
        )
    elif "linear" not in select and "cons_" not in select:
        yield warn(name, CLUSTER, seen, "a selection plugin nobody tested; look at where two tasks of one array land")
    else:
        yield ok(name, CLUSTER, f"{seen}; --exclusive gives whole nodes")


def _is_asked(evidence: Evidence, name: str, *, is_default: bool) -> bool:
    return name in evidence.partition.split(",") if evidence.partition else is_default


def judge_array_limits(evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """The largest array, and how many tasks the controller keeps in all."""
    name, largest = "array-limits", config.max_array_size
    jobs = config.fields.get("MaxJobCount", "")
    seen = f"MaxArraySize {largest}, MaxJobCount {jobs or 'not shown'}"
    chain = evidence.chain
    if isinstance(chain, ChainFacts):
        seen += f"; this chain has {chain.tasks} tasks in each of {chain.chain_depth} generations"
        if largest is not None and chain.tasks - 1 >= largest:
            yield bad(name, CLUSTER, seen, "use fewer tasks with more --nodes-per-task")
            return
        if jobs.isdigit() and chain.tasks * chain.chain_depth > int(jobs):
            yield bad(name, CLUSTER, seen, "queue fewer generations with --chain-depth")
            return
    if largest is not None and largest < 100:
        yield warn(name, CLUSTER, seen, "arrays this small need --nodes-per-task for big jobs")
    elif jobs.isdigit() and int(jobs) < 1000:
        yield warn(name, CLUSTER, seen, "every array task counts: a deep chain of many tasks fills the queue")
    else:
        yield ok(name, CLUSTER, seen)


def judge_kill_wait(_evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """How long a cancelled task may linger before SIGKILL."""
    name, seconds, drain = "kill-wait", config.kill_wait_seconds, Thresholds().drain
    if seconds is None:
        yield unknown(name, CLUSTER, "KillWait is not shown")
    elif seconds < drain:
        mend = f"launchers get {drain:g} s to end: a cancelled generation is killed before they have"
        yield warn(name, CLUSTER, f"KillWait {seconds} s", mend)
    elif seconds > 120:
        yield warn(name, CLUSTER, f"KillWait {seconds} s", "ranks that ignore TERM hold up a hand-off by as long")
    else:
        yield ok(name, CLUSTER, f"KillWait {seconds} s")


def judge_silent_node(_evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """What to expect when a node dies without a word."""
    name, seconds, limits = "silent-node", config.slurmd_timeout_seconds, Thresholds()
    asked = limits.lease_timeout + limits.probe
    if seconds is None:
        yield unknown(name, CLUSTER, "SlurmdTimeout is not shown")
        return
    seen = f"SlurmdTimeout {seconds} s; a dead task 0 is proven dead without waiting for it, within about {asked:.0f} s"
    if seconds == 0:
        yield warn(
            name, CLUSTER, "SlurmdTimeout 0", "Slurm never gives a silent node up: its jobs stay until cancelled"
        )
    elif seconds < 60:
        yield warn(name, CLUSTER, seen, "a stall of the network as long as that costs the node its tasks")
    elif seconds > 900:
        yield warn(name, CLUSTER, seen, "a dead peer that nobody asks about keeps its seat as long as that")
    else:
        yield ok(name, CLUSTER, seen)


def judge_requeue(_evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """A requeued generation would run beside its successor; sbatch is always told --no-requeue."""
    value = config.fields.get("JobRequeue", "")
    if value not in ("0", "1"):
        yield unknown("requeue", CLUSTER, "JobRequeue is not shown")
    else:
        yield ok("requeue", CLUSTER, f"JobRequeue={value}; every generation is submitted with --no-requeue")


def judge_grace(evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """What is left for a last checkpoint at the time limit and in a preemption."""
    name, mode = "grace", config.preempt_mode or "not shown"
    over = config.fields.get("OverTimeLimit", "")
    seen = f"--signal comes up to a minute early; OverTimeLimit {over or 'not shown'}; PreemptMode {mode}"
    if mode.upper() in ("OFF", "NOT SHOWN") or isinstance(evidence.slurm.partitions, Unobserved):
        yield ok(name, CLUSTER, seen)
        return
    short = [
        partition.name
        for partition in evidence.slurm.partitions
        if _is_asked(evidence, partition.name, is_default=partition.is_default)
        and partition.fields.get("GraceTime", "") == "0"
        and partition.fields.get("PreemptMode", "OFF").upper() != "OFF"
    ]
    if short:
        mend = f"no GraceTime: a preempted generation has KillWait, {config.kill_wait_seconds} s, for its last save"
        yield warn(name, CLUSTER, f"{seen} in {', '.join(short)}", mend)
    else:
        yield ok(name, CLUSTER, seen)


def judge_process_tracking(_evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """Whether Slurm finds the processes that left their parents."""
    name, value = "process-tracking", config.fields.get("ProctrackType", "")
    tasks = config.fields.get("TaskPlugin", "") or "no TaskPlugin"
    if not value:
        yield unknown(name, CLUSTER, "ProctrackType is not shown")
    elif value.endswith("cgroup"):
        yield ok(name, CLUSTER, f"{value}, {tasks}: nothing of a job outlives it")
    else:
        mend = (
            "a process that detaches itself outlives its job and keeps its GPU memory; proctrack/cgroup prevents that"
        )
        yield warn(name, CLUSTER, f"{value}, {tasks}", mend)


def judge_private_data(_evidence: Evidence, config: ClusterConfig) -> Iterator[Line]:
    """Other people's jobs look like no jobs."""
    name, value = "private-data", config.fields.get("PrivateData", "none")
    hidden = {word.strip() for word in value.split(",")}
    if hidden & {"nodes", "partitions"}:
        mend = "a node that cannot be seen cannot be proven dead: ask the site to show nodes and partitions"
        yield warn(name, CLUSTER, f"PrivateData={value}", mend)
    elif "jobs" in hidden:
        yield ok(name, CLUSTER, f"PrivateData={value}; run nvrx-watch as the chain's owner, others see no job of it")
    else:
        yield ok(name, CLUSTER, f"PrivateData={value}")


SLURM_CHECKS: tuple[Check, ...] = (
    check_programs,
    check_queue_options,
    check_controller,
    check_accounting,
    _of_config("whole-nodes", judge_whole_nodes),
    _of_config("array-limits", judge_array_limits),
    _of_config("kill-wait", judge_kill_wait),
    _of_config("silent-node", judge_silent_node),
    _of_config("requeue", judge_requeue),
    _of_config("grace", judge_grace),
    _of_config("process-tracking", judge_process_tracking),
    _of_config("private-data", judge_private_data),
)
