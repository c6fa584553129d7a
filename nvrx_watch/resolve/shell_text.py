"""Texts of a shell in which parts may be unknown, and what dirname, basename and friends make of them.

Two private characters stand in a text for what the script itself does not say: `ANY_JOB` for the id of whatever array
job runs the script, `UNKNOWN` for a part that only running the script would tell. What cannot be told is UNKNOWN,
never a guess. Touches: symbolic links on the way to a path, by `resolve_links`.
"""

from __future__ import annotations

import glob
import os
import posixpath

ANY_JOB = "\uf8f0"
UNKNOWN = "\uf8f1"

_NOT_LITERAL = frozenset("*?[]\\()|@!+'\"$`")


def clean(text: str) -> str:
    """Somebody's text without the characters that mean something here, and without what UTF-8 or a path cannot hold."""
    valid = text.encode("utf-8", errors="replace").decode("utf-8")
    return valid.replace(ANY_JOB, "\ufffd").replace(UNKNOWN, "\ufffd").replace("\0", "")


def is_known(text: str) -> bool:
    """Whether no part of it is unknown (the id of the array job may be open)."""
    return UNKNOWN not in text


def is_literal(text: str) -> bool:
    """Whether it is one single text."""
    return UNKNOWN not in text and ANY_JOB not in text


def is_filled(text: str) -> bool | None:
    """Whether it is not empty; None when that depends on an unknown part."""
    if text.strip(UNKNOWN):
        return True
    return None if text else False


def directory_of(text: str) -> str:
    """What dirname(1) prints."""
    if not is_known(text):
        return UNKNOWN
    kept = text.rstrip("/")
    if not kept:
        return "/" if text else "."
    head, slash, _tail = kept.rpartition("/")
    return head.rstrip("/") or "/" if slash else "."


def name_of(text: str, suffix: str = "") -> str:
    """What basename(1) prints."""
    if not is_known(text) or not is_literal(suffix):
        return UNKNOWN
    name = text.rstrip("/").rpartition("/")[2] or ("/" if text else "")
    return name[: -len(suffix)] if suffix and name != suffix and name.endswith(suffix) else name


def absolute(text: str, here: str) -> str:
    """The path as seen from `here`, with `.` and `..` taken out by their names alone, as `cd` and `pwd` do."""
    if not is_known(text) or not text:
        return UNKNOWN
    if not text.startswith("/"):
        if not is_known(here) or not here:
            return UNKNOWN
        text = f"{here}/{text}"
    return posixpath.normpath("/" + text.lstrip("/"))


def resolve_links(text: str, here: str) -> str:
    """What realpath(1) prints. The part after an open job id is left as it is written."""
    if not is_known(text) or not text or not (text.startswith("/") or is_known(here)):
        return UNKNOWN
    parts = (text if text.startswith("/") else f"{here}/{text}").split("/")
    at = next((index for index, part in enumerate(parts) if ANY_JOB in part), len(parts))
    if ".." in parts[at:]:
        return UNKNOWN
    try:
        head = os.path.realpath("/" + "/".join(parts[:at]).lstrip("/"))
    except (OSError, ValueError):
        return UNKNOWN
    return posixpath.normpath("/".join([head, *parts[at:]])) if parts[at:] else head


def trim(operator: str, value: str, pattern: str) -> str:
    """`${value%pattern}` and its sisters, for a literal pattern or one with a `*` on its open side."""
    if not is_known(value) or not is_literal(pattern):
        return UNKNOWN
    from_end, longest = operator[0] == "%", len(operator) == 2
    has_star = pattern.endswith("*") if from_end else pattern.startswith("*")
    literal = (pattern[:-1] if from_end else pattern[1:]) if has_star else pattern
    if not literal or _NOT_LITERAL & set(literal):
        return UNKNOWN
    if ANY_JOB in value and any(letter.isdigit() for letter in literal):
        # The digits of a job id could be what matches.
        return UNKNOWN
    if not has_star:
        return value.removesuffix(literal) if from_end else value.removeprefix(literal)
    # The shortest tail begins, and the shortest head ends, at the match that is nearest to that end.
    at = value.rfind(literal) if from_end != longest else value.find(literal)
    if at < 0:
        return value
    return value[:at] if from_end else value[at + len(literal) :]


def glob_of(text: str) -> str:
    """A pattern for glob(7) in which only the id of the array job is open."""
    return "*".join(glob.escape(part) for part in text.split(ANY_JOB))
