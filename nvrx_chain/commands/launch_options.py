"""The options of `nvrx-chain launch`, under the headings of its help page.

Longer than other modules because it is one table, in the order in which people read it; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from nvrx_chain.launcher.settings import PRELOAD, WorkerStore

_NODES, _RESTART, _RANKS, _RECORDS, _LOGS, _HANG, _HEALTH = (
    "Nodes and rendezvous",
    "Restarts",
    "Ranks",
    "Records, progress and verdicts",
    "Logs",
    "Hang detection",
    "Health of the node",
)
_SECONDS = click.FloatRange(0)


def _option(section: str, *declarations: str, **words: Any) -> tuple[str, click.Option]:
    """An option with its heading. The first long spelling names the parameter."""
    name = next(word for word in declarations if word.startswith("--"))[2:].partition("/")[0].replace("-", "_")
    has_default = words.get("default") not in (None, "") and not words.get("is_flag")
    return section, click.Option(
        [*declarations, name], show_default=has_default, show_envvar="envvar" in words, **words
    )


LAUNCH_OPTIONS: tuple[tuple[str, click.Option], ...] = (
    _option(
        _NODES,
        "--nnodes",
        default="1:1",
        envvar="PET_NNODES",
        metavar="MIN:MAX",
        help="MIN nodes train, the others are hot spares.",
    ),
    _option(
        _NODES,
        "--rdzv-endpoint",
        default="",
        envvar="PET_RDZV_ENDPOINT",
        metavar="HOST:PORT",
        help="Where the launchers meet: the node of the host, and its port.",
    ),
    _option(
        _NODES,
        "--rdzv-id",
        default="none",
        envvar="PET_RDZV_ID",
        metavar="ID",
        help="Name of this run, the same on all nodes.",
    ),
    _option(
        _NODES,
        "--rdzv-backend",
        default="nvrx",
        envvar="PET_RDZV_BACKEND",
        type=click.Choice(["nvrx", "c10d"]),
        help="There is one; c10d is taken as another word for it.",
    ),
    _option(
        _NODES,
        "--rdzv-conf",
        default="",
        envvar="PET_RDZV_CONF",
        metavar="KEY=VALUE,...",
        help="is_host, join_timeout, last_call_timeout, store_connect_wait_seconds, segment.",
    ),
    _option(
        _NODES,
        "--local-addr",
        envvar="PET_LOCAL_ADDR",
        metavar="ADDRESS",
        help="Name by which other nodes reach this one; without it SLURMD_NODENAME or the host's name.",
    ),
    _option(_NODES, "--standalone", is_flag=True, help="One node that meets nobody."),
    _option(
        _NODES,
        "--secret-file",
        type=click.Path(),
        metavar="FILE",
        help="Secret of the job, mode 600, or a rendezvous file of a chain; else NVRX_CHAIN_LAUNCH_SECRET.",
    ),
    _option(
        _NODES,
        "--segment",
        "--ft-segment",
        default=None,
        metavar="NODES",
        help="Whole segments of so many nodes from one NVLink domain.",
    ),
    _option(
        _NODES,
        "--first-round-grace",
        type=_SECONDS,
        default=5.0,
        help="Seconds that the first round waits for MAX nodes once MIN are there.",
    ),
    _option(
        _NODES,
        "--last-call-max",
        type=_SECONDS,
        default=30.0,
        help="Most seconds that a round waits for a node that stops its ranks.",
    ),
    _option(
        _NODES,
        "--liveness-timeout",
        type=click.FloatRange(0.5),
        default=10.0,
        help="Seconds of silence after which a node is lost.",
    ),
    _option(
        _NODES,
        "--rebalance-on-restart",
        is_flag=True,
        help="Give the seats to the lowest places again at each restart.",
    ),
    _option(
        _RESTART,
        "--max-restarts",
        type=click.IntRange(0),
        default=0,
        envvar="PET_MAX_RESTARTS",
        help="Restarts of the whole job.",
    ),
    _option(
        _RESTART,
        "--stop-grace",
        "--workers-stop-timeout",
        type=_SECONDS,
        default=2.0,
        help="Seconds between TERM and KILL at a restart.",
    ),
    _option(
        _RESTART,
        "--term-timeout",
        type=_SECONDS,
        default=1800.0,
        help="The same when the launcher itself was told to end.",
    ),
    _option(
        _RESTART,
        "--no-restart-exit-code",
        "--ft-no-restart-exit-code",
        type=click.IntRange(1, 255),
        default=93,
        help="Exit code on every node when a further start is useless.",
    ),
    _option(
        _RANKS,
        "--nproc-per-node",
        type=click.IntRange(1),
        default=1,
        envvar="PET_NPROC_PER_NODE",
        help="Ranks of each node.",
    ),
    _option(
        _RANKS,
        "--warm-workers/--no-warm-workers",
        default=True,
        help="Keep interpreters that have done their imports for the next restart.",
    ),
    _option(
        _RANKS,
        "--preload",
        default=",".join(PRELOAD),
        metavar="MODULES",
        help="What they import. Nothing that opens a GPU.",
    ),
    _option(
        _RANKS,
        "--refill-delay",
        type=_SECONDS,
        default=30.0,
        help="Seconds after a start until they are made anew; at once when a rank tells its first step.",
    ),
    _option(
        _RANKS,
        "--worker-store",
        type=click.Choice([kind.value for kind in WorkerStore]),
        default=WorkerStore.AGENT.value,
        help="Who hosts the store in which the ranks meet.",
    ),
    _option(
        _RANKS,
        "--gpus-per-numa",
        envvar="NVRX_GPUS_PER_NUMA",
        metavar="N",
        help="Bind each rank to the NUMA node local rank / N by numactl.",
    ),
    _option(
        _RANKS,
        "--numa-bind-strict",
        "--ft-numa-bind-strict",
        default="true",
        metavar="BOOL",
        help="Memory of that NUMA node only.",
    ),
    _option(_RANKS, "--role", default="default", envvar="PET_ROLE", help="ROLE_NAME of the ranks."),
    _option(
        _RANKS, "-m", "--module", is_flag=True, envvar="PET_MODULE", help="The script is a module, as for python -m."
    ),
    _option(_RANKS, "--no-python", is_flag=True, envvar="PET_NO_PYTHON", help="It is a program of its own."),
    _option(
        _RECORDS,
        "--cycle-info-dir",
        "--ft-cycle-info-dir",
        metavar="DIR",
        help="Cycle records in NVRx's format, our facts beside them, and the outcome.",
    ),
    _option(
        _RECORDS,
        "--timeline-dir",
        metavar="DIR",
        help="The steps of each recovery, one file for each launcher; see nvrx-chain status --timeline.",
    ),
    _option(
        _RECORDS,
        "--checkpoint-iteration-file",
        "--ft-checkpoint-iteration-file",
        metavar="FILE",
        help="Holds the iteration of the last whole checkpoint; without it progress is not judged.",
    ),
    _option(
        _RECORDS,
        "--min-progress-iterations",
        "--ft-min-progress-iterations",
        type=int,
        default=1,
        help="Iterations that a cycle must add.",
    ),
    _option(
        _RECORDS,
        "--max-no-progress-cycles",
        "--ft-max-no-progress-cycles",
        type=int,
        default=3,
        help="Cycles in a row without that which end the job; 0 is off.",
    ),
    _option(
        _RECORDS,
        "--min-cycle-seconds",
        type=_SECONDS,
        default=None,
        help="How long a cycle has to run to count. [default: half the observed checkpoint interval, else 600]",
    ),
    _option(_RECORDS, "--verdict-file", metavar="FILE", help="Its existence ends the job for good; it says why."),
    _option(
        _LOGS,
        "--per-cycle-applog-prefix",
        "--ft-per-cycle-applog-prefix",
        metavar="FILE",
        help="Output of the ranks, one file for each cycle: FILE with _cycleN before its extension.",
    ),
    _option(
        _LOGS,
        "--launcher-log",
        "--nvrx-logfile",
        "--ft-nvrx-logfile",
        metavar="FILE",
        help="What the launchers themselves say.",
    ),
    _option(
        _LOGS,
        "--log-funnel",
        "--enable-log-server",
        "--ft-enable-log-server",
        default="false",
        metavar="BOOL",
        help="One writer, on the host's node, writes the logs of all nodes.",
    ),
    _option(
        _LOGS,
        "--log-port",
        "--log-server-port",
        "--ft-log-server-port",
        type=click.IntRange(0, 65535),
        default=0,
        help="Its port; 0 is a free one.",
    ),
    _option(
        _LOGS,
        "--log-rotate-mb",
        type=click.IntRange(0),
        default=0,
        help="Rotate a log that would grow beyond; 0 never.",
    ),
    _option(_LOGS, "--log-keep", type=click.IntRange(1), default=4, help="Rotated logs that are kept."),
    _option(
        _LOGS, "--log-memory-mb", type=click.IntRange(1), default=64, help="Lines of this node that may wait in memory."
    ),
    _option(
        _LOGS,
        "--log-spill-mb",
        type=click.IntRange(0),
        default=1024,
        help="Lines that may wait in a file of this node after that.",
    ),
    _option(_LOGS, "--log-prefix/--no-log-prefix", default=True, help="Begin each line with its rank."),
    _option(
        _HANG, "--startup-timeout", metavar="SECONDS", help="From the start of a rank to the first word of its client."
    ),
    _option(
        _HANG,
        "--initial-heartbeat-timeout",
        "--ft-initial-rank-heartbeat-timeout",
        metavar="SECONDS",
        help="To its first heartbeat or committed step.",
    ),
    _option(_HANG, "--heartbeat-timeout", "--ft-rank-heartbeat-timeout", metavar="SECONDS", help="Between heartbeats."),
    _option(
        _HANG,
        "--section-timeouts",
        "--ft-rank-section-timeouts",
        metavar="NAME:SECONDS,...",
        help="Of one run of a section.",
    ),
    _option(_HANG, "--warmup-timeouts", metavar="NAME:SECONDS,...", help="Of the first runs of a section."),
    _option(_HANG, "--warmup-iterations", type=int, default=5, help="How many those are."),
    _option(
        _HANG,
        "--out-of-section-timeout",
        "--ft-rank-out-of-section-timeout",
        metavar="SECONDS",
        help="In no section that has a limit.",
    ),
    _option(
        _HANG,
        "--safety-factor",
        "--ft-safety-factor",
        type=float,
        default=5.0,
        help="Of limits that are calculated from observed durations.",
    ),
    _option(
        _HANG,
        "--capture-timeout",
        type=float,
        default=5.0,
        help="Seconds for the stacks of all ranks when a section expires; 0 is off.",
    ),
    _option(
        _HANG,
        "--capture-dir",
        metavar="DIR",
        help="Where they go. [default: stacks/ in the directory of the cycle records]",
    ),
    _option(
        _HEALTH,
        "--gpu-health-check/--no-gpu-health-check",
        default=True,
        help="Ask NVML before each round: reachable, ECC, recovery action.",
    ),
    _option(_HEALTH, "--gpu-health-check-seconds", type=float, default=30.0, help="How long NVML may take."),
    _option(
        _HEALTH,
        "--gpu-ecc-tolerance",
        type=int,
        default=0,
        help="Uncorrected errors since the last reset that a GPU may have.",
    ),
    _option(
        _HEALTH,
        "--gpu-memory-reclaim-timeout",
        "--ft-gpu-memory-reclaim-timeout",
        type=float,
        default=50.0,
        help="Seconds that new ranks wait for the GPU memory of ended ones; 0 is off.",
    ),
    _option(
        _HEALTH,
        "--gpu-memory-tolerance-mb",
        "--ft-gpu-memory-tolerance-mb",
        type=float,
        default=512.0,
        help="Use of a GPU that counts as free.",
    ),
    _option(
        _HEALTH,
        "--gpu-memory-poll-interval",
        "--ft-gpu-memory-poll-interval",
        type=float,
        default=2.0,
        help="Longest pause between two looks, in seconds.",
    ),
    _option(
        _HEALTH,
        "--storage-health-check-path",
        "--ft-storage-health-check-path",
        multiple=True,
        metavar="PATHS",
        help="Paths that have to answer, by commas.",
    ),
    _option(_HEALTH, "--storage-health-check-seconds", type=float, default=5.0, help="How long each may take."),
    _option(
        _HEALTH,
        "--segment-health-check-dir",
        "--ft-segment-health-check-dir",
        metavar="DIR",
        help="Where NVRx's segment health files lie.",
    ),
    _option(_HEALTH, "--control-dir", metavar="DIR", help="control/ of a chain's generation, for its drain markers."),
    _option(
        _HEALTH,
        "--health-check",
        metavar="COMMAND",
        help="Any program; another exit code than 0 is unhealthy, its last line the reason.",
    ),
    _option(_HEALTH, "--health-check-seconds", type=float, default=60.0, help="How long it may take."),
    _option(
        _HEALTH,
        "--health-check-ttl",
        type=float,
        default=0.0,
        help="For how long its 0 counts; 0 runs it before each round.",
    ),
)
"""Each option with its heading."""


def options_by_heading() -> Iterator[tuple[str, list[click.Option]]]:
    """In the order of the page."""
    for section in dict.fromkeys(section for section, _ in LAUNCH_OPTIONS):
        yield section, [option for heading, option in LAUNCH_OPTIONS if heading == section]
