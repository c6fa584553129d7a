"""Which node does harm: common to the short cycles, or one on which task after task dies. Pure.

Blame is cheap and wrong blame costs a good node, so nothing is said where every node looks alike.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence

from nvrx_chain.clock import render_age
from nvrx_chain.errors import ExitCode, Unobserved
from nvrx_chain.slurm.model import AccountedTask
from nvrx_chain.slurm.states import JobState
from nvrx_watch.detectors.cycle_facts import age_of, length_of, newest_cycles, open_cycle, training_generation
from nvrx_watch.detectors.detector import Detector
from nvrx_watch.detectors.facts import final_verdict
from nvrx_watch.detectors.wording import count, listed
from nvrx_watch.model import Cycle, Finding, Severity, Snapshot, Source
from nvrx_watch.thresholds import WatchThresholds

_LOOK_BACK = 40
"""Among so many of the newest cycles the long ones are looked for."""

_MOST_SUSPECTS = 8
"""More suspects than this are no suspects."""

_FAILED = frozenset({JobState.FAILED, JobState.NODE_FAIL})

# Left because of something elsewhere: the host was lost, the generation never started, training said stop, a signal.
_NOT_ITS_FAULT = frozenset(
    {
        ExitCode.HOST_LOST,
        ExitCode.REFUSED,
        ExitCode.HELD,
        ExitCode.NOT_ASSEMBLED,
        ExitCode.NO_RESTART,
        ExitCode.TERMINATED,
        # sacct cuts the highest bit off codes: 143 is shown as 15.
        ExitCode.TERMINATED & 0x7F,
    }
)

_NODE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def find_suspect_node(snapshot: Snapshot, thresholds: WatchThresholds) -> Iterator[Finding]:
    """Nodes that the short cycles have in common and the long ones do not, and nodes on which tasks keep dying."""
    if final_verdict(snapshot) is not None:
        return
    why: dict[str, list[str]] = defaultdict(list)
    for node, text in (*_by_cycles(snapshot, thresholds).items(), *_by_tasks(snapshot, thresholds).items()):
        # The name goes into a command: one that came from a hostile record is no node.
        if _NODE_NAME.fullmatch(node) is not None:
            why[node].append(text)
    if len(why) > _MOST_SUSPECTS:
        return
    for node in sorted(why):
        yield _suspect(snapshot, node, tuple(why[node]))


def _by_cycles(snapshot: Snapshot, thresholds: WatchThresholds) -> dict[str, str]:
    wanted = max(2, thresholds.suspect_cycles)
    if _outlasts(snapshot, thresholds.short_cycle):
        return {}
    short: list[Cycle] = []
    others: set[str] = set()
    for _, cycle in newest_cycles(snapshot, _LOOK_BACK):
        seconds = length_of(cycle)
        is_short = seconds is not None and seconds < thresholds.short_cycle
        if len(short) < wanted and cycle.ended_at is not None:
            if not is_short:
                # A long one ends the row of short ones.
                return {}
            short.append(cycle)
        elif not is_short and seconds is not None:
            others.update(cycle.active_nodes)
    if len(short) < wanted:
        return {}
    common = frozenset.intersection(*(frozenset(cycle.active_nodes) for cycle in short))
    fewest = min(len(set(cycle.active_nodes)) for cycle in short)
    suspects = common - others
    if 2 * len(suspects) > fewest:
        # The nodes of every cycle are in every cycle: nothing tells one from the other.
        return {}
    text = f"it trained in each of the last {wanted} cycles, all shorter than {render_age(thresholds.short_cycle)}"
    return dict.fromkeys(suspects, f"{text}, and in none of the longer ones" if others else text)


def _outlasts(snapshot: Snapshot, seconds: float) -> bool:
    """Whether the present cycle has lasted for at least so long: whatever was wrong with a node, it trains."""
    generation = training_generation(snapshot)
    present = open_cycle(generation) if generation is not None else None
    lasted = age_of(present.started_at, snapshot.taken_at) if present is not None else None
    return lasted is not None and lasted >= seconds


def _by_tasks(snapshot: Snapshot, thresholds: WatchThresholds) -> dict[str, str]:
    if isinstance(snapshot.accounting, Unobserved):
        return {}
    blamed: dict[str, list[str]] = defaultdict(list)
    seen: set[str] = set()
    for rows in snapshot.accounting.values():
        failed: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            if not _on_one_node(row):
                continue
            seen.add(row.nodelist)
            if _failed_within(row, snapshot, thresholds.suspect_window):
                failed[row.nodelist].add(f"{row.array_job_id}_{row.array_task_id}")
        for node, specs in failed.items():
            # When training dies as a whole every node has its failed task. A node is to blame when it alone has one,
            # or more than one.
            if len(failed) == 1 or len(specs) > 1:
                blamed[node].extend(sorted(specs))
    suspects = {node: specs for node, specs in blamed.items() if len(specs) >= max(2, thresholds.suspect_tasks)}
    if len(suspects) > 1 and 2 * len(suspects) > len(seen):
        return {}
    window = render_age(thresholds.suspect_window)
    return {
        node: f"{count(len(specs), 'task')} failed on it within {window}: {listed(specs)}"
        for node, specs in suspects.items()
    }


def _on_one_node(row: AccountedTask) -> bool:
    """Whether a task ran on a single node: of several nodes, accounting does not say which one failed."""
    return row.array_task_id is not None and _NODE_NAME.fullmatch(row.nodelist) is not None


def _failed_within(row: AccountedTask, snapshot: Snapshot, window: float) -> bool:
    if row.state not in _FAILED or row.exit_code in _NOT_ITS_FAULT or row.exit_signal == signal.SIGTERM:
        return False
    ended = age_of(row.ended_at, snapshot.taken_at)
    return ended is not None and ended <= window


def _suspect(snapshot: Snapshot, node: str, why: Sequence[str]) -> Finding:
    queued = [str(one.array_job_id) for one in snapshot.queued()]
    waiting = f"; for what is queued: scontrol update JobId={queued[0]} ExcNodeList={node}" if queued else ""
    more = f" (and {listed(queued[1:])})" if queued[1:] else ""
    return Finding(
        detector="suspect_node",
        severity=Severity.WARNING,
        scope=node,
        title=f"node {node} may be bad: {why[0]}",
        details=tuple(why[1:]),
        advice=f"leave it out: sbatch --exclude={node}{waiting}{more}; an administrator drains it with:"
        f' scontrol update NodeName={node} State=DRAIN Reason="training restarts on it"',
    )


DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="suspect_node",
        severity=Severity.WARNING,
        needs=frozenset({Source.CYCLES, Source.ACCOUNTING}),
        fires="a node trained in each of the newest cycles, all of them short, and in none of the longer ones; or so"
        " many different array tasks failed on it within the window",
        quiet="the newest cycle was a long one; most nodes of the short cycles look alike; a whole generation failed at"
        " once; the tasks have several nodes each (accounting does not say which failed); they left because the host"
        " was lost, by a signal or by a no-restart verdict. A node that only stood by in the long cycles did not train"
        " in them; being swapped out for a standby node is no blame",
        todo="leave the node out with the `--exclude` that is printed, or have an administrator drain it; check its"
        " GPUs and links before it comes back",
        check=find_suspect_node,
    ),
)
