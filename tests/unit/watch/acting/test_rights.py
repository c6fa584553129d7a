"""Nothing happens without `--act`, little without `--allow`, and nothing to others' jobs but as operator."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from nvrx_chain.errors import Unobserved
from nvrx_watch.acting.deed import Deed
from nvrx_watch.acting.rights import forbid
from nvrx_watch.action_model import ActionState, Rights
from nvrx_watch.model import ActionKind, ActionRequest, Snapshot, Source, SourceReport
from tests.unit.watch import build
from tests.unit.watch.acting.scene import Scene

NEED_ALLOW = sorted(set(ActionKind) - {ActionKind.CANCEL_PENDING})


def ask(kind: ActionKind, snapshot: Snapshot | None = None, **given: object) -> Deed | None:
    rights = {"user": build.USER, "uid": build.UID, "act": True, "allowed": frozenset(ActionKind), **given}
    command = shlex.join(["nvrx-chain", "hold", "--run-dir", str(build.RUN_DIRECTORY)])
    request = ActionRequest(kind=kind, array_job_id=11, why="why", command=command)
    return forbid(request, snapshot or build.snapshot(), Rights(**rights))  # type: ignore[arg-type]


def state(kind: ActionKind, snapshot: Snapshot | None = None, **given: object) -> ActionState | None:
    deed = ask(kind, snapshot, **given)
    return deed.state if deed is not None else None


@pytest.mark.parametrize("kind", ActionKind)
def test_the_owner_may_do_what_was_allowed(kind: ActionKind) -> None:
    assert state(kind) is None


@pytest.mark.parametrize("kind", ActionKind)
def test_without_act_everything_is_only_observed(kind: ActionKind) -> None:
    assert state(kind, act=False) is ActionState.OBSERVE_ONLY
    assert state(kind, act=False, as_operator=True, uid=0, user="root") is ActionState.OBSERVE_ONLY


def test_act_alone_releases_pending_spares() -> None:
    assert state(ActionKind.CANCEL_PENDING, allowed=frozenset()) is None


@pytest.mark.parametrize("kind", NEED_ALLOW)
def test_everything_else_needs_to_be_allowed_by_name(kind: ActionKind) -> None:
    others = frozenset(ActionKind) - {kind}
    assert state(kind, allowed=frozenset()) is ActionState.OBSERVE_ONLY
    assert state(kind, allowed=others) is ActionState.OBSERVE_ONLY
    assert state(kind, allowed=frozenset({kind})) is None


@pytest.mark.parametrize("kind", ActionKind)
@pytest.mark.parametrize(("user", "uid"), [("bob", 1002), ("root", 0), ("bob", build.UID), (build.USER, 1002)])
def test_others_and_root_do_not_act_on_the_owners_jobs(kind: ActionKind, user: str, uid: int) -> None:
    assert state(kind, user=user, uid=uid) is ActionState.NOT_OWNER


def test_an_owner_who_is_not_known_here_is_nobody() -> None:
    unknown = build.snapshot(subject=build.subject(uid=None))
    assert state(ActionKind.CANCEL_PENDING, unknown) is ActionState.NOT_OWNER


def test_the_owner_is_told_the_exact_command() -> None:
    deed = ask(ActionKind.HOLD, user="bob", uid=1002)
    assert deed is not None
    _, _, command = deed.why.partition("its owner runs: ")
    assert shlex.split(command) == ["nvrx-chain", "hold", "--run-dir", str(build.RUN_DIRECTORY)]


@pytest.mark.parametrize("kind", [ActionKind.CANCEL_PENDING, ActionKind.CANCEL_CHAIN, ActionKind.FENCE])
def test_an_operator_does_nothing_for_a_user_whom_the_user_database_does_not_show(kind: ActionKind) -> None:
    unknown = build.snapshot(subject=replace(build.subject(), is_user_shown=False))
    deed = ask(kind, unknown, user="root", uid=0, as_operator=True)
    assert deed is not None
    assert deed.state is ActionState.REFUSED
    assert "does not know" in deed.why
    assert state(kind, unknown) is None


def test_an_operator_may_cancel() -> None:
    for kind in (ActionKind.CANCEL_PENDING, ActionKind.CANCEL_CHAIN):
        assert state(kind, user="root", uid=0, as_operator=True) is None
        assert state(kind, user="oscar", uid=4711, as_operator=True) is None
    assert state(ActionKind.FENCE, user="root", uid=0, as_operator=True) is None


def test_an_operator_neither_submits_nor_holds_for_somebody_else() -> None:
    for kind in (ActionKind.EXTEND, ActionKind.HOLD):
        assert state(kind, user="root", uid=0, as_operator=True) is ActionState.NOT_OWNER


def test_an_operator_who_is_not_root_does_not_fence() -> None:
    assert state(ActionKind.FENCE, user="oscar", uid=4711, as_operator=True) is ActionState.REFUSED


@pytest.mark.parametrize("kind", ActionKind)
def test_a_blind_pass_allows_nothing(kind: ActionKind) -> None:
    assert state(kind, build.snapshot(queue=Unobserved("squeue did not answer"))) is ActionState.FAILED


@pytest.mark.parametrize("kind", [ActionKind.FENCE, ActionKind.HOLD, ActionKind.EXTEND])
def test_what_needs_our_files_is_refused_for_a_foreign_chain(kind: ActionKind) -> None:
    assert state(kind, build.snapshot(subject=build.foreign_subject())) is ActionState.REFUSED


def test_a_foreign_chain_gets_its_pending_spares_released() -> None:
    assert state(ActionKind.CANCEL_PENDING, build.snapshot(subject=build.foreign_subject())) is None


@pytest.mark.parametrize("changes", [{"user": "bob"}, {"uid": 1002}, {"chain_id": "other"}])
def test_a_manifest_that_speaks_for_somebody_else_is_refused(changes: dict[str, object]) -> None:
    snapshot = build.snapshot(subject=build.subject(manifest=build.manifest(**changes)))
    assert state(ActionKind.CANCEL_PENDING, snapshot) is ActionState.REFUSED


def test_a_chain_without_a_name_is_refused() -> None:
    snapshot = build.snapshot(subject=build.foreign_subject(name=""))
    assert state(ActionKind.CANCEL_PENDING, snapshot) is ActionState.REFUSED


@pytest.mark.parametrize("kind", ActionKind)
def test_nobody_without_the_right_reaches_slurm(tmp_path: Path, kind: ActionKind) -> None:
    scene = Scene(tmp_path)
    scene.submit()
    scene.orphan()
    seen = scene.snapshot()
    for rights in (
        scene.rights(act=False),
        scene.rights(user="bob", uid=4711),
        replace(scene.rights(), user="bob"),
    ):
        report = scene.act(kind, 11, snapshot=seen, desk=scene.desk(rights=rights))
        assert report.state in (ActionState.OBSERVE_ONLY, ActionState.NOT_OWNER)
    assert not scene.slurm.calls
    assert not scene.commands


@pytest.mark.parametrize("source", list(Source))
def test_a_pass_that_could_not_see_everything_allows_nothing(source: Source) -> None:
    blind = build.snapshot(sources=SourceReport(unobserved={source: "down"}))
    assert state(ActionKind.CANCEL_PENDING, blind) is ActionState.FAILED


def test_a_chain_of_which_only_the_directory_was_named_is_left_alone() -> None:
    guessed = build.snapshot(subject=build.foreign_subject(key="directory:/w", uid=build.UID))
    assert state(ActionKind.CANCEL_PENDING, guessed) is ActionState.REFUSED
