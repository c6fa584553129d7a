"""The closed sets of words that end a generation or a chain. docs/protocol.md is their one full copy; a test compares.

Pure vocabulary.
"""

from __future__ import annotations

import enum


class Outcome(str, enum.Enum):
    """How a generation ended: the word in its `closed.json`."""

    COMPLETED = "completed"
    NO_RESTART = "no_restart"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    WALLTIME = "walltime"
    TERMINATED = "terminated"
    PREEMPTED = "preempted"
    LEASE_LOST = "lease_lost"
    RENDEZVOUS_LOST = "rendezvous_lost"
    SUPERSEDED = "superseded"
    STUCK = "stuck"
    REFUSED = "refused"
    HELD = "held"
    NOT_ASSEMBLED = "not_assembled"


class Verdict(str, enum.Enum):
    """How a chain ended: the word in `chain_outcome.json`. Final for its chain_id."""

    COMPLETED = "completed"
    NO_RESTART = "no_restart"
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"


class TeardownAction(str, enum.Enum):
    """What whoever closes a generation does to the queue afterwards."""

    CANCEL_REST = "cancel_rest"
    """Every pending task of the chain, this generation's and all later ones'; the chain is over."""
    RELEASE_SPARES = "release_spares"
    """The pending tasks of this generation, so that the next one can start."""
    CANCEL_GENERATION = "cancel_generation"
    """Every task of this generation that is not terminal."""
    LEAVE_THEN_CANCEL = "leave_then_cancel"
    """All leave by themselves; then every task of this generation that has not."""
    LEAVE = "leave"
    """Nothing: somebody else owns the queue now."""


TEARDOWN: dict[Outcome, TeardownAction] = {
    Outcome.COMPLETED: TeardownAction.CANCEL_REST,
    Outcome.NO_RESTART: TeardownAction.CANCEL_REST,
    Outcome.FAILED: TeardownAction.RELEASE_SPARES,
    Outcome.UNFINISHED: TeardownAction.RELEASE_SPARES,
    Outcome.WALLTIME: TeardownAction.RELEASE_SPARES,
    Outcome.TERMINATED: TeardownAction.RELEASE_SPARES,
    Outcome.PREEMPTED: TeardownAction.RELEASE_SPARES,
    Outcome.LEASE_LOST: TeardownAction.CANCEL_GENERATION,
    Outcome.RENDEZVOUS_LOST: TeardownAction.LEAVE_THEN_CANCEL,
    Outcome.SUPERSEDED: TeardownAction.LEAVE,
    Outcome.STUCK: TeardownAction.RELEASE_SPARES,
    Outcome.REFUSED: TeardownAction.RELEASE_SPARES,
    Outcome.HELD: TeardownAction.RELEASE_SPARES,
    Outcome.NOT_ASSEMBLED: TeardownAction.RELEASE_SPARES,
}

BRAKE_COUNTS: frozenset[Outcome] = frozenset({Outcome.FAILED, Outcome.UNFINISHED})
"""The outcomes that wear the brake down when the generation made no new checkpoint."""

CHAIN_VERDICT: dict[Outcome, Verdict] = {
    Outcome.COMPLETED: Verdict.COMPLETED,
    Outcome.NO_RESTART: Verdict.NO_RESTART,
}
"""The outcomes of a generation that end its whole chain."""
