"""Checks of one machine: its run directory, launcher, GPUs, name and limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.doctor.facts import ChainFacts, Directory, Launcher
from nvrx_chain.doctor.model import LOGIN, Check, Evidence, Line, bad, ok, places, unknown, warn
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.manifest import Thresholds
from nvrx_chain.sizes import render_size
from nvrx_chain.submit.mounts import Reach

SLOW_WRITE_SECONDS = 0.5
LITTLE_BYTES, TOO_LITTLE_BYTES = 10 << 30, 100 << 20
FEW_FILES = 10_000
SLOW_IMPORT_SECONDS = 30.0
FEW_OPEN_FILES = 4096
LITTLE_SHARED_MEMORY = 1 << 30


def check_directory(evidence: Evidence) -> Iterator[Line]:
    """The run directory takes atomic writes and links, and soon enough for a lease."""
    for place, seen in places(evidence):
        if isinstance(seen.directory, Unobserved):
            mend = "the file system hangs: every generation would; look at the mount"
            yield bad("directory", place, f"{evidence.run_directory}: {seen.directory.reason}", mend)
        else:
            yield _judge_directory(place, seen.directory)


def _judge_directory(place: str, seen: Directory) -> Line:
    name, where = "directory", f"{seen.tested} on {seen.kind or 'an unknown file system'}"
    if seen.problem:
        mend = "choose --run-dir on a file system that login and compute nodes share and you may write to"
        return bad(name, place, seen.problem, mend)
    if not seen.first_wins:
        return bad(name, place, f"{where}: link(2) twice and both won", "two tasks would both decide: choose another")
    latency = f"{where}: an atomic write takes {1000 * (seen.write_seconds or 0.0):.0f} ms"
    lease = Thresholds().lease_interval
    if (seen.write_seconds or 0.0) > lease:
        return bad(name, place, latency, f"a lease is written every {lease:g} s: tasks would be taken for dead")
    if (seen.write_seconds or 0.0) > SLOW_WRITE_SECONDS:
        return warn(name, place, latency, "every step of a hand-off is a few of these; a faster file system helps")
    return ok(name, place, f"{latency}; of two links the first wins")


def check_shared(evidence: Evidence) -> Iterator[Line]:
    """Whether other nodes can see it, by its file system; a look from a node (--on-node) proves more."""
    seen = evidence.login.directory
    if evidence.visit is not None or isinstance(seen, Unobserved) or seen.problem:
        return
    where = f"{seen.kind} ({seen.mount_point})"
    if seen.reach is None:
        yield unknown("shared", LOGIN, "/proc/self/mountinfo does not tell")
    elif seen.reach == Reach.SHARED.value:
        yield ok("shared", LOGIN, f"{where}; --on-node proves that nodes see it")
    else:
        yield warn("shared", LOGIN, f"{where}, {seen.reach}", "only this machine may see it; --on-node tells")


def check_space(evidence: Evidence) -> Iterator[Line]:
    """Room for control files; checkpoints need their own."""
    seen = evidence.login.directory
    if isinstance(seen, Unobserved) or seen.free_bytes is None:
        yield unknown("space", LOGIN, "statvfs does not tell")
        return
    files = "" if seen.free_files is None else f", {seen.free_files} files"
    text = f"{render_size(seen.free_bytes)}{files} free at {seen.tested}"
    mend = "free some, or choose another --run-dir"
    if seen.free_bytes < TOO_LITTLE_BYTES or seen.free_files == 0:
        yield bad("space", LOGIN, text, mend)
    elif seen.free_bytes < LITTLE_BYTES or (seen.free_files or FEW_FILES) < FEW_FILES:
        yield warn("space", LOGIN, text, mend)
    else:
        yield ok("space", LOGIN, text)


def check_launcher(evidence: Evidence) -> Iterator[Line]:
    """The launcher can be imported by the interpreter that would run it."""
    for place, seen in places(evidence):
        if evidence.launcher == "command":
            yield ok("launcher", place, "a command of your own, which is not looked at")
        elif isinstance(seen.launcher, Unobserved):
            mend = "on a cold file system the first import takes long; name another interpreter with --python"
            yield unknown("launcher", place, seen.launcher.reason, mend)
        else:
            yield _judge_launcher(place, seen.launcher)


def _judge_launcher(place: str, seen: Launcher) -> Line:
    name, kind = "launcher", seen.kind
    if kind is None:
        mend = "install torch or nvidia-resiliency-ext there, or name your training's interpreter with --python"
        return warn(name, place, f"{seen.python} has neither ft_launcher nor torchrun", mend)
    if kind not in seen.versions:
        mend = "install it there, name another interpreter with --python, or choose another --launcher"
        return bad(name, place, f"{seen.python} has no {kind}", mend)
    what = f"{kind} {seen.versions[kind]} of {seen.python}"
    if seen.problem:
        return bad(name, place, f"{what} cannot be imported: {seen.problem}", "mend that environment")
    if seen.import_seconds is None:
        mend = "its first import from a cold file system takes long, and so does every restart; try again"
        return unknown(name, place, f"{what}: its import did not end in time", mend)
    seconds = seen.import_seconds
    if seconds > SLOW_IMPORT_SECONDS:
        return warn(name, place, f"{what}: imported in {seconds:.0f} s", "every restart of the ranks takes as long")
    return ok(name, place, f"{what}: imported in {seconds:.1f} s")


def check_gpus(evidence: Evidence) -> Iterator[Line]:
    """How many GPUs there are. None is a fact and no fault."""
    for place, seen in places(evidence):
        if isinstance(seen.gpus, Unobserved):
            mend = "the driver hangs or crashes: `nvidia-smi` there tells more"
            yield unknown("gpus", place, seen.gpus.reason, mend)
            continue
        kinds = ", ".join(sorted(set(seen.gpus.names)))
        note = f"; {seen.gpus.note}" if seen.gpus.note and seen.gpus.count else ""
        driver = f", driver {seen.gpus.driver}" if seen.gpus.driver else ""
        text = f"{seen.gpus.count} GPUs {kinds}".rstrip() + driver + note if seen.gpus.count else "no GPUs"
        if seen.gpus.count and seen.gpus.source != "NVML":
            yield warn("gpus", place, text, "the kernel driver lists them and NVML does not answer")
        else:
            yield ok("gpus", place, text)


def check_name(evidence: Evidence) -> Iterator[Line]:
    """Peers reach a node by its own name, on a port that task 0 finds free."""
    for place, seen in places(evidence):
        if place == LOGIN:
            continue
        if isinstance(seen.host, Unobserved):
            yield unknown("name", place, seen.host.reason)
        elif seen.host.name_problem:
            mend = "DNS or /etc/hosts of the nodes must give each node's name an address that the others reach"
            yield bad("name", place, seen.host.name_problem, mend)
        elif seen.host.port_problem:
            yield bad("name", place, seen.host.port_problem, "something listens on thousands of ports there")
        else:
            text = f"{seen.host.name} is {', '.join(seen.host.addresses)}; port {seen.host.port} was free"
            yield ok("name", place, text)


def check_open_files(evidence: Evidence) -> Iterator[Line]:
    """Slurm hands the login node's soft limit on to the job (PropagateResourceLimits)."""
    for place, seen in places(evidence):
        if isinstance(seen.host, Unobserved):
            yield unknown("open-files", place, seen.host.reason)
            continue
        soft, hard = seen.host.open_files, seen.host.open_files_most
        text = f"soft limit {_count(soft)}, hard {_count(hard)}"
        if soft < FEW_OPEN_FILES:
            mend = "`ulimit -n` before you submit: jobs get the limit of the shell, and ranks open thousands of files"
            yield warn("open-files", place, text, mend)
        else:
            yield ok("open-files", place, text)


