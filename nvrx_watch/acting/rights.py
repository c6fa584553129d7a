"""Whether a request may be carried out at all: what was allowed, and whose chain it is. Pure.

Being able to is not being allowed to: root may cancel anybody's job, and does so only as operator.
"""

from __future__ import annotations

from nvrx_chain.errors import Unobserved
from nvrx_watch.acting.deed import Deed, failed, plain, refused
from nvrx_watch.action_model import ActionState, Rights
from nvrx_watch.model import ActionKind, ActionRequest, Snapshot, Subject

_OWNER_ONLY = frozenset({ActionKind.HOLD, ActionKind.EXTEND})
"""The nvrx-chain command does these, for the owner alone: what an operator submits would run as the operator."""
_OURS_ONLY = frozenset({ActionKind.FENCE, ActionKind.HOLD, ActionKind.EXTEND})
"""They need the files of a chain that nvrx-chain submitted."""
_WRITES_FILES = frozenset({ActionKind.FENCE})
"""They write into the run directory, where readers believe the owner and root only."""


def forbid(request: ActionRequest, snapshot: Snapshot, rights: Rights) -> Deed | None:
    """Why the request is not carried out; None when it may be, as far as rights and sources go."""
    by_itself = request.kind is ActionKind.CANCEL_PENDING
    missing = [] if rights.act else ["--act"]
    if not by_itself and request.kind not in rights.allowed:
        missing.append(f"--allow {request.kind.value}")
    if missing:
        return Deed(state=ActionState.OBSERVE_ONLY, why=f"{' and '.join(missing)} not given")
    subject = snapshot.subject
    if not _may_touch(request.kind, subject, rights):
        return Deed(state=ActionState.NOT_OWNER, why=_for_the_owner(request, subject, rights))
    if request.kind in _OURS_ONLY and not (subject.is_ours and subject.run_directory is not None):
        return refused("nvrx-chain did not submit this chain")
    if request.kind in _WRITES_FILES and rights.uid not in (subject.uid, 0):
        return refused("only the owner and root can write what the tasks of this chain believe")
    if isinstance(snapshot.queue, Unobserved):
        return failed(f"this pass could not see the queue: {snapshot.queue.reason}")
    if snapshot.sources.unobserved:
        blind = ", ".join(sorted(source.value for source in snapshot.sources.unobserved))
        return failed(f"this pass could not see everything: {blind}")
    if subject.key.startswith("directory:"):
        return refused("only the directory was named, and its jobs are known by a guess: name it by a job id")
    if not (owns(subject, rights) or subject.is_user_shown):
        # A forged manifest names whose jobs it likes; only the user database tells whether its owner is that user.
        return refused(
            f"the user database here does not know {plain(subject.user)}: whose files these are is not shown"
        )
    return _mismatch(subject)


def owns(subject: Subject, rights: Rights) -> bool:
    """Whether the watcher runs as the user of the chain, by number and by name."""
    return subject.uid is not None and subject.uid == rights.uid and subject.user == rights.user


def _may_touch(kind: ActionKind, subject: Subject, rights: Rights) -> bool:
    if owns(subject, rights):
        return True
    return rights.as_operator and kind not in _OWNER_ONLY


def _for_the_owner(request: ActionRequest, subject: Subject, rights: Rights) -> str:
    command = plain(request.command)
    return f"the chain belongs to {plain(subject.user)}, and this is {rights.user}; its owner runs: {command}"


def _mismatch(subject: Subject) -> Deed | None:
    """A chain whose jobs cannot be told from others'."""
    if not subject.user or not subject.name:
        return refused("the user or the name of the chain is not known")
    manifest = subject.manifest
    if manifest is None:
        return None
    # A manifest speaks for its own user only; one that names somebody else would steer cancels at their jobs.
    if (manifest.user, manifest.uid, manifest.chain_id) != (subject.user, subject.uid, subject.chain_id):
        return refused("the manifest is that of another user or chain")
    return None
