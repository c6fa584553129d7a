"""What a site wants to know of a job besides its size: the options that go to sbatch as they are, checked for sense.

Pure. Each is an option of submit by its own name, so a second one through --sbatch-arg is refused. Their syntax is that
of man sbatch, 22.05 to 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from nvrx_chain.errors import UsageError
from nvrx_chain.slurm.nodelist import expand_nodes
from nvrx_chain.submit.settings import Settings

_MEMORY = re.compile(r"\d{1,9}[KMGT]?", re.ASCII)
_GRES = re.compile(r"[A-Za-z][\w.-]*(?:[:/][\w.-]+)*(?:,[A-Za-z][\w.-]*(?:[:/][\w.-]+)*)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][\w.+@ -]*", re.ASCII)
_NAMES = re.compile(r"[A-Za-z0-9_][\w.+@-]*(?:,[A-Za-z0-9_][\w.+@-]*)*", re.ASCII)
_FEATURES = re.compile(r"[\w.&|()\[\]*,:=-]+", re.ASCII)
_MAIL_TYPES = frozenset(
    {"NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "ARRAY_TASKS"}
    | {f"TIME_LIMIT{tail}" for tail in ("", "_50", "_80", "_90")}
)


def _is_node_list(text: str) -> bool:
    try:
        return bool(expand_nodes(text))
    except ValueError:
        return False


def _is_mail_type(text: str) -> bool:
    return all(word in _MAIL_TYPES for word in text.upper().split(","))


_CHECKS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "partition": (_NAMES.fullmatch, "a partition, or several with commas"),
    "account": (_NAME.fullmatch, "the name of an account"),
    "qos": (_NAME.fullmatch, "the name of a QOS"),
    "constraint": (_FEATURES.fullmatch, "features of nodes, such as 'h100&nvme' or '[rack1|rack2]'"),
    "reservation": (_NAMES.fullmatch, "the name of a reservation"),
    "exclude": (_is_node_list, "a list of nodes, such as n[01-04,07]"),
    "gres": (_GRES.fullmatch, "such as nvme:1 or gpu:h100:8"),
    "mem": (_MEMORY.fullmatch, "memory of a node: a number with K, M, G or T; 0 takes all of it"),
    "mail-type": (_is_mail_type, f"one or more, with commas, of {', '.join(sorted(_MAIL_TYPES))}"),
    "mail-user": (lambda text: not re.search(r"[\s,;|&]", text), "one address"),
}

SITE_OPTIONS = (*_CHECKS, "cpus-per-task")
"""The names of the options, which are those of sbatch too, in the order in which they are passed."""


def site_arguments(settings: Settings) -> tuple[str, ...]:
    """`--name=value` for each that was given. Raises UsageError for a value that sbatch could not mean."""
    found = []
    for key, (is_sound, what) in _CHECKS.items():
        value = settings.text(key)
        if value is None:
            continue
        if not is_sound(value):
            raise UsageError(
                f"reading --{key}: {value!r} is not {what}",
                hint=f"the value goes to sbatch as it is; man sbatch has the form of --{key}",
            )
        found.append(f"--{key}={value}")
    cpus = settings.optional_count("cpus-per-task")
    if cpus is not None:
        found.append(f"--cpus-per-task={cpus}")
    return tuple(found)
