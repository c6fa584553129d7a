"""What one launcher is told: the settings of `nvrx-chain launch` with their defaults. Pure.

Names and meaning follow torchrun and ft_launcher 0.7.0 where these have the same thing. Times are seconds.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.capture import CaptureSettings
from nvrx_chain.launcher.hang_limits import HangLimits
from nvrx_chain.launcher.health_settings import HealthSettings
from nvrx_chain.launcher.log_settings import LogLimits, LogPlaces
from nvrx_chain.launcher.numa import NumaBinding
from nvrx_chain.launcher.progress import ProgressSettings
from nvrx_chain.launcher.reclaim import ReclaimSettings

DEFAULT_PORT = 29500
PRELOAD = ("torch", "torch.distributed")


class WorkerStore(str, enum.Enum):
    """Who hosts the store in which the ranks meet."""

    AGENT = "agent"
    """The launcher of group rank 0: ready before the ranks are."""
    RANK0 = "rank0"
    """Rank 0 itself, as under ft_launcher: for a script that opens further stores of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """Where what happens is written down; None for nowhere."""

    cycle_info_dir: Path | None = None
    timeline_dir: Path | None = None
    checkpoint_iteration_file: Path | None = None
    verdict_file: Path | None = None
    """Its existence ends the job for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How the output of ranks and launchers is kept."""

    places: LogPlaces = field(default_factory=LogPlaces)
    limits: LogLimits = field(default_factory=LogLimits)
    is_funnelled: bool = False
    """Whether one writer, on the host's node, writes the lines of all nodes."""
    funnel_port: int = 0
    prefix_ranks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """All settings of one launcher."""

    min_nodes: int
    max_nodes: int
    procs_per_node: int
    argv: tuple[str, ...]
    module: bool = False
    no_python: bool = False
    role: str = "default"

    host: str = "localhost"
    port: int = 0
    run_id: str = "none"
    is_host: bool | None = None
    """None: the launcher with the lowest place hosts."""
    local_addr: str | None = None
    secret: str = ""
    join_timeout: float = 600.0
    connect_timeout: float = 120.0
    last_call_timeout: float = 1.0
    last_call_max: float = 30.0
    first_round_grace: float = 0.0
    liveness_timeout: float = 10.0
    rebalance_on_restart: bool = False
    segment: int | None = None

    max_restarts: int = 0
    stop_grace: float = 2.0
    term_timeout: float = 1800.0
    no_restart_exit_code: int = 93

    warm_workers: bool = True
    preload: tuple[str, ...] = PRELOAD
    refill_delay: float = 30.0
    worker_store: WorkerStore = WorkerStore.AGENT
    numa: NumaBinding | None = None

    records: RecordSettings = field(default_factory=RecordSettings)
    progress: ProgressSettings = field(default_factory=ProgressSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    hang: HangLimits = field(default_factory=HangLimits)
    capture: CaptureSettings | None = None
    health: HealthSettings = field(default_factory=HealthSettings)
    reclaim: ReclaimSettings = field(default_factory=ReclaimSettings)


def parse_nnodes(word: str) -> tuple[int, int]:
    """`MIN:MAX`, or one number for both. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", word, re.ASCII)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise UsageError("reading --nnodes", part=word, hint="write MIN:MAX: MIN nodes train, the others are spares")
    return least, most


def parse_endpoint(word: str) -> tuple[str, int]:
    """`HOST[:PORT]`. Raises UsageError."""
    host, _, port = word.rpartition(":") if ":" in word else (word, "", str(DEFAULT_PORT))
    if not host or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or int(port) > 65535:
        raise UsageError("reading --rdzv-endpoint", part=word, hint="write HOST:PORT")
    return host.strip("[]"), int(port)


RDZV_CONF = ("is_host", "join_timeout", "last_call_timeout", "store_connect_wait_seconds", "segment")
_IGNORED_CONF = frozenset({"close_timeout", "read_timeout", "use_libuv", "timeout", "segment_check_interval"})
"""Keys of ft_launcher and torchrun that steer what we do not have."""
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def parse_rdzv_conf(word: str) -> Mapping[str, str]:
    """`key=value,...`. Raises UsageError for a key that means nothing here."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in word.split(","))):
        key, equals, value = part.partition("=")
        if not equals or (key not in RDZV_CONF and key not in _IGNORED_CONF):
            raise UsageError("reading --rdzv-conf", part=part, hint=f"known keys: {', '.join(RDZV_CONF)}")
        if key in RDZV_CONF:
            found[key] = value
    return found


def parse_bool(name: str, word: str) -> bool:
    """On or off, in any of the usual words. Raises UsageError for another: `1` must never mean false."""
    if word.strip().lower() in _TRUE:
        return True
    if word.strip().lower() in _FALSE:
        return False
    raise UsageError(f"reading {name}", part=word, hint="write true or false")


def parse_seconds(name: str, word: str) -> float:
    """A number of seconds, 0 or more. Raises UsageError."""
    try:
        found = float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise UsageError(f"reading {name}", part=word, hint="write a number of seconds")
    return found