def check_shared_memory(evidence: Evidence) -> Iterator[Line]:
    """Data loaders and NCCL exchange through /dev/shm. Only nodes matter."""
    for place, seen in places(evidence):
        if place == LOGIN:
            continue
        if isinstance(seen.host, Unobserved) or seen.host.shared_memory_bytes is None:
            why = seen.host.reason if isinstance(seen.host, Unobserved) else "there is no /dev/shm"
            yield unknown("shared-memory", place, why)
        elif seen.host.shared_memory_bytes < LITTLE_SHARED_MEMORY:
            mend = "data loaders die of SIGBUS with so little: mount it larger, in containers with --shm-size"
            yield warn("shared-memory", place, f"/dev/shm has {render_size(seen.host.shared_memory_bytes)}", mend)
        else:
            yield ok("shared-memory", place, f"/dev/shm has {render_size(seen.host.shared_memory_bytes)}")


def check_chain(evidence: Evidence) -> Iterator[Line]:
    """What `chain.json` asks for, where a run directory was named."""
    chain = evidence.chain
    if isinstance(chain, Unobserved):
        yield bad("chain", LOGIN, chain.reason, "a chain whose record cannot be read cannot hand off: mend the file")
    elif isinstance(chain, ChainFacts):
        yield ok("chain", LOGIN, f"{chain.tasks} tasks, {chain.tasks_at_once} at once; launcher {chain.launcher}")


def _count(limit: int) -> str:
    return "unlimited" if limit > 1 << 40 else str(limit)


PLACE_CHECKS: tuple[Check, ...] = (
    check_chain,
    check_directory,
    check_shared,
    check_space,
    check_launcher,
    check_gpus,
    check_name,
    check_open_files,
    check_shared_memory,
)
