"""HOLD: keep the queued generations from starting, by `nvrx-chain hold`. Touches: what that command touches."""

from __future__ import annotations

import msgspec

from nvrx_chain.errors import Unobserved
from nvrx_chain.records.control import ChainOutcome
from nvrx_watch.acting.chain_command import (
    COMMAND_SECONDS,
    SLURM_SECONDS,
    as_typed,
    chain_command,
    is_usable,
    last_words,
)
from nvrx_watch.acting.deed import Deed, failed, nothing_left, plain, refused, would_ask
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.action_model import ActionState
from nvrx_watch.model import ActionRequest, Snapshot


class HoldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `nvrx-chain hold --json` prints, as far as it is read here. Array job ids."""

    done: tuple[int, ...]
    not_done: dict[int, str]
    left_alone: dict[int, str] = {}
    no_answer: str | None = None


def hold(request: ActionRequest, snapshot: Snapshot, desk: ActionDesk) -> Deed:
    """Have the chain held. The command judges by its own later reading of the queue."""
    hindrance = _hindrance(snapshot)
    if hindrance is not None:
        return hindrance
    run = snapshot.subject.run_directory
    if run is None or not is_usable(run):
        return refused("the chain has no absolute run directory")
    argv = chain_command(
        "hold",
        "--run-dir",
        str(run),
        "--reason",
        f"nvrx-watch: {plain(request.why)}",
        f"--timeout={SLURM_SECONDS}",
        "--json",
    )
    if desk.rights.dry_run:
        queued = tuple(str(one.array_job_id) for one in snapshot.queued())
        return would_ask(queued, f"would run: {plain(as_typed(argv))}")
    return _read_answer(desk.run_command(argv, COMMAND_SECONDS))


def _hindrance(snapshot: Snapshot) -> Deed | None:
    if isinstance(snapshot.verdict, Unobserved):
        return failed(f"this pass could not read the verdict of the chain: {snapshot.verdict.reason}")
    if isinstance(snapshot.verdict, ChainOutcome):
        return nothing_left(f"the chain is over: {snapshot.verdict.verdict.value}")
    if isinstance(snapshot.hold, Unobserved):
        return failed(f"this pass could not read the hold of the chain: {snapshot.hold.reason}")
    if snapshot.hold is not None and snapshot.hold.released_at is None:
        return nothing_left(f"it is held by {plain(snapshot.hold.by)} already")
    return None


def _read_answer(answer: CommandAnswer) -> Deed:
    try:
        said = msgspec.json.decode(answer.stdout.encode(), type=HoldAnswer)
    except (msgspec.DecodeError, UnicodeEncodeError):
        said = None
    if said is None or answer.returncode is None:
        return failed(last_words(answer))
    held = tuple(str(job) for job in said.done)
    there = tuple(str(job) for job in said.not_done)
    texts = [f"{job}: {why}" for job, why in (said.not_done | said.left_alone).items()]
    if said.no_answer:
        texts.append(f"the queue could not be read afterwards: {said.no_answer}")
    complete = answer.returncode == 0
    texts.insert(0, f"held: {' '.join(held) or 'none'}")
    return Deed(
        state=ActionState.DONE if complete else ActionState.FAILED if said.no_answer else ActionState.INCOMPLETE,
        asked=(*held, *there),
        still_there=there,
        why="; ".join(texts),
    )
