"""What a word of a bash script expands to, from its syntax tree. Nothing is run: a substitution that is not one of the
few idioms for paths (dirname, basename, realpath, readlink -f, pwd, `cd X && pwd`) is an unknown text. Touches:
symbolic links on the way to a path that the script resolves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from nvrx_watch.resolve.shell_scope import CURRENT_DIRECTORY, Scope
from nvrx_watch.resolve.shell_text import (
    UNKNOWN,
    absolute,
    directory_of,
    is_filled,
    name_of,
    resolve_links,
    trim,
)
from nvrx_watch.resolve.shell_tree import (
    MOST_NODES,
    ScriptTooHard,
    begins_a_word,
    cut_words,
    decoded,
    has_braces,
    is_gapless,
    joined_commands,
    text_of,
    unescaped,
    unescaped_ansi,
    unquoted,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_DEPTH = 60
_LONGEST_TEXT = 1 << 20
_DEFAULTS = frozenset({":-", "-", ":=", "=", ":?", "?", ":+", "+"})
_TRIMS = frozenset({"%", "%%", "#", "##"})
_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution"})
_BARE = _EXPANSIONS | {"word", "concatenation"}
_WILD = frozenset("*?[")
_NAMES = frozenset({"variable_name", "special_variable_name"})
# Set by bash or by the job's surroundings, whatever the script says: never "not assigned".
_OTHERS_SET = frozenset({"HOSTNAME", "RANDOM", "SECONDS", "UID", "EUID", "PPID", "BASHPID", "SHELL", "PATH", "TMPDIR"})


class Budget:
    """How much of a script is read, in nodes and in depth: a script may be made to keep its reader busy."""

    def __init__(self) -> None:
        self._nodes = MOST_NODES
        self._depth = 0

    def __enter__(self) -> Budget:
        self._nodes -= 1
        self._depth += 1
        if self._nodes < 0:
            raise ScriptTooHard(f"more than {MOST_NODES} parts")
        if self._depth > MOST_DEPTH:
            raise ScriptTooHard(f"nested more than {MOST_DEPTH} deep")
        return self

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which file is read (`BASH_SOURCE`) and which was started (`$0`); UNKNOWN where nobody knows."""

    source: str
    script: str


