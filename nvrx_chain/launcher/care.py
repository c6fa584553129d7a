"""What a launcher does about the health of its node, in the form in which its loop calls it: in threads, and bounded.

Touches: what the checks, the GPU process and the reclaim touch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from nvrx_chain.launcher.checks import make_checks
from nvrx_chain.launcher.domain import read_domain
from nvrx_chain.launcher.environment import SECRET
from nvrx_chain.launcher.gpu_probe import open_gpus
from nvrx_chain.launcher.health import HealthChecks
from nvrx_chain.launcher.health_settings import HealthSettings
from nvrx_chain.launcher.place import Place
from nvrx_chain.launcher.reclaim import Reclaim, ReclaimSettings

log = logging.getLogger(__name__)

_MARGIN_SECONDS = 5.0
"""Over the longest limit of a check: each shall give its own reason rather than be cut off."""


def check_deadline_seconds(settings: HealthSettings) -> float:
    """How long all checks together may take."""
    limits = [settings.storage_seconds]
    if settings.gpu:
        limits.append(settings.gpu_seconds)
    if settings.command:
        limits.append(settings.command_seconds)
    return max(limits) + _MARGIN_SECONDS


class NodeCare:
    """The health of one node over the life of its launcher. Starts nothing before it is asked."""

    def __init__(
        self, health: HealthSettings, reclaim: ReclaimSettings, place: Place, environ: Mapping[str, str]
    ) -> None:
        # What proves a launcher to the others of its job is none of a health check's business.
        environ = {name: value for name, value in environ.items() if name != SECRET}
        self._environ = environ
        self._place = place
        self._gpus = open_gpus(environ)
        self._deadline_seconds = check_deadline_seconds(health)
        self._checks = HealthChecks(make_checks(health, place, environ, self._gpus))
        self._reclaim = Reclaim(reclaim, self._gpus)

    def domain(self, segment: int | None) -> str | None:
        """The NVLink domain of this node, None in simple mode. Raises NvrxError."""
        return read_domain(segment, self._place.node, self._environ, self._gpus)

    def start_background(self) -> None:
        """From now on renew what has a time to live, also while ranks train."""
        self._checks.start_background()

    def check(self, round_number: int) -> str | None:
        """What is wrong with the node before it joins a round; None when nothing is."""
        found = self._checks.check(round_number, self._deadline_seconds)
        log.info("health of this node round=%s seconds=%.3f found=%s", round_number, found.seconds, found.describe())
        return None if found.is_healthy else found.describe()

    @property
    def must_reclaim(self) -> bool:
        """Whether ended ranks may hold GPU memory that new ones have to wait for."""
        return self._reclaim.is_needed

    def reclaim(self) -> None:
        """Wait until ended ranks have given back their GPU memory, or for the time-out."""
        # Without their pids: those that NVML still lists are known as gone, as zombies, or by the usage of the device.
        self._reclaim.wait(())

    def close(self) -> None:
        """No further looks; the process that asks NVML ends."""
        self._checks.close()
        if self._gpus is not None:
            self._gpus.close()
