"""Checks that need both machines: the visit itself, the shared directory, the interpreters, the clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.doctor.facts import Directory, Host, Place
from nvrx_chain.doctor.model import Check, Evidence, Line, NodeVisit, bad, ok, unknown, warn
from nvrx_chain.errors import Unobserved

SLOW_NOTICE_SECONDS = 5.0
SKEW_SECONDS = 2.0
TOO_MUCH_SKEW_SECONDS = 240.0
"""munge refuses a message that is five minutes old: Slurm then fails with "Invalid job credential"."""


def check_visit(evidence: Evidence) -> Iterator[Line]:
    """A job got a node, and a program of ours ran there and answered."""
    visit = evidence.visit
    if visit is None:
        return
    where = visit.node or "node"
    if isinstance(visit.place, Place):
        yield ok("job", where, f"job {visit.job_id} ran after {visit.waited_seconds or 0.0:.1f} s, and answered")
    elif visit.problem is not None:
        yield bad("job", where, visit.problem, visit.mend or "ask the site")
    else:
        yield unknown("job", where, visit.place.reason, visit.mend)
    if visit.left is not None:
        yield warn("job", where, visit.left, f"scancel {visit.job_id or '--name=nvrx-doctor'}")


def check_seen(evidence: Evidence) -> Iterator[Line]:
    """What one machine writes the other one sees, and how soon."""
    for visit, place in _visited(evidence):
        seen = place.directory
        where = visit.node or "node"
        if isinstance(seen, Unobserved) or seen.problem or isinstance(evidence.login.directory, Unobserved):
            continue
        if seen.echo is None:
            mend = "each saw the directory and not the other's files: look at the mount options of both"
            yield bad("seen", where, seen.echo_problem or "no answer", mend)
            continue
        seconds = seen.echo.round_trip_seconds
        text = f"seen after {seen.seen_after_seconds or 0.0:.2f} s; a file and its answer took {seconds:.2f} s"
        if max(seconds, seen.seen_after_seconds or 0.0) > SLOW_NOTICE_SECONDS:
            mend = "attribute caches: each step of a hand-off waits as long (mount options actimeo, lookupcache)"
            yield warn("seen", where, text, mend)
        elif _differ(evidence.login.directory, seen):
            mend = "the same path on two file systems that happen to agree: look at both mounts"
            yield warn("seen", where, f"{text}; {evidence.login.directory.kind} here, {seen.kind} there", mend)
        else:
            yield ok("seen", where, text)


def _differ(login: Directory, node: Directory) -> bool:
    return login.kind is not None and node.kind is not None and login.kind != node.kind


def check_same_code(evidence: Evidence) -> Iterator[Line]:
    """Both machines run the same interpreter with the same nvrx-chain."""
    for visit, place in _visited(evidence):
        here, there, where = evidence.login.host, place.host, visit.node or "node"
        if isinstance(here, Unobserved) or isinstance(there, Unobserved):
            yield unknown("same-code", where, there.reason if isinstance(there, Unobserved) else "see login: no answer")
        elif here.package_version != there.package_version:
            text = f"nvrx-chain {there.package_version} there, {here.package_version} here"
            yield bad("same-code", where, text, "install one version, on a file system that every node sees")
        elif here.python_version != there.python_version:
            text = f"Python {there.python_version} there, {here.python_version} here"
            yield warn("same-code", where, text, "the same path leads to two interpreters: install one for all nodes")
        else:
            yield ok("same-code", where, f"nvrx-chain {there.package_version}, Python {there.python_version}")


def check_clocks(evidence: Evidence) -> Iterator[Line]:
    """The chain compares no clocks of two machines, but munge does, and people compare logs."""
    for visit, place in _visited(evidence):
        where = visit.node or "node"
        if isinstance(place.host, Unobserved):
            yield unknown("clocks", where, place.host.reason)
            continue
        skew, error = _skew(visit, place.host, place.directory)
        text = f"{abs(skew):.2f} s {'ahead' if skew > 0 else 'behind'}, to {error:.2f} s"
        certain = abs(skew) - error
        if certain > TOO_MUCH_SKEW_SECONDS:
            yield bad("clocks", where, text, "munge refuses what is five minutes off: mend NTP")
        elif certain > SKEW_SECONDS:
            yield warn("clocks", where, text, "times in logs of two nodes do not compare: look at NTP")
        else:
            yield ok("clocks", where, text)


def _skew(visit: NodeVisit, host: Host, directory: Directory | Unobserved) -> tuple[float, float]:
    """(seconds that the node's clock is ahead, error). By the exchange of files, else by when srun began and ended."""
    if isinstance(directory, Directory) and directory.echo is not None:
        return directory.echo.skew_seconds, directory.echo.round_trip_seconds / 2
    middle = (visit.began_at + visit.ended_at) / 2
    return host.read_at - middle, (visit.ended_at - visit.began_at) / 2


def _visited(evidence: Evidence) -> Iterator[tuple[NodeVisit, Place]]:
    if evidence.visit is not None and isinstance(evidence.visit.place, Place):
        yield evidence.visit, evidence.visit.place


NODE_CHECKS: tuple[Check, ...] = (check_visit, check_seen, check_same_code, check_clocks)
