"""A drain marker of task 1 on n2, and the rendezvous of the task 0 that wrote it."""

from __future__ import annotations

from nvrx_chain.records.control import Drained, DrainedNode, Rendezvous

RENDEZVOUS = Rendezvous(
    array_job_id=7,
    array_task_id=0,
    restart_count=0,
    host="n1",
    boot_id="boot",
    pid=100,
    pid_started_at=7,
    rendezvous_host="n1",
    rendezvous_port=20001,
    nonce="ab",
    secret="cd",
    published_at="2026-08-03T01:00:00Z",
    started_at="2026-08-03T01:00:01Z",
    members=(0, 1),
    present=(0, 1),
)
MARKER = Drained(
    array_job_id=7,
    array_task_id=0,
    restart_count=0,
    host="n1",
    boot_id="boot",
    pid=100,
    pid_started_at=7,
    task=1,
    task_nodes=("n2",),
    drained_nodes=(DrainedNode(node="n2", state="draining", reason="bad disk", by="root", since=None),),
    is_active=True,
    excluded=True,
    seen_at="2026-08-03T01:02:03Z",
    returned_at=None,
    poll=3,
    poll_seconds=60.0,
    answer_age_seconds=0.0,
)
