"""The training loop: resume, then step, agree, report and save, then leave tidily. Imports torch.

Every rank runs it in lock step. Whether to stop is agreed in the same all_reduce that averages the loss, so all ranks
save the same iteration whichever of them got the signal.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.launcher import client
from nvrx_chain.workloads.checkpoint import Checkpoint, CheckpointMetadata, CheckpointStore, write_done_file
from nvrx_chain.workloads.events import Ending, EventKind, EventLog, process_age_seconds
from nvrx_chain.workloads.failing import fail
from nvrx_chain.workloads.faults import FaultKind, FaultPlan
from nvrx_chain.workloads.options import Options
from nvrx_chain.workloads.placement import Placement
from nvrx_chain.workloads.ranks import Ranks, joined_ranks
from nvrx_chain.workloads.saver import Saver
from nvrx_chain.workloads.signals import SignalFlags
from nvrx_chain.workloads.state import (
    build_state,
    capture_state,
    collect_dropout,
    render_files,
    restore_state,
)

_NO_CHECKPOINT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a life of a rank works with. `entered_at` is the monotonic reading at the start of main."""

    options: Options
    placement: Placement
    store: CheckpointStore
    events: EventLog
    flags: SignalFlags
    clock: Clock
    entered_at: float


@record  # type: ignore[untyped-decorator]
def train(run: Run) -> None:
    """Train until the target or a signal. Raises what training raises: a bug, a fault, a peer that left.

    The cause goes into the launcher's error file too, so that torchrun names it and not the peers that it took down.
    """
    options = run.options
    # cuBLAS reads this when it is first used, and refuses to be deterministic without.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(options.threads)
    # torch.use_deterministic_algorithms sets the same switch and takes seconds to import a compiler first.
    torch.set_deterministic_debug_mode("error")
    client.connect()
    with joined_ranks(run.placement, options.device, options.collective_timeout_seconds) as ranks:
        client.mark("process_group_ready")
        _Trainer(run, ranks).run()


