"""Carries out what the findings of a pass ask for, as far as that is allowed. Touches: what the actions touch.

One action per kind and array job, whatever the number of findings that ask for it; nothing but a programming error
comes out of it as an exception.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from nvrx_chain.errors import IdentityError, NvrxError
from nvrx_watch.acting.action_log import NOTHING_TRIED, append_action
from nvrx_watch.acting.cancel_chain import cancel_chain
from nvrx_watch.acting.cancel_pending import cancel_pending
from nvrx_watch.acting.deed import Deed, failed, plain, refused
from nvrx_watch.acting.desk import ActionDesk
from nvrx_watch.acting.extend import extend
from nvrx_watch.acting.fence import fence
from nvrx_watch.acting.hold import hold
from nvrx_watch.acting.rights import forbid
from nvrx_watch.action_model import ActionReport, ActionState
from nvrx_watch.model import ActionKind, ActionRequest, Finding, Snapshot

__all__ = ["ActionDesk", "perform"]

log = logging.getLogger(__name__)

_ACTIONS: Mapping[ActionKind, Callable[[ActionRequest, Snapshot, ActionDesk], Deed]] = {
    # What stops a chain comes before what lets its next generation start.
    ActionKind.CANCEL_CHAIN: cancel_chain,
    ActionKind.HOLD: hold,
    ActionKind.CANCEL_PENDING: cancel_pending,
    ActionKind.FENCE: fence,
    ActionKind.EXTEND: extend,
}
_ORDER = tuple(_ACTIONS)
_OF_THE_CHAIN = frozenset({ActionKind.CANCEL_CHAIN, ActionKind.HOLD, ActionKind.EXTEND})
"""They are about no single array job: one of each per pass."""
_STOPS = frozenset({ActionKind.CANCEL_CHAIN, ActionKind.HOLD})


def perform(
    findings: Sequence[Finding], snapshot: Snapshot, desk: ActionDesk, *, until: float = math.inf
) -> tuple[ActionReport, ...]:
    """Carry out the requests of a pass and say what came of each. None begins after `until` on the desk's clock."""
    requests = list(_distinct(findings))
    stopping = any(request.kind in _STOPS for _detector, request in requests)
    reports = []
    for detector, request in requests:
        deed = forbid(request, snapshot, desk.rights)
        if deed is None and stopping and request.kind is ActionKind.EXTEND:
            deed = refused("another finding asks for the chain to be stopped")
        if deed is None and desk.clock.monotonic() >= until:
            deed = failed("not tried: the actions of this pass have used up their time, the next pass goes on")
        if deed is None:
            deed = _carry_out(request, snapshot, desk)
        report = _report(detector, request, deed)
        _log(report, snapshot, desk)
        reports.append(report)
    return tuple(reports)


def _distinct(findings: Sequence[Finding]) -> Iterator[tuple[str, ActionRequest]]:
    """The first request of each kind and array job, in the order in which they are carried out."""
    asked = [(finding.detector, finding.action) for finding in findings if finding.action is not None]
    seen: set[tuple[ActionKind, int | None]] = set()
    for detector, request in sorted(asked, key=lambda one: _ORDER.index(one[1].kind)):
        key = (request.kind, None if request.kind in _OF_THE_CHAIN else request.array_job_id)
        if key not in seen:
            seen.add(key)
            yield detector, request


def _carry_out(request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    try:
        return _ACTIONS[request.kind](request, snapshot, desk)
    except IdentityError as error:
        return refused(str(error))
    except NvrxError as error:
        return failed(str(error))


def _report(detector: str, request: ActionRequest, deed: Deed) -> ActionReport:
    return ActionReport(
        detector=detector,
        request=request,
        state=deed.state,
        asked=deed.asked,
        gone=deed.gone,
        still_there=deed.still_there,
        why=plain(deed.why),
    )


def _log(report: ActionReport, snapshot: Snapshot, desk: ActionDesk) -> None:
    tried = report.state not in NOTHING_TRIED
    log.log(
        logging.WARNING if tried and report.state is not ActionState.NOTHING_LEFT else logging.INFO,
        "action=%s job=%s state=%s asked=%s gone=%s still_there=%s why=%s",
        report.request.kind.value,
        report.request.array_job_id,
        report.state.value,
        " ".join(report.asked) or "-",
        " ".join(report.gone) or "-",
        " ".join(report.still_there) or "-",
        report.why or "-",
    )
    if tried and desk.action_log is not None:
        append_action(desk.action_log, report, chain=snapshot.subject.key, by=desk.signature, at=desk.clock.now())
