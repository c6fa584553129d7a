"""Every limit by which a detector judges, with its one default. Durations in seconds. Pure."""

from __future__ import annotations

import msgspec


class WatchThresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[thresholds]` of the configuration file; docs/detectors.md says which detector reads which."""

    orphan_grace: float = 60.0
    """Between the end of task 0 and the release of its spares: the peers' own clean-up comes first."""
    running_orphan_grace: float = 120.0
    """The same for spares that run: they leave by themselves when their gate sees the closed generation."""
    dry_passes: int = 2
    """Passes that must see an empty queue before a chain counts as run dry."""
    churn_generations: int = 3
    """So many generations in a row shorter than `churn_seconds` each are churn."""
    churn_seconds: float = 600.0
    idle_generations: int = 3
    """So many ended generations in a row without a new checkpoint are no progress."""
    overlap_grace: float = 30.0
    """For how long tasks of two generations may hold nodes at once (one COMPLETING)."""
    lease_stale: float = 90.0
    """A lease counter of task 0 that this watcher saw stand still for so long asks for a look at its node."""
    not_leaving: float = 300.0
    """A closed generation that holds nodes for longer: drain, KillWait and a few tries of its peers are over."""
    assembling: float = 900.0
    """A generation that waits for its tasks for longer is reported, with the node-hours it idles away."""
    handoff: float = 600.0
    """The chain has no running generation for so long although one is queued."""
    hold_reminder: float = 3600.0
    """A hold older than this turns from information into a warning."""
    storm_cycles: int = 5
    """So many cycles that ended within `storm_window` are a storm."""
    storm_window: float = 1800.0
    short_cycle: float = 600.0
    """A cycle that lasted less is short."""
    stalled_cycles: int = 3
    """So many ended cycles since the checkpoint iteration last moved are stalled progress."""
    never_checkpointed: float = 7200.0
    """Training that has run for so long without any checkpoint."""
    cycle_stalled: float = 1800.0
    """An open cycle whose log and checkpoint have both stood still for so long."""
    first_cycle_stalled: float = 3600.0
    """The same for the first cycle of a generation: loading and compiling say little."""
    budget_left: int = 1
    """A warning when the launcher has no more than so many restarts left in this generation."""
    same_iteration_cycles: int = 3
    """So many cycles in a row that ended within `same_iteration_span` iterations of each other."""
    same_iteration_span: int = 5
    suspect_cycles: int = 3
    """So many short cycles in a row that share a node which the long ones do not."""
    suspect_tasks: int = 2
    """So many different tasks that failed on one node within `suspect_window`."""
    suspect_window: float = 7200.0
    queue_blind: float = 900.0
    """No pass has seen the queue for so long: then nobody is watching, which is critical."""
    clock_skew: float = 120.0
    """A record that lies so far in the future says that clocks differ."""
    free_bytes: int = 1 << 30
    """Less free space than this below the run directory is reported."""
    keep_queued: int = 1
    """Fewer generations than this behind the one that runs are too few; `--keep-queued` raises it."""
    last_generation_wall: float = 86400.0
    """Time left to the wall of the last queued generation under which `last_generation_running` becomes a warning."""
