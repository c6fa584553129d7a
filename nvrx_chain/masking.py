"""What looks like a secret, and the same text without it. Pure.

Used wherever a value of somebody's environment or command line is printed or put into a file that others can read. It
goes by names (`HF_TOKEN=...`, `--api-key ...`) and by the look of a value (a URL with a password, `hf_...`, `sk-...`).
Too much hidden costs a look into the caller's shell; too little costs a key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

# Plain strings: `re` compiles and keeps them at the first use, which a dry run without an error never comes to.
_ANYWHERE = r"(?i)secret|passw(?:or)?d|passphrase|credential|api[-_.]?key|access[-_.]?key(?![-_.]?id)"
_AT_THE_END = frozenset({"auth", "authorization", "authtoken", "bearer", "key", "pat", "pwd", "token"})
_WITHIN = frozenset({"auth", "token"})
# A tokenizer and a data set have tokens and keys of their own, which are needed in a dry run and open no door.
_OF_A_MODEL = frozenset(
    {"begin", "bos", "cls", "end", "eod", "eos", "image", "mask", "pad", "sep", "special", "unk"}
    | {"audio", "column", "data", "group", "json", "label", "partition", "public", "sort", "target", "text"}
)
_HARMLESS_LAST = frozenset(
    {"budget", "count", "dim", "dir", "file", "id", "length", "limit", "max", "min", "name", "path", "size", "type"}
)
_PARTS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"

# Bounded: without that a long word costs its length squared.
_NAME = r"[A-Za-z_][\w.-]{0,79}"
_QUOTED = r"'[^']*'|\"[^\"]*\""
_NAMED_VALUES = (
    (rf"(-{{0,2}}{_NAME})\s?=\s?", rf"{_QUOTED}|[^\s,;&'\"]+"),
    (rf"['\"]({_NAME})['\"]\s?:\s?", _QUOTED),
    # At the begin of a word: what follows `pd-routing-key` in a sentence is no value.
    (rf"(?<![\w-])(--?{_NAME})\s", rf"{_QUOTED}|[^\s'\"-][^\s'\"]*"),
)
"""How a name is written, and what its value then is."""
_USERINFO = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"]{1,500}@"
_LOOKS = r"""(?x)
    \b(?:
        hf_[A-Za-z0-9]{8,}
      | sk-[A-Za-z0-9_-]{8,}
      | nvapi-[A-Za-z0-9_-]{8,}
      | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,}
      | glpat-[A-Za-z0-9_-]{8,}
      | xox[abeoprs]-[A-Za-z0-9-]{8,}
      | (?:AKIA|ASIA)[A-Z0-9]{12,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    )
    | (?i:\b(?:bearer|basic)\s)[A-Za-z0-9+/_.=-]{8,}
    """


def is_secret_name(name: str) -> bool:
    """Whether a variable or an option of this name is likely to hold a secret: `HF_TOKEN`, `--api-key`, `hub.token`."""
    parts = [part.lower() for part in re.findall(_PARTS, name)]
    if not parts or parts == ["pwd"] or parts[-1] in _HARMLESS_LAST:
        return False
    if re.search(_ANYWHERE, name):
        return True
    if len(parts) > 1 and parts[-2] in _OF_A_MODEL:
        return False
    return parts[-1] in _AT_THE_END or bool(_WITHIN.intersection(parts[:-1]))


def mask_text(text: str) -> str:
    """Free text without what looks like a secret in it."""
    text = re.sub(_USERINFO, rf"\g<scheme>{HIDDEN}@", text)
    text = re.sub(_LOOKS, HIDDEN, text)
    for name, value in _NAMED_VALUES:
        text = _mask_named(text, name, value)
    return text


def _mask_named(text: str, name: str, value: str) -> str:
    """Names are looked for one by one, because the value of one can hold the next: `--env=TOKEN=...`.

    Dots alone are no value: so a hint shows how one is written.
    """
    kept: list[str] = []
    at = 0
    for match in re.finditer(name, text):
        found = re.compile(value).match(text, match.end()) if is_secret_name(match[1]) else None
        if found is not None and match.start() >= at and found[0].strip("'\"."):
            kept += (text[at : match.end()], HIDDEN)
            at = found.end()
    return "".join((*kept, text[at:]))


def mask_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, each whole: of `--api-key WORD` and `NAME=WORD` nothing of the value is left."""
    masked: list[str] = []
    is_value = False
    for word in words:
        if is_value and not word.startswith("--"):
            masked.append(HIDDEN)
            is_value = False
            continue
        name, equals, _ = word.partition("=")
        named = bool(re.fullmatch(rf"-{{0,2}}\+{{0,2}}{_NAME}", name)) and is_secret_name(name)
        masked.append(f"{name}={HIDDEN}" if named and equals else mask_text(word))
        is_value = named and not equals and word.startswith("-")
    return tuple(masked)


def mask_assignment(text: str) -> str:
    """`NAME=VALUE` of somebody's environment with the value hidden, whatever it looks like; a bare name stays."""
    name, equals, _ = text.partition("=")
    return f"{name}={HIDDEN}" if equals else name
