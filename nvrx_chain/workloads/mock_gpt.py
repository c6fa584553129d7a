"""`python -m nvrx_chain.workloads.mock_gpt`: a small real GPT that trains, saves, resumes and fails on order.

The program that demos and tests run under a launcher, and what a chain trains that was given no workload. This module
reads the options and wires the parts; torch is imported only when there is something left to train. Touches: the
signal handlers, the checkpoint directory, the event file, the done file, standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from nvrx_chain.clock import Clock, SystemClock
from nvrx_chain.errors import ExitCode, NvrxError, UsageError
from nvrx_chain.workloads.checkpoint import CheckpointStore, write_done_file
from nvrx_chain.workloads.events import Ending, EventKind, EventLog, process_age_seconds
from nvrx_chain.workloads.failing import fail_node
from nvrx_chain.workloads.injection import faults_of_cycle, node_fails
from nvrx_chain.workloads.options import OnSigterm, Options, parse_options
from nvrx_chain.workloads.placement import Placement, read_placement
from nvrx_chain.workloads.signals import SignalFlags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with these arguments (None: those of the process). The exit code of the process."""
    clock = SystemClock()
    entered_at = clock.monotonic()
    # Before anything slow: until a handler is there, SIGUSR1 kills.
    flags = SignalFlags()
    flags.watch(signal.SIGUSR1)
    try:
        options = parse_options(arguments)
        if options.on_sigterm is OnSigterm.SAVE:
            flags.watch(signal.SIGTERM)
        else:
            flags.restore_default(signal.SIGTERM)
        _run(options, flags, clock, entered_at)
    except NvrxError as error:
        print(f"mock_gpt: {error}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.DONE)


def _run(options: Options, flags: SignalFlags, clock: Clock, entered_at: float) -> None:
    placement = read_placement(os.environ)
    cycle = placement.restart_count or 0
    if placement.local_rank == 0 and node_fails(options.inject_gpu_failure, cycle=cycle, node=placement.node):
        fail_node()
    injected = faults_of_cycle(
        options.fault_injector_ranks, options.fault_injector_fault_delay, options.fault_injector_fault_types, cycle
    )
    options = replace(options, faults=(*options.faults, *injected))
    for fault in options.faults:
        if fault.rank >= placement.world_size:
            raise UsageError(
                f"reading the faults: {fault.fault_id} can never fire, there are {placement.world_size} ranks",
                part="--fault or --fault-injector-ranks",
                hint=f"ranks are 0 to {placement.world_size - 1}",
            )
    events = EventLog(options.event_file, placement, clock)
    store = CheckpointStore(options.checkpoint_dir, keep=options.keep, save_seconds=options.save_seconds, clock=clock)
    iteration = None if options.fresh_start else store.tracked_iteration()
    if iteration is not None and iteration >= options.target_iteration:
        _leave_finished(options, placement, store, events, iteration, clock.monotonic() - entered_at)
        return
    # Imported late: `--help`, a bad option and a finished run must not wait for torch.
    from nvrx_chain.workloads.training import Run, train

    train(
        Run(
            options=options,
            placement=placement,
            store=store,
            events=events,
            flags=flags,
            clock=clock,
            entered_at=entered_at,
        )
    )


def _leave_finished(
    options: Options,
    placement: Placement,
    store: CheckpointStore,
    events: EventLog,
    iteration: int,
    since_main_seconds: float,
) -> None:
    if placement.rank == 0:
        # A tracker whose checkpoint is gone must not pass for a finished run.
        store.read(iteration)
        write_done_file(options.done_file, iteration)
    events.emit(
        EventKind.START,
        iteration=iteration,
        target_iteration=options.target_iteration,
        since_process_start_seconds=process_age_seconds(),
        since_main_seconds=since_main_seconds,
    )
    events.emit(EventKind.END, iteration=iteration, outcome=Ending.TARGET)


if __name__ == "__main__":
    sys.exit(main())
