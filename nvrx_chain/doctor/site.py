"""What the controller and the database say of the site, all asked at once. Touches: Slurm (reads only)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from nvrx_chain.clock import Clock
from nvrx_chain.doctor.model import SlurmFacts
from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.model import ClusterConfig

ANY_JOB = 1
"""sacct answers for any id, known or not, when there is accounting."""
ASK_SECONDS = 3.0
"""A controller that hangs keeps each program this long; a doctor is to end within ten seconds."""


def read_site(client: SlurmClient, clock: Clock) -> SlurmFacts:
    """Never raises: what was not seen is `Unobserved`."""
    with ThreadPoolExecutor(3) as pool:
        config = pool.submit(_timed_config, client, clock)
        partitions = pool.submit(client.partitions)
        accounting = pool.submit(client.accounting, (ANY_JOB,), clock.now())
        answer, seconds = config.result()
        return SlurmFacts(
            config=answer,
            config_seconds=seconds,
            partitions=partitions.result(),
            accounting=accounting.result(),
        )


def _timed_config(client: SlurmClient, clock: Clock) -> tuple[ClusterConfig | Unobserved, float]:
    began = clock.monotonic()
    return client.config(), clock.monotonic() - began
