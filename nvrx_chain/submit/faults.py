"""From the established fault knobs to the faults of a chain, as far as launcher and workload can do them. Pure."""

from __future__ import annotations

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Faults, LauncherKind, Shape
from nvrx_chain.submit.settings import Settings
from nvrx_chain.workloads.injection import (
    NVRX_TYPES,
    NodeFailure,
    check_mock_gpt_types,
    parse_failures,
    parse_ranks,
    parse_types,
)

_ESTABLISHED_RANK = 2


def read_faults(settings: Settings, *, shape: Shape, launcher: LauncherKind, workload: str | None) -> Faults | None:
    """What was ordered; None when nothing was. `workload` is the built-in one's name, None for the user's own.

    Raises UsageError for what cannot be read, also where it is switched off, and for what could not happen.
    """
    ranks = parse_ranks(settings.text("fault-ranks") or str(min(_ESTABLISHED_RANK, shape.world_size - 1)))
    types = parse_types(settings.text("fault-types") or "async_exc")
    given = settings.text("inject-gpu-failure")
    asked = parse_failures(given) if given else ()
    demo = settings.switch("no-restart-demo")
    # As established: the demonstration needs a fault, and a failed node would hand off where it should end.
    inject, failures = settings.switch("fault-inject") or demo, () if demo else asked
    _refuse_idle_flags(settings, inject=inject)
    if not inject and not failures:
        return None
    _refuse_impossible(launcher, workload, demo=demo, inject=inject, failures=failures)
    if inject:
        _check_ranks(ranks, shape)
        _check_types(types, workload)
    _check_failures(failures, shape)
    return Faults(
        ranks=ranks if inject else (),
        delay_seconds=settings.seconds("fault-delay"),
        types=types if inject else (),
        gpu_failures=tuple(map(str, failures)),
        no_restart_demo=demo,
    )


def _refuse_impossible(
    launcher: LauncherKind, workload: str | None, *, demo: bool, inject: bool, failures: tuple[NodeFailure, ...]
) -> None:
    """Raise UsageError for what nobody would do: a rehearsal without its fault passes, and proves nothing."""
    if demo and not launcher.is_fault_tolerant:
        raise UsageError(
            "reading --no-restart-demo: only nvrx and ft_launcher give such a verdict", hint="use --launcher nvrx"
        )
    if inject and workload is None:
        raise UsageError(
            "reading --fault-inject: mock-gpt and megatron-gpt inject faults of ranks, a program of yours does not",
            hint="use --workload, or switch it off: NVRX_FAULT_INJECT=0 NVRX_NO_RESTART_DEMO=0",
        )
    if failures and not launcher.is_fault_tolerant and workload != "mock-gpt":
        raise UsageError(
            "reading --inject-gpu-failure: nvrx and ft_launcher do that, and mock-gpt with any launcher",
            hint="use --launcher nvrx, or switch it off: NVRX_INJECT_GPU_FAILURE=",
        )


def _check_ranks(ranks: tuple[int, ...], shape: Shape) -> None:
    for rank in ranks:
        if rank >= shape.world_size:
            raise UsageError(
                f"reading --fault-ranks: there is no rank {rank} among {shape.world_size}",
                hint=f"ranks are 0 to {shape.world_size - 1}; hot spares have none",
            )


def _check_types(types: tuple[str, ...], workload: str | None) -> None:
    if workload == "mock-gpt":
        check_mock_gpt_types(types)
        return
    for name in types:
        if name not in NVRX_TYPES:
            raise UsageError(
                f"reading --fault-types: Megatron-LM has no {name}", hint=f"it has {', '.join(NVRX_TYPES)}"
            )


def _check_failures(failures: tuple[NodeFailure, ...], shape: Shape) -> None:
    nodes = shape.total * shape.nodes_per_task
    for failure in failures:
        if failure.node >= nodes:
            raise UsageError(
                f"reading --inject-gpu-failure: {failure} names a node that the array does not have",
                hint=f"nodes are 0 to {nodes - 1}: array task x {shape.nodes_per_task} + node of the task",
            )


def _refuse_idle_flags(settings: Settings, *, inject: bool) -> None:
    """A flag that does nothing is a mistake; a variable may stay in the environment while the switch is off."""
    for key in ("fault-ranks", "fault-delay", "fault-types"):
        if not inject and settings.by_key[key].origin == "flag":
            raise UsageError(f"reading --{key}: no fault is injected", hint="add --fault-inject")


def fault_arguments(faults: Faults | None) -> tuple[str, ...]:
    """The faults of ranks in the words of Megatron-LM, which mock-gpt knows too."""
    if faults is None or not faults.ranks:
        return ()
    return (
        f"--fault-injector-ranks={','.join(map(str, faults.ranks))}",
        f"--fault-injector-fault-delay={faults.delay_seconds:g}",
        f"--fault-injector-fault-types={','.join(faults.types)}",
    )


def node_arguments(faults: Faults | None, launcher: LauncherKind) -> tuple[str, ...]:
    """What mock-gpt does to its node where the launcher does not do it."""
    if faults is None or not faults.gpu_failures or launcher.is_fault_tolerant:
        return ()
    return (f"--inject-gpu-failure={','.join(faults.gpu_failures)}",)


def progress_arguments(settings: Settings, launcher: LauncherKind, faults: Faults | None) -> tuple[str, ...]:
    """After how many cycles without progress ft_launcher gives up, where that is said."""
    cycles = settings.optional_count("max-no-progress-cycles")
    if not launcher.is_fault_tolerant:
        if settings.by_key["max-no-progress-cycles"].origin == "flag":
            raise UsageError(
                "reading --max-no-progress-cycles: only nvrx and ft_launcher count them",
                hint="leave it out, or use --launcher nvrx",
            )
        return ()
    if cycles is None:
        cycles = 1 if faults is not None and faults.no_restart_demo else None
    return () if cycles is None else (f"--ft-max-no-progress-cycles={cycles}",)


def describe_faults(faults: Faults) -> str:
    """One line for people: whoever left a variable in a shell must see what this chain will do to itself."""
    parts = []
    if faults.ranks:
        ranks = ",".join(map(str, faults.ranks))
        parts.append(f"{' or '.join(faults.types)} in rank {ranks} after {faults.delay_seconds:g} s of each cycle")
    if faults.gpu_failures:
        parts.append(f"failed nodes (cycle:node) {','.join(faults.gpu_failures)}")
    if faults.no_restart_demo:
        parts.append("the launcher is shown no progress, so it ends the chain (--no-restart-demo)")
    return "faults are injected on purpose: " + "; ".join(parts)