class Words:
    """Expands words. One per reading, so that the budget holds over everything that is read."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kinds: dict[str, Callable[[Node, Scope, Place], str]] = {
            "word": self._bare,
            "number": self._bare,
            "command_name": self._joined,
            "concatenation": self._concatenation,
            "string": self._string,
            "translated_string": self._joined,
            "raw_string": lambda node, _scope, _place: text_of(node)[1:-1],
            "ansi_c_string": lambda node, _scope, _place: unescaped_ansi(text_of(node)),
            "simple_expansion": self._simple,
            "expansion": self._expansion,
            "command_substitution": self._substitution,
        }

    def expand(self, node: Node, scope: Scope, place: Place) -> str:
        """The text of a word, quoted or not, without splitting it."""
        with self._budget:
            kind = self._kinds.get(node.type)
            if kind is None or node.is_missing:
                return UNKNOWN
            found = kind(node, scope, place)
            if len(found) > _LONGEST_TEXT:
                # `a=$a$a` doubles each time.
                raise ScriptTooHard(f"a value of more than {_LONGEST_TEXT} characters")
            return found

    def fields(self, parent: Node, words: Sequence[Node], scope: Scope, place: Place) -> list[str]:
        """The arguments that words become: an expansion without quotes is cut at its blanks."""
        cut = cut_words(parent, words)
        found: list[str] = []
        for at, node in enumerate(words):
            text = self.expand(node, scope, place)
            only = node.children[0] if node.type == "command_name" and node.child_count == 1 else node
            if at in cut or (only.type in _BARE and _WILD & set(text)):
                # What it matches on the nodes of the job is not known here.
                found.append(UNKNOWN)
            elif only.type in _EXPANSIONS:
                found.extend(text.split())
            elif only.type == "concatenation" and self._may_split(only, scope, place):
                found.append(UNKNOWN)
            else:
                found.append(text)
        return found

    def _may_split(self, node: Node, scope: Scope, place: Place) -> bool:
        """Whether a word made of several pieces is cut at blanks in one of them."""
        bare = [child for child in node.named_children if child.type in _EXPANSIONS]
        return any(blank in self.expand(child, scope, place) for child in bare for blank in " \t\n")

    def _bare(self, node: Node, scope: Scope, _place: Place) -> str:
        if node.named_child_count:
            return UNKNOWN
        text = text_of(node)
        if ":~" in text:
            # In an assignment the home directory, in an argument not.
            return UNKNOWN
        if text.startswith("~") and begins_a_word(node):
            home = scope.get("HOME") or UNKNOWN
            return home + unescaped(text[1:]) if text[1:2] in ("", "/") else UNKNOWN
        return UNKNOWN if has_braces(text) else unescaped(text)

    def _joined(self, node: Node, scope: Scope, place: Place) -> str:
        return "".join(self.expand(child, scope, place) for child in node.named_children)

    def _concatenation(self, node: Node, scope: Scope, place: Place) -> str:
        if any(child.type == "word" and text_of(child) in ("{", "}") for child in node.children):
            # `{a,b}` becomes several words.
            return UNKNOWN
        if not all(child.is_named for child in node.children) or not is_gapless(node):
            return UNKNOWN
        return self._joined(node, scope, place)

    def _string(self, node: Node, scope: Scope, place: Place) -> str:
        if node.child_count < 2:
            return UNKNOWN
        return self._between(node, node.children[1:-1], node.children[0], node.children[-1], scope, place)

    def _between(self, node: Node, parts: Sequence[Node], first: Node, last: Node, scope: Scope, place: Place) -> str:
        """What stands between two tokens: the parts, and the text around them that is no part of its own."""
        raw, offset, at = node.text or b"", node.start_byte, first.end_byte
        found: list[str] = []
        for part in (*(p for p in parts if p.is_named and p.type != "string_content"), last):
            found.append(unquoted(decoded(raw[at - offset : part.start_byte - offset])))
            if part is not last:
                found.append(self.expand(part, scope, place))
            at = part.end_byte
        return "".join(found)

    def _simple(self, node: Node, scope: Scope, place: Place) -> str:
        value = _value(node.named_children[0], scope, place) if node.named_child_count == 1 else UNKNOWN
        return UNKNOWN if value is None else value

    def _expansion(self, node: Node, scope: Scope, place: Place) -> str:
        inner = node.children[1:-1]
        if node.has_error or not inner or inner[0].type not in (*_NAMES, "subscript"):
            return UNKNOWN
        value = _value(inner[0], scope, place)
        if len(inner) == 1:
            return UNKNOWN if value is None else value
        operator = inner[1].type
        if operator in _TRIMS:
            if value is None or len(inner) != 3 or inner[2].type not in ("regex", "word") or inner[2].child_count:
                return UNKNOWN
            return trim(operator, value, text_of(inner[2]))
        if operator not in _DEFAULTS:
            return UNKNOWN
        return self._default(node, operator, value, inner, scope, place)

    def _default(
        self, node: Node, operator: str, value: str | None, inner: Sequence[Node], scope: Scope, place: Place
    ) -> str:
        """`${V:-word}` and its sisters; the word of a name that was never assigned, which its environment may hold."""
        filled = is_filled(value) if value is not None else False
        is_set = filled if operator.startswith(":") else value is not None
        if is_set is None or (value is None and (scope.is_open or operator in (":+", "+"))):
            return UNKNOWN
        word = self._between(node, inner[2:], inner[1], node.children[-1], scope, place)
        if operator in (":+", "+"):
            return word if is_set else ""
        if is_set:
            return value or ""
        if operator in (":?", "?"):
            return UNKNOWN
        if operator in (":=", "=") and inner[0].type == "variable_name":
            scope.set(text_of(inner[0]), word)
        return word

    def _substitution(self, node: Node, scope: Scope, place: Place) -> str:
        commands = joined_commands(node)
        inside = scope.child()
        calls = [self._call(command, inside, place) for command in commands]
        if len(calls) == 1 and calls[0]:
            return _program(calls[0], scope.get(CURRENT_DIRECTORY) or UNKNOWN)
        if len(calls) == 2 and calls[0] and calls[1] and calls[0][0] == "cd" and calls[1][0] == "pwd":
            return _program(calls[1], change_directory(calls[0][1:], scope))
        return UNKNOWN

    def _call(self, node: Node, scope: Scope, place: Place) -> list[str]:
        """The words of a simple command, () for anything else."""
        if node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            return self._call(body, scope, place) if body is not None else []
        if node.type != "command" or node.has_error:
            return []
        if any(child.type not in ("command_name", *self._kinds) for child in node.children):
            return []
        return self.fields(node, node.named_children, scope, place)


def change_directory(arguments: Sequence[str], scope: Scope) -> str:
    """The current directory after `cd` with these arguments."""
    here = scope.get(CURRENT_DIRECTORY) or UNKNOWN
    options, operands = _split_options(arguments)
    if not operands:
        return scope.get("HOME") or UNKNOWN
    if len(operands) > 1 or operands[0] == "-" or not set(options) <= {"-P", "-L", "-e"}:
        return UNKNOWN
    return resolve_links(operands[0], here) if "-P" in options else absolute(operands[0], here)


def _value(name: Node, scope: Scope, place: Place) -> str | None:
    """What a name holds; None when the script never assigned it."""
    if name.type == "subscript":
        array, index = name.child_by_field_name("name"), name.child_by_field_name("index")
        is_source = array is not None and index is not None and (text_of(array), text_of(index)) == ("BASH_SOURCE", "0")
        return place.source if is_source else UNKNOWN
    word = text_of(name)
    if name.type not in _NAMES or not word.isidentifier():
        return place.script if word == "0" else UNKNOWN
    if word == "BASH_SOURCE":
        return place.source
    held = scope.get(word)
    if held is None and (word.startswith("SLURM") or word in _OTHERS_SET):
        return UNKNOWN
    return held


def _program(call: Sequence[str], here: str) -> str:
    """What one of the known programs prints."""
    options, operands = _split_options(call[1:])
    program, only = call[0], operands[0] if operands else ""
    if program == "pwd" and not operands and options in ([], ["-L"]):
        return here
    if program == "pwd" and not operands and options == ["-P"]:
        return resolve_links(here, here)
    if program == "dirname" and len(operands) == 1 and not options:
        return directory_of(only)
    if program == "basename" and len(operands) in (1, 2) and not options:
        return name_of(*operands)
    if program == "realpath" and len(operands) == 1 and set(options) <= {"-e", "-m", "-q", "-P"}:
        return resolve_links(only, here)
    if program == "readlink" and len(operands) == 1 and len(options) == 1 and options[0] in ("-f", "-e", "-m"):
        return resolve_links(only, here)
    return UNKNOWN


def _split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    for at, argument in enumerate(arguments):
        if argument == "--":
            return list(arguments[:at]), list(arguments[at + 1 :])
        if not argument.startswith("-") or argument == "-":
            return list(arguments[:at]), list(arguments[at:])
    return list(arguments), []
