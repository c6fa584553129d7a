"""From how the launcher ended to the outcome of the generation. Pure; the precedence is docs/protocol.md's.

Exit 0 alone does not prove that training is finished (Megatron exits 0 on its own time limit, and a TERM with clean
ranks gives 0), and a code never overrules the no-restart file (kill-on-bad-exit turns 93 into 143).
"""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.session import StopCause
from nvrx_chain.records.control import GenerationRecord
from nvrx_chain.records.manifest import Completion, CompletionKind
from nvrx_chain.records.outcome import Outcome

Iteration = int | Unobserved | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """What is known when the launcher of task 0 has ended or was stopped."""

    cause: StopCause
    exit_code: int | None
    no_restart_said: bool
    no_restart_exit_code: int
    walltime_warned: bool
    near_wall: bool
    preempted: bool
    parent_died: bool
    iteration_at_start: Iteration
    iteration_at_end: Iteration
    done_file_exists: bool

    @property
    def cause_is_signal(self) -> bool:
        """Whether Slurm or somebody else told this task to end."""
        return self.cause in (StopCause.TERMINATED, StopCause.LOST_SIGNAL, StopCause.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The outcome and the sentence that explains it."""

    outcome: Outcome
    why: str


def decide_ending(facts: LauncherFacts, completion: Completion, previous: GenerationRecord | None) -> Ending:
    """The outcome of a generation whose task 0 is alive to decide it."""
    said = facts.no_restart_said or facts.cause is StopCause.NO_RESTART
    if said or facts.exit_code == facts.no_restart_exit_code:
        return Ending(outcome=Outcome.NO_RESTART, why="a launcher said that a restart is useless")
    finished = _finished(facts, completion, previous)
    if finished is not None:
        return Ending(outcome=Outcome.COMPLETED, why=finished)
    interrupted = _interrupted(facts)
    if interrupted is not None:
        return interrupted
    if facts.exit_code == 0:
        return Ending(outcome=Outcome.UNFINISHED, why=f"the launcher exited 0 but {_missing(completion)}")
    return Ending(outcome=Outcome.FAILED, why=f"the launcher exited with {facts.exit_code}")


def _interrupted(facts: LauncherFacts) -> Ending | None:
    if facts.cause is StopCause.WALLTIME or facts.walltime_warned or (facts.cause_is_signal and facts.near_wall):
        return Ending(outcome=Outcome.WALLTIME, why="Slurm announced the time limit")
    if facts.preempted:
        return Ending(outcome=Outcome.PREEMPTED, why="Slurm preempted the job")
    if facts.cause in (StopCause.TERMINATED, StopCause.STOPPED) and facts.parent_died:
        return Ending(outcome=Outcome.FAILED, why="the batch shell was killed")
    if facts.cause is StopCause.TERMINATED:
        return Ending(outcome=Outcome.TERMINATED, why="terminated by a signal")
    if facts.cause is StopCause.STOPPED:
        return Ending(outcome=Outcome.TERMINATED, why="the launcher was told to stop by somebody else")
    if facts.cause is StopCause.LOST_SIGNAL:
        return Ending(outcome=Outcome.TERMINATED, why="Slurm is ending this task but no signal arrived")
    if facts.cause is StopCause.SELF_FENCED:
        return Ending(outcome=Outcome.FAILED, why="the own lease could not be written")
    return None


def _finished(facts: LauncherFacts, completion: Completion, previous: GenerationRecord | None) -> str | None:
    """Why training is finished, None when it is not."""
    if completion.kind is CompletionKind.DONE_FILE:
        return f"{completion.done_file} exists" if facts.done_file_exists else None
    if completion.kind is CompletionKind.TARGET_ITERATION:
        return _target_reached(facts.iteration_at_end, completion.target_iteration)
    undisturbed = facts.exit_code == 0 and facts.cause is StopCause.LAUNCHER_ENDED
    if not undisturbed or facts.walltime_warned or facts.near_wall:
        return None
    if completion.kind is CompletionKind.EXIT_ZERO:
        return "the launcher exited 0"
    return _quiet_twice(facts, previous)


def _target_reached(iteration: Iteration, target: int | None) -> str | None:
    if isinstance(iteration, int) and target is not None and iteration >= target:
        return f"iteration {iteration} has reached the target {target}"
    return None


def _quiet_twice(facts: LauncherFacts, previous: GenerationRecord | None) -> str | None:
    """Two generations in a row that exited 0 undisturbed and did not move a readable iteration above zero."""
    now = facts.iteration_at_end
    if not isinstance(now, int) or now <= 0 or facts.iteration_at_start != now or previous is None:
        return None
    quiet_before = (
        previous.exit_code == 0
        and not previous.signalled
        and not previous.near_wall
        and previous.iteration_at_end == now
    )
    return f"two generations exited 0 and left iteration {now} as it was" if quiet_before else None


def _missing(completion: Completion) -> str:
    if completion.kind is CompletionKind.DONE_FILE:
        return f"{completion.done_file} does not exist"
    if completion.kind is CompletionKind.TARGET_ITERATION:
        return f"iteration {completion.target_iteration} is not reached"
    if completion.kind is CompletionKind.EXIT_ZERO:
        return "it was disturbed or near its time limit"
    return "training may not be finished (no criterion was given)"
