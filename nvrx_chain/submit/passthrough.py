"""Which further sbatch options a chain can live with. Pure.

The names and the short options that take a value: man sbatch of 22.05 to 26.05. Long options may be abbreviated to any
unique prefix (getopt_long), so a prefix of a refused name is refused too, unless it is itself the name of another.
"""

from __future__ import annotations

from nvrx_chain.errors import UsageError
from nvrx_chain.masking import mask_words

_OURS = "nvrx-chain sets it itself"
_IDENTITY = "a job that cannot be told from others cannot be cancelled safely"
_NO_JOB = "sbatch would not queue a job"

_REFUSED: dict[str, str] = {
    "account": "use --account",
    "array": _OURS + " from the shape",
    "chdir": _OURS + ": the run directory",
    "cluster": "submit on the cluster itself; a chain lives on one cluster",
    "clusters": "submit on the cluster itself; a chain lives on one cluster",
    "comment": _IDENTITY,
    "constraint": "use --constraint",
    "cpus-per-task": "use --cpus-per-task",
    "deadline": "Slurm cancels queued generations on an estimate; use --time-limit",
    "dependency": "it would replace `singleton`, which makes one generation wait for the other; use --after JOBID",
    "error": "standard error goes to logs/ in the run directory",
    "exclude": "use --exclude",
    "exclusive": "use --exclusive or --no-exclusive",
    "export": "use --export, which keeps values out of command lines",
    "export-file": "use --export, which keeps values in a file that only you can read",
    "gid": _IDENTITY,
    "gpus-per-node": "use --gpus-per-node",
    "gres": "use --gres",
    "help": _NO_JOB,
    "hold": "a held generation blocks all later ones; use nvrx-chain hold",
    "job-name": "use --name",
    "mail-type": "use --mail-type",
    "mail-user": "use --mail-user",
    "mem": "use --mem",
    "no-kill": "a generation that lost a node would live on without it",
    "no-requeue": _OURS,
    "nodes": "use --nodes-per-task",
    "ntasks": _OURS + ": one launcher on each node",
    "ntasks-per-core": _OURS + ": one launcher on each node",
    "ntasks-per-gpu": _OURS + ": one launcher on each node",
    "ntasks-per-node": _OURS + ": one launcher on each node; use --procs-per-node for ranks",
    "ntasks-per-socket": _OURS + ": one launcher on each node",
    "open-mode": _OURS,
    "output": "standard output goes to logs/ in the run directory",
    "oversubscribe": "use --no-exclusive",
    "parsable": _OURS,
    "partition": "use --partition",
    "qos": "use --qos",
    "requeue": "a requeued task would come back under the same id beside its successor",
    "reservation": "use --reservation",
    "share": "use --no-exclusive",
    "signal": "use --walltime-warning",
    "test-only": _NO_JOB + "; use --dry-run",
    "time": "use --time-limit",
    "uid": _IDENTITY,
    "usage": _NO_JOB,
    "version": _NO_JOB,
    "wait": "sbatch would not return before the generation has ended",
    "wrap": "nvrx-chain submits its own script",
}
_SHORT = {
    "A": "account",
    "C": "constraint",
    "c": "cpus-per-task",
    "q": "qos",
    "x": "exclude",
    "a": "array",
    "D": "chdir",
    "M": "clusters",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "H": "hold",
    "J": "job-name",
    "k": "no-kill",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "s": "oversubscribe",
    "p": "partition",
    "t": "time",
    "V": "version",
    "u": "usage",
    "W": "wait",
}
_SHORT_WITH_VALUE = frozenset("AaBbCcDdeFGgiJLMmNnoPpqStUwx")
_WHOLE_NAMES = frozenset({"gpus"})
"""Options that are allowed although their name is the beginning of a refused one."""


def check_sbatch_arguments(arguments: tuple[str, ...]) -> None:
    """Raise UsageError naming the first option that sbatch must not be given, in whatever form it is written."""
    for argument in arguments:
        if mask_words((argument,)) != (argument,):
            raise UsageError(
                f"reading --sbatch-arg {argument.partition('=')[0]}: it holds what looks like a secret",
                hint="everybody can read sbatch's command line; hand values over with --export",
            )
        refused = _refused_name(argument)
        if refused is not None:
            raise UsageError(
                f"reading --sbatch-arg {argument}: --{refused} cannot be passed to sbatch", hint=_REFUSED[refused]
            )


def _refused_name(argument: str) -> str | None:
    if argument == "--" or len(argument) < 2 or not argument.startswith("-"):
        # A bare word would be taken for the script, and what follows for its arguments.
        raise UsageError(
            f"reading --sbatch-arg {argument!r}: it is no option",
            hint="give option and value as one word, for example --sbatch-arg=--nice=100",
        )
    if argument.startswith("--"):
        return _refused_long(argument[2:].partition("=")[0])
    return _refused_short(argument[1:])


def _refused_long(name: str) -> str | None:
    if name in _REFUSED:
        return name
    if name in _WHOLE_NAMES:
        return None
    return next((refused for refused in _REFUSED if refused.startswith(name)), None)


def _refused_short(letters: str) -> str | None:
    # Options without a value may share one dash: -QH is -Q -H.
    for letter in letters:
        if letter in _SHORT:
            return _SHORT[letter]
        if letter in _SHORT_WITH_VALUE:
            return None
    return None
