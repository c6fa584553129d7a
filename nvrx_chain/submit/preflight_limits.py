"""Does the cluster let so many jobs wait? Pure checks over the facts of a submit; a limit that is not known is none.

Every task of an array counts as a job, for MaxJobCount of slurm.conf as for the limits of associations and QOS.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.errors import Unobserved
from nvrx_chain.slurm.model import SubmitLimits
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.facts import SubmitFacts
from nvrx_chain.submit.problem import Problem, error, note, warning

_FEWER = "lower --chain-depth and queue the rest later with nvrx-chain extend, or have fewer tasks or cold spares"


def check_array_size(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """MaxArraySize limits the largest index, which must be below it."""
    if isinstance(facts.cluster, Unobserved) or facts.cluster.max_array_size is None:
        return
    largest, limit = config.shape.total - 1, facts.cluster.max_array_size
    if largest >= limit:
        yield error(
            f"the largest array index would be {largest}, and MaxArraySize of this cluster is {limit}",
            "use fewer tasks with more --nodes-per-task",
        )


def check_job_count(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """MaxJobCount is what the controller keeps of all users together; only the own jobs are known here."""
    if isinstance(facts.cluster, Unobserved) or facts.cluster.max_job_count is None:
        return
    wanted, present, limit = _wanted(config, facts), _present(facts), facts.cluster.max_job_count
    if wanted + present > limit:
        yield error(
            f"{_sum(config, facts)}; with {present} of yours that is more than MaxJobCount of this cluster, {limit}",
            _FEWER,
        )


def check_submit_limits(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """The limits of association and QOS, where accounting enforces them and tells them."""
    if facts.limits is None:
        return
    if isinstance(facts.limits, Unobserved):
        yield note(f"how many jobs your account and QOS may have was not looked at: {facts.limits.reason}")
        return
    wanted, present = _wanted(config, facts), _present(facts)
    for name, limit in find_limits(facts.limits, config):
        if wanted > limit:
            yield error(f"{_sum(config, facts)}, and {name} allows {limit}", _FEWER)
        elif wanted + present > limit:
            # Some of the others may be of another account or QOS.
            yield warning(f"{_sum(config, facts)}, {present} of yours are there, and {name} allows {limit}", _FEWER)


def find_limits(limits: SubmitLimits, config: ChainConfig) -> tuple[tuple[str, int], ...]:
    """(name, number) of each limit that is sure to hold for this chain.

    Of several associations that may be meant the most generous one.
    """
    asked = dict(word[2:].split("=", 1) for word in config.site_arguments)
    partitions = {"", *(config.partition or "").split(",")}
    rows = [
        row
        for row in limits.associations
        if row.partition in partitions and asked.get("account", row.account) == row.account
    ]
    found = []
    if rows and all(row.max_submit is not None for row in rows):
        row = max(rows, key=lambda each: each.max_submit or 0)
        found.append((f"MaxSubmitJobs of account {row.account}", row.max_submit or 0))
    qos = asked.get("qos") or _only({row.default_qos for row in rows})
    limit = limits.by_qos.get(qos) if qos else None
    if limit is not None:
        found.append((f"MaxSubmitJobsPerUser of QOS {qos}", limit))
    return tuple(found)


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _wanted(config: ChainConfig, facts: SubmitFacts) -> int:
    """Jobs that this submit adds: a half-submitted chain needs only the rest."""
    manifest = facts.directory.manifest
    generations = len(facts.directory.missing) if manifest is not None and not config.resume else config.chain_depth
    return config.shape.total * generations


def _present(facts: SubmitFacts) -> int:
    if isinstance(facts.queue, Unobserved):
        return 0
    return sum(task.user == facts.user and not task.state.is_terminal for task in facts.queue.tasks)


def _sum(config: ChainConfig, facts: SubmitFacts) -> str:
    total = config.shape.total
    wanted = _wanted(config, facts)
    return f"{wanted // total} generations of {total} tasks are {wanted} jobs"
