"""What `--json` prints of a pass over one chain. Pure vocabulary.

A field is never renamed or removed while `schema` is the same.
"""

from __future__ import annotations

import msgspec

from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionKind, Severity
from nvrx_watch.ui.marks import ChainWord, MarkKind

SCHEMA = 1


class ChainObject(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the pass was about. `key` is stable over the life of the chain; None is "not known" throughout."""

    key: str
    name: str
    user: str
    cluster: str | None
    chain_id: str | None
    run_directory: str | None


class ActionWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding would have done; `command` is what the owner types for the same."""

    kind: ActionKind
    array_job_id: int | None
    why: str
    command: str


class FindingObject(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `key` is the identity of the incident within its chain and holds no number that grows."""

    detector: str
    severity: Severity
    key: str
    title: str
    details: tuple[str, ...]
    advice: str
    array_job_ids: tuple[int, ...]
    action: ActionWanted | None


class ActionObject(msgspec.Struct, frozen=True, kw_only=True):
    """One action. `asked`, `gone`, `still_there` are task specs such as `123_4`, as the last reading shows them."""

    detector: str
    kind: ActionKind
    array_job_id: int | None
    state: ActionState
    asked: tuple[str, ...]
    gone: tuple[str, ...]
    still_there: tuple[str, ...]
    why: str
    command: str


class GenerationObject(msgspec.Struct, frozen=True, kw_only=True):
    """One generation, in the order of submission.

    `word` is its outcome word, or Slurm's state of its task 0, or how it is in the queue; `outcome` is the word of its
    own files alone. `tasks` counts its tasks by state: None when the queue was not seen, empty when none is listed.
    `cycles` None: no record, or it could not be read (`unobserved` says which).
    """

    array_job_id: int
    sequence: int
    state: MarkKind
    word: str
    outcome: str | None
    tasks: dict[str, int] | None
    cycles: int | None


class PassObject(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over one chain.

    `exit_code` is 0 clean, 1 degraded (something in `unobserved` or `broken`), 2 at least one critical finding.
    `state` is how the chain is, `verdict` its final word, `held_by` who holds it. `iteration` is the checkpoint
    iteration: None when there is none, and also when `unobserved` has `iteration`. `unobserved` and `unavailable` map a
    source to the reason, `skipped` and `broken` a detector. `pass_seconds` is how long the pass took.
    """

    schema: int = SCHEMA
    chain: ChainObject
    taken_at: str
    exit_code: int
    state: ChainWord
    verdict: str | None
    held_by: str | None
    iteration: int | None
    findings: tuple[FindingObject, ...]
    actions: tuple[ActionObject, ...]
    generations: tuple[GenerationObject, ...]
    unobserved: dict[str, str]
    unavailable: dict[str, str]
    skipped: dict[str, str]
    broken: dict[str, str]
    notes: tuple[str, ...]
    pass_seconds: float | None
