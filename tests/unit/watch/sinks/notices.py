"""Notices for the tests of the sinks."""

from __future__ import annotations

from datetime import datetime, timezone

from nvrx_watch.history import due_notices, update_history
from nvrx_watch.history_model import History, Notice, SinkPolicy
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Severity, Subject

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
SUBJECT = Subject(key="c0ffee", name="train <7b> & more", user="alice", uid=1000, cluster="big")

ORPHAN = Finding(
    detector="orphaned_generation",
    severity=Severity.CRITICAL,
    scope="123",
    title="task 0 of 123 is gone, 2 spares wait for it",
    details=("123_3 PENDING", "123_4 PENDING"),
    advice="release the spares",
    array_job_ids=(123,),
    action=ActionRequest(
        kind=ActionKind.CANCEL_PENDING, array_job_id=123, why="orphaned", command="scancel 123_3 123_4"
    ),
)


def trigger(finding: Finding = ORPHAN, subject: Subject = SUBJECT) -> Notice:
    """What is due for a finding that is seen for the first time."""
    policy = SinkPolicy(name="any", minimum_severity=Severity.INFO)
    history = update_history(History(), [finding], blind=frozenset(), now=AT)
    [(_, notice)] = due_notices(history, [finding], subject, (policy,), AT)
    return notice


def resolve(finding: Finding = ORPHAN, subject: Subject = SUBJECT) -> Notice:
    """What is due when it has ended."""
    from nvrx_watch.history import mark_sent

    policy = SinkPolicy(name="any", minimum_severity=Severity.INFO)
    history = mark_sent(History(), "any", trigger(finding, subject), AT)
    for _ in range(2):
        history = update_history(history, [], blind=frozenset(), now=AT)
    [(_, notice)] = due_notices(history, [], subject, (policy,), AT)
    return notice
