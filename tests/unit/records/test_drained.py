"""Which drain marker is believed, and how a drained node is named: whatever is in doubt takes part."""

from __future__ import annotations

import msgspec
import pytest

from nvrx_chain.records.control import DrainedNode
from nvrx_chain.records.drained import STALE_POLLS, Doubt, Reader, find_doubt, name_drained
from tests.fakes.drain_records import MARKER, RENDEZVOUS

# The marker, read by task 1 on n2.

READER = Reader(task=1, nodes=("n2",), rendezvous=RENDEZVOUS)
LIMIT = STALE_POLLS * MARKER.poll_seconds


@pytest.mark.parametrize(
    ("changes", "still_seconds", "doubt"),
    [
        ({}, 0.0, None),
        ({}, LIMIT, None),
        ({"answer_age_seconds": LIMIT}, 0.0, None),
        ({"task": 2}, 0.0, Doubt.OTHER_TASK),
        ({"task_nodes": ("n4",)}, 0.0, Doubt.OTHER_NODES),
        ({"task_nodes": ("n2", "n4")}, 0.0, Doubt.OTHER_NODES),
        ({"task_nodes": ()}, 0.0, Doubt.OTHER_NODES),
        ({"pid": 101}, 0.0, Doubt.OTHER_HOST),
        ({"pid_started_at": 8}, 0.0, Doubt.OTHER_HOST),
        ({"boot_id": "another"}, 0.0, Doubt.OTHER_HOST),
        ({}, LIMIT + 1, Doubt.STALE),
        ({"answer_age_seconds": LIMIT + 1}, 0.0, Doubt.STALE),
        ({"answer_age_seconds": float("nan")}, 0.0, Doubt.STALE),
    ],
)
def test_a_marker_is_believed_only_where_everything_fits(
    changes: dict[str, object], still_seconds: float, doubt: Doubt | None
) -> None:
    assert find_doubt(msgspec.structs.replace(MARKER, **changes), READER, still_seconds) is doubt


def test_however_often_slurm_is_asked_a_marker_is_believed_for_as_long_as_ranks_take_to_end() -> None:
    often = msgspec.structs.replace(MARKER, poll_seconds=1.0)
    assert find_doubt(often, READER, 120.0) is None
    assert find_doubt(often, READER, 121.0) is Doubt.STALE


def test_before_a_rendezvous_is_seen_no_marker_is_believed() -> None:
    assert find_doubt(MARKER, Reader(task=1, nodes=("n2",), rendezvous=None), 0.0) is Doubt.OTHER_HOST


def test_a_drained_node_is_named_with_all_that_slurm_says_of_it() -> None:
    named = DrainedNode(node="n2", state="draining", reason="xid 79", by="root", since="2026-08-03T01:02:03Z")
    assert name_drained([named]) == 'n2 (draining since 2026-08-03T01:02:03Z, "xid 79" by root)'
    bare = DrainedNode(node="n3", state="drained", reason="", by="", since=None)
    assert name_drained([bare, bare]) == "n3 (drained, no reason), n3 (drained, no reason)"