class _Trainer:
    def __init__(self, run: Run, ranks: Ranks) -> None:
        self._options = run.options
        self._placement = run.placement
        self._store = run.store
        self._events = run.events
        self._flags = run.flags
        self._clock = run.clock
        self._entered_at = run.entered_at
        self._ranks = ranks
        self._state = build_state(run.options, run.placement, ranks)
        self._faults = FaultPlan(run.options.faults, run.placement.rank, run.options.checkpoint_dir / "faults")
        self._saver = Saver(background=run.options.async_save)
        self._steps = _StepBlock()
        self._saved_iteration: int | None = None
        self._began_at = run.clock.monotonic()

    @property
    def _is_first(self) -> bool:
        return self._placement.rank == 0

    def run(self) -> None:
        ending = Ending.FAILED
        try:
            self._resume()
            self._announce()
            reached = self._advance()
            self._conclude(reached)
            ending = reached
        finally:
            self._events.emit(EventKind.END, iteration=self._state.iteration, outcome=ending)

    def _resume(self) -> None:
        if self._options.fresh_start and self._is_first:
            self._store.forget()
        checkpoint = self._choose_checkpoint() if self._is_first else None
        # Rank 0 decides: another node may still see the tracker as it was.
        chosen = self._ranks.tell_from_first(checkpoint.metadata.iteration if checkpoint else _NO_CHECKPOINT)
        if chosen == _NO_CHECKPOINT:
            return
        checkpoint = checkpoint or self._store.read_when_visible(chosen)
        restore_state(self._state, checkpoint, self._options, self._placement, self._ranks)
        self._saved_iteration = chosen

    def _choose_checkpoint(self) -> Checkpoint | None:
        tracked = self._store.tracked_iteration()
        checkpoint = None if tracked is None else self._store.read(tracked)
        for ignored in self._store.ignored_after(_NO_CHECKPOINT if tracked is None else tracked):
            self._events.emit(EventKind.CHECKPOINT_IGNORED, iteration=ignored.iteration, detail=ignored.reason)
        return checkpoint

    def _announce(self) -> None:
        client.mark("checkpoint_restored")
        self._began_at = self._clock.monotonic()
        self._events.emit(
            EventKind.START,
            iteration=self._state.iteration,
            target_iteration=self._options.target_iteration,
            since_process_start_seconds=process_age_seconds(),
            since_main_seconds=self._began_at - self._entered_at,
        )

    def _advance(self) -> Ending:
        while self._state.iteration < self._options.target_iteration:
            self._fail_if_due()
            begun_at = self._clock.monotonic()
            loss = self._step()
            self._pace(begun_at)
            loss_value, stop = self._agree(loss)
            self._state.iteration += 1
            self._report(loss_value, self._clock.monotonic() - begun_at)
            self._saver.check()
            if stop and self._state.iteration < self._options.target_iteration:
                return Ending.SIGNAL
            if self._options.save_interval and self._state.iteration % self._options.save_interval == 0:
                self._save()
        return Ending.TARGET

    def _step(self) -> torch.Tensor:
        inputs, targets = (batch.to(self._ranks.device) for batch in self._state.text.draw())
        self._state.optimizer.zero_gradient()
        loss = self._state.model(inputs, targets)
        loss.backward()
        self._ranks.average(self._state.optimizer.gradient)
        self._state.optimizer.step()
        return loss.detach()

    def _pace(self, begun_at: float) -> None:
        due_at = begun_at + self._options.step_seconds
        while not self._flags.requested:
            now = self._clock.monotonic()
            if now >= due_at:
                return
            to_fault = self._faults.seconds_to_next_delay(now - self._began_at)
            self._flags.wait(due_at - now if to_fault is None else min(due_at - now, to_fault))
            self._fail_if_due()

    def _agree(self, loss: torch.Tensor) -> tuple[float, bool]:
        """The mean loss, and whether any rank was told to save and leave."""
        both = torch.tensor([loss, self._flags.requested], dtype=torch.float64, device=self._ranks.device)
        self._ranks.average(both)
        mean_loss, told = both.tolist()
        return mean_loss, told > 0

    def _report(self, loss: float, seconds: float) -> None:
        client.committed(self._state.iteration)
        self._report_signals()
        self._steps.add(loss, seconds)
        # The first step of a life always has its own line: recovery is measured by it.
        if not self._steps.reported or self._state.iteration % self._options.log_interval == 0:
            self._flush_steps()

    def _flush_steps(self) -> None:
        if self._steps.count:
            self._events.emit(EventKind.STEP, iteration=self._state.iteration, **self._steps.take())

    def _report_signals(self) -> None:
        for number in self._flags.take_unreported():
            self._events.emit(EventKind.SIGNAL, iteration=self._state.iteration, signal=number.name)

    def _fail_if_due(self) -> None:
        elapsed = self._clock.monotonic() - self._began_at
        fault = self._faults.take_due(self._state.iteration + 1, elapsed)
        life: dict[str, str | int | None] = {
            "host": self._placement.host,
            "pid": os.getpid(),
            "at": format_time(self._clock.now()),
        }
        if fault is None or not self._faults.claim(fault, life):
            return
        self._events.emit(EventKind.FAULT, iteration=self._state.iteration, fault=fault.fault_id)
        if fault.kind is FaultKind.HANG:
            self._hang()
        fail(fault)

    def _hang(self) -> None:
        while True:
            self._report_signals()
            self._flags.wait_for_next()

    def _save(self) -> None:
        if self._state.iteration == self._saved_iteration:
            return
        self._saved_iteration = self._state.iteration
        dropout = collect_dropout(self._ranks)
        if self._is_first:
            captured = capture_state(self._state, dropout)
            self._saver.save(partial(self._write, self._describe(), captured))

    def _describe(self) -> CheckpointMetadata:
        return CheckpointMetadata(
            iteration=self._state.iteration,
            data_position=self._state.text.position,
            world_size=self._placement.world_size,
            seed=self._options.seed,
            model=self._options.model,
            files={},
            written_at=format_time(self._clock.now()),
            host=self._placement.host,
        )

    def _write(self, metadata: CheckpointMetadata, captured: dict[str, Any]) -> None:
        """Runs in the saver's thread when saves are asynchronous: it may read nothing that a step changes."""
        self._events.emit(EventKind.SAVE_STARTED, iteration=metadata.iteration)
        begun_at = self._clock.monotonic()
        files = render_files(captured)
        self._store.write(metadata, files)
        self._events.emit(
            EventKind.SAVE_FINISHED,
            iteration=metadata.iteration,
            save_seconds=self._clock.monotonic() - begun_at,
            save_bytes=sum(map(len, files.values())),
        )

    def _conclude(self, reached: Ending) -> None:
        self._flush_steps()
        self._save()
        self._saver.finish()
        if reached is Ending.TARGET and self._is_first:
            write_done_file(self._options.done_file, self._state.iteration)
        # No rank may report success before the last checkpoint is safe.
        self._ranks.meet()
        self._report_signals()


class _StepBlock:
    """The steps since the last step event."""

    def __init__(self) -> None:
        self.count = 0
        self.reported = False
        self._seconds = 0.0
        self._loss = 0.0

    def add(self, loss: float, seconds: float) -> None:
        self.count += 1
        self._seconds += seconds
        self._loss = loss

    def take(self) -> dict[str, Any]:
        """The fields of the event, with the loss of the last step; the next block begins."""
        mean_seconds, steps = self._seconds / self.count, self.count
        self.count, self._seconds, self.reported = 0, 0.0, True
        return {"loss": self._loss, "loss_hex": self._loss.hex(), "step_seconds": mean_seconds, "steps": steps}
