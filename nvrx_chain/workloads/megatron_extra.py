"""What a user adds to Megatron-LM's arguments: grouped by flag, and refused where it is the chain's to say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nvrx_chain.errors import UsageError

_DIRECTORY = "checkpoints go to the run directory of the chain, and every start resumes from there: --run-dir"
_RESUME = "every generation and every restart would begin there again"
_LIMIT = "the chain announces the time limit by SIGUSR1; --walltime-warning says how early"
_FAULT = "--fault-inject with --fault-ranks, --fault-delay and --fault-types order faults"

LOAD_BEARING: Mapping[str, str] = {
    "--save": _DIRECTORY,
    "--load": _DIRECTORY,
    "--non-persistent-save-interval": "such a checkpoint moves no iteration of the chain",
    "--non-persistent-ckpt-type": "such a checkpoint moves no iteration of the chain",
    "--ckpt-step": _RESUME,
    "--finetune": _RESUME,
    "--no-load-optim": "a restart would go on with another optimizer state than it saved",
    "--no-save-optim": "a restart would go on with another optimizer state than it saved",
    "--exit-on-missing-checkpoint": "the first generation has no checkpoint yet",
    "--exit-signal": _LIMIT,
    "--exit-signal-handler": _LIMIT,
    "--enable-ft-package": "the chain gives it when --launcher is ft_launcher",
    "--calc-ft-timeouts": "--section-timeouts says after how long a rank hangs",
    "--fault-injector-ranks": _FAULT,
    "--fault-injector-num-ranks": _FAULT,
    "--fault-injector-fault-types": _FAULT,
    "--fault-injector-fault-delay": _FAULT,
    "--inprocess-restart": "ranks are restarted by the launcher of the chain",
    "--skip-train": "the chain would never be finished",
}
"""Arguments that a chain depends on, and what to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A flag with its values, in the words that were typed."""

    flag: str
    words: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        head = self.words[0].partition("=")
        return ((head[2],) if head[1] else ()) + self.words[1:]


def group_words(words: Iterable[str]) -> tuple[Group, ...]:
    """The words by flag. Raises UsageError for a value without a flag and for what is the chain's to say."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            raise UsageError(
                "reading the arguments of Megatron-LM: they begin with a value",
                part=repr(word),
                hint="words after -- are added to those of pretrain_gpt.py, which is not named there",
            )
    found = tuple(Group(flag=_flag(group[0]), words=tuple(group)) for group in groups)
    for group in found:
        if group.flag in LOAD_BEARING:
            raise UsageError(
                "reading the arguments of Megatron-LM: the chain sets this one itself",
                part=group.flag,
                hint=LOAD_BEARING[group.flag],
            )
    return found


def take_count(groups: tuple[Group, ...], flag: str) -> tuple[int | None, tuple[Group, ...]]:
    """The whole number behind a flag, None when it is not there, and the groups without it. Raises UsageError."""
    given = [group for group in groups if group.flag == flag]
    if not given:
        return None, groups
    values = given[-1].values
    if len(given) > 1 or len(values) != 1 or not _is_count(values[0]):
        raise UsageError(
            f"reading the arguments of Megatron-LM: {flag} takes one whole number above zero, once",
            part=" ".join(word for group in given for word in group.words),
            hint=f"for example {flag} 8",
        )
    return int(values[0]), tuple(group for group in groups if group.flag != flag)


def _flag(word: str) -> str:
    # argparse would take --save_interval for no option, but people who know either spelling mean the same.
    return word.partition("=")[0].replace("_", "-")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12 and int(text) > 0
