"""Pieces of a bash syntax tree as text, and where the grammar cuts what bash reads as one word. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from nvrx_chain.errors import NvrxError
from nvrx_watch.resolve.shell_text import UNKNOWN, is_known

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MOST_NODES = 200_000
_MOST_MENDED = 16
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
_NAME_STARTS = frozenset(bytes([letter]) for letter in _LETTERS)
_NAME = frozenset(_LETTERS + b"0123456789")

_IN_QUOTES = '$`"\\'


class ScriptTooHard(NvrxError):
    """Reading the script would take more work than it is worth. The message says what there is too much of."""


def make_parser() -> Parser:
    """A parser for bash. The libraries are loaded here: only a foreign chain needs them."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse_script(parser: Parser, text: str) -> Node:
    """The syntax tree of a script. Raises ScriptTooHard for one with very many parts.

    The grammar breaks a bare word such as `$A/b/$C/d` apart at its second `$`, and one that goes on on the next line
    at its end; and it reads on over the end of a line that has several assignments. Such places are mended first.
    """
    source = text.encode("utf-8", errors="replace")
    for _ in range(_MOST_MENDED):
        root = parser.parse(source).root_node
        if root.descendant_count > MOST_NODES:
            raise ScriptTooHard(f"more than {MOST_NODES} parts")
        mends = _find_mends(root, source)
        if not mends:
            return root
        source = _mended(source, mends)
    raise ScriptTooHard(f"the grammar does not get on with it after {_MOST_MENDED} tries")


def _find_mends(root: Node, source: bytes) -> list[tuple[int, int, bytes]]:
    """(start, end, what to put there) of the places that the grammar reads otherwise than bash."""
    waiting, found = [root], []
    while waiting:
        node = waiting.pop()
        children = node.children
        waiting.extend(children)
        for before, after in zip_longest(children, children[1:]):
            start = before.end_byte
            if before.type == "$" and node.type == "concatenation" and source[start : start + 1] in _NAME_STARTS:
                end = _end_of_name(source, start)
                found.append((start, end, b"{" + source[start:end] + b"}"))
            if after is None or not before.is_named:
                continue
            gap = source[start : after.start_byte]
            if gap and not _joined_lines(gap):
                found.append((start, after.start_byte, b""))
            elif node.type == "command" and before.type == "variable_assignment" and b"\n" in _joined_lines(gap):
                found.append((start, start, b";"))
    return found


def _end_of_name(source: bytes, start: int) -> int:
    end = start
    while end < len(source) and source[end] in _NAME:
        end += 1
    return end


def _mended(source: bytes, mends: Sequence[tuple[int, int, bytes]]) -> bytes:
    pieces, at = [], 0
    for start, end, text in sorted(mends):
        if start < at:
            # Two of them overlap: the later one is found again in the next round.
            continue
        pieces += [source[at:start], text]
        at = end
    return b"".join([*pieces, source[at:]])


def _joined_lines(gap: bytes) -> bytes:
    return gap.replace(b"\\\n", b"")


def text_of(node: Node) -> str:
    """The source of a node."""
    return decoded(node.text or b"")


def joined_commands(node: Node) -> list[Node]:
    """The commands of a substitution that are joined by `&&` or `;`, at most as many as an idiom has and one more."""
    waiting: list[Node] = list(reversed(node.children))
    found: list[Node] = []
    while waiting and len(found) < 3:
        one = waiting.pop()
        if one.type == "list" and all(child.is_named or child.type == "&&" for child in one.children):
            waiting.extend(reversed(one.named_children))
        elif one.is_named and one.type != "comment":
            found.append(one)
    return found


def cut_words(parent: Node, words: Sequence[Node]) -> set[int]:
    """Which of the words are only parts of a longer one: nothing that separates words stands before the next.

    The grammar takes `a"b"\\ c`, and a word that goes on on the next line, for two words.
    """
    raw, offset = parent.text or b"", parent.start_byte
    cut: set[int] = set()
    for at in range(1, len(words)):
        gap = _joined_lines(raw[words[at - 1].end_byte - offset : words[at].start_byte - offset])
        if not gap or gap.startswith(b"\\"):
            cut |= {at - 1, at}
    return cut


def is_gapless(node: Node) -> bool:
    """Whether the children of a node cover all of its text: the grammar loses a letter of some odd words."""
    ends = [node.start_byte, *(child.end_byte for child in node.children)]
    starts = [*(child.start_byte for child in node.children), node.end_byte]
    return ends == starts


def begins_a_word(node: Node) -> bool:
    """Whether a bare piece stands where bash takes `~` for the home directory."""
    outer = node.parent
    if outer is not None and outer.type == "concatenation":
        if outer.start_byte != node.start_byte or b"/" not in (node.text or b""):
            # `~$user` is no home directory but that very text.
            return False
        outer = outer.parent
    quoted = outer.parent if outer is not None and outer.type == "expansion" else None
    return quoted is None or quoted.type != "string"


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def unescaped(text: str) -> str:
    """A bare word without its backslashes; a line that goes on on the next one is joined."""
    letters, found = iter(text), []
    for letter in letters:
        after = next(letters, "") if letter == "\\" else None
        if after != "\n":
            found.append(letter if after is None else after)
    return "".join(found)


def unquoted(text: str) -> str:
    """The inside of double quotes, where a backslash means something before four characters and a line end only."""
    letters, found = iter(text), []
    for letter in letters:
        after = next(letters, "") if letter == "\\" else None
        if after is None:
            found.append(letter)
        elif after != "\n":
            found.append(after if after and after in _IN_QUOTES else f"\\{after}")
    return "".join(found)


def unescaped_ansi(text: str) -> str:
    """The inside of `$'...'`, unknown when it has an escape."""
    return UNKNOWN if "\\" in text else text[2:-1]


def has_braces(text: str) -> bool:
    """Whether bash makes several words of it."""
    return "{" in text and "}" in text and ("," in text or ".." in text) and is_known(text)
