"""Reads a bash script along its statements, the way bash would take, without running any of it.

Assignments on the straight way count in their order; those in branches, loops and functions only where nothing else is
known (shell_scope). A sourced file is read too. Touches: the files that a script sources, through the reader handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from nvrx_watch.resolve.shell_options import FoundOptions, holds_a_line
from nvrx_watch.resolve.shell_scope import CURRENT_DIRECTORY, Scope
from nvrx_watch.resolve.shell_text import UNKNOWN, absolute, clean, is_known, is_literal
from nvrx_watch.resolve.shell_tree import ScriptTooHard, cut_words, make_parser, parse_script, text_of
from nvrx_watch.resolve.shell_words import Budget, Place, Words, change_directory

if TYPE_CHECKING:
    from tree_sitter import Node

SourceReader = Callable[[str], str | None]
"""The text of a file by its absolute path; None when there is none. Raises UnreadableSource."""

MOST_SOURCED_DEEP = 8
MOST_SOURCED = 64

# They only show what they are given.
_SAY = frozenset({"echo", "printf", "cat", "log", "die"})
# They put something unknown into the names that they are given.
_FILL = frozenset({"read", "readarray", "mapfile", "getopts", "let", "printf"})
# What a script does before the next step, and which does not fail in a run that goes on.
_GO_ON = frozenset({"cd", "mkdir", "source", ".", "export", ":", "true", "set"})


class UnreadableSource(Exception):
    """A sourced file is there and may not be believed or cannot be read."""


class Walk:
    """One reading of one script with all that it sources."""

    def __init__(self, read_source: SourceReader, script_path: str) -> None:
        self.options = FoundOptions()
        self._read_source = read_source
        self._script_path = script_path
        self._budget = Budget()
        self._words = Words(self._budget)
        self._parser = make_parser()
        self._functions: dict[str, tuple[Node, Place]] = {}
        self._called: set[str] = set()
        self._open_files: list[str] = []
        self._sourced = 0
        self._kinds: dict[str, Callable[[Node, Scope, Place], None]] = {
            "variable_assignment": self._assignment,
            "declaration_command": self._declaration,
            "unset_command": self._unset,
            "command": self._command,
            "redirected_statement": self._redirected,
            "list": self._list,
            "subshell": self._aside,
            "pipeline": self._aside,
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._loop,
            "c_style_for_statement": self._loop,
            "while_statement": self._loop,
            "function_definition": self._function,
            "ERROR": self._maybe,
        }
        for kind in ("program", "variable_assignments", "compound_statement", "do_group", "negated_command"):
            self._kinds[kind] = self._each

    def run(self, text: str, scope: Scope) -> None:
        """Read the script, then the functions that nothing seen has called. Raises ScriptTooHard."""
        self._text(text, scope, Place(source=self._script_path, script=self._script_path))
        for name, (body, place) in list(self._functions.items()):
            if name not in self._called:
                self._visit(body, scope.child(is_function=True), place)

    def _text(self, text: str, scope: Scope, place: Place) -> None:
        self._visit(parse_script(self._parser, text), scope, place)

    def _visit(self, node: Node, scope: Scope, place: Place) -> None:
        with self._budget:
            kind = self._kinds.get(node.type)
            if kind is not None:
                kind(node, scope, place)

    def _all(self, nodes: Sequence[Node], scope: Scope, place: Place) -> None:
        for node, after in zip_longest(nodes, nodes[1:]):
            if node.is_named:
                # `x &` is a process of its own.
                is_aside = after is not None and after.type == "&"
                self._visit(node, scope.child() if is_aside else scope, place)
            if after is not None and after.is_named and node.end_byte == after.start_byte:
                # The grammar broke a word apart, and this is only its beginning.
                self._fill([text_of(node)], scope)

    def _each(self, node: Node, scope: Scope, place: Place) -> None:
        self._all(node.children, scope, place)

    def _aside(self, node: Node, scope: Scope, place: Place) -> None:
        """A subshell: what it assigns does not come back."""
        self._all(node.children, scope.child(), place)

    def _maybe(self, node: Node, scope: Scope, place: Place) -> None:
        """Something that may be run or not, once."""
        branch = scope.child()
        self._all(node.children, branch, place)
        scope.absorb([branch], is_exhaustive=False)

    def _redirected(self, node: Node, scope: Scope, place: Place) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._visit(body, scope, place)
        for child in node.children:
            if child.type == "heredoc_redirect":
                # The grammar puts what follows `<<EOF` on the line, such as `&& next`, inside.
                self._maybe(child, scope, place)

    def _list(self, node: Node, scope: Scope, place: Place) -> None:
        """`a && b`, `a || b`: the second may not be run, unless the first is one that scripts rely on."""
        if node.child_count < 3:
            self._maybe(node, scope, place)
            return
        left, right = node.children[0], node.children[-1]
        self._visit(left, scope, place)
        if any(child.type == "&&" for child in node.children) and self._goes_on(left):
            self._visit(right, scope, place)
            return
        branch = scope.child()
        self._visit(right, branch, place)
        scope.absorb([branch], is_exhaustive=False)

    def _goes_on(self, node: Node) -> bool:
        if node.type == "redirected_statement":
            return bool(node.named_children) and self._goes_on(node.named_children[0])
        if node.type == "list":
            return all(child.is_named or child.type == "&&" for child in node.children) and self._goes_on(
                node.children[-1]
            )
        if node.type == "command":
            name = node.child_by_field_name("name")
            return name is not None and text_of(name) in _GO_ON
        is_assignment = node.type in ("variable_assignment", "variable_assignments", "declaration_command")
        # An assignment fails as the program fails whose output it takes.
        return is_assignment and not any(mark in text_of(node) for mark in ("$(", "`"))

    def _if(self, node: Node, scope: Scope, place: Place) -> None:
        branches, has_else = [scope.child()], False
        is_body = False
        for child in node.children:
            if child.type in ("elif_clause", "else_clause"):
                has_else = has_else or child.type == "else_clause"
                branches.append(scope.child())
                self._all(child.children, branches[-1], place)
            elif child.is_named:
                self._visit(child, branches[0] if is_body else scope, place)
            is_body = is_body or child.type == "then"
        scope.absorb(branches, is_exhaustive=has_else)

    def _case(self, node: Node, scope: Scope, place: Place) -> None:
        branches, has_rest = [], False
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            has_rest = has_rest or any(text_of(pattern) == "*" for pattern in patterns)
            branches.append(scope.child())
            self._all(item.children, branches[-1], place)
        scope.absorb(branches, is_exhaustive=has_rest)

    def _loop(self, node: Node, scope: Scope, place: Place) -> None:
        body = scope.child()
        variable = node.child_by_field_name("variable")
        if variable is not None:
            body.set(text_of(variable), UNKNOWN)
        self._all(node.children, body, place)
        scope.absorb([body], is_exhaustive=False, repeats=True)

    def _function(self, node: Node, _scope: Scope, place: Place) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[text_of(name)] = (body, place)

    def _unset(self, node: Node, scope: Scope, _place: Place) -> None:
        for child in node.named_children:
            if child.type == "variable_name":
                scope.set(text_of(child), None)

    def _declaration(self, node: Node, scope: Scope, place: Place) -> None:
        word = node.children[0].type if node.children else ""
        is_global = any(text_of(child).startswith("-") and "g" in text_of(child) for child in node.named_children)
        is_local = word in ("local", "declare", "typeset") and not is_global
        cut = cut_words(node, node.named_children)
        for at, child in enumerate(node.named_children):
            if at in cut:
                self._fill([text_of(child)], scope)
            elif child.type == "variable_assignment":
                self._assignment(child, scope, place, is_local=is_local)
            elif child.type == "variable_name" and word == "local":
                scope.set_local(text_of(child), "")
            elif child.type in ("string", "concatenation", "simple_expansion", "expansion", "command_substitution"):
                self._declare_text(self._words.expand(child, scope, place), scope)

    def _declare_text(self, text: str, scope: Scope) -> None:
        """`export "$name=$value"`."""
        name, equals, value = text.partition("=")
        if name.isidentifier() and equals:
            scope.set(name, value)
        elif not is_known(name):
            scope.open()

    def _assignment(self, node: Node, scope: Scope, place: Place, *, is_local: bool = False) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return
        word, adds = text_of(name), any(child.type == "+=" for child in node.children)
        if name.type != "variable_name" or (value is not None and value.type == "array"):
            if value is not None and value.type == "array":
                words = [child for child in value.named_children if child.type != "comment"]
                self.options.take(self._words.fields(value, words, scope, place), _here(scope), in_command=False)
            scope.set(word.partition("[")[0], UNKNOWN)
            return
        text = self._words.expand(value, scope, place) if value is not None else ""
        if any(child.type in ("comment", "ERROR") for child in node.children):
            text = UNKNOWN
        if adds:
            before = scope.get(word)
            text = (UNKNOWN if before is None else before) + text
        self.options.take(text.split(), _here(scope), in_command=False)
        if is_local:
            scope.set_local(word, text)
        else:
            scope.set(word, text)

    def _command(self, node: Node, scope: Scope, place: Place) -> None:
        children = [child for child in node.named_children if not child.type.endswith(("_redirect", "comment"))]
        before = [child for child in children if child.type == "variable_assignment"]
        words = children[len(before) :]
        for child in before:
            # `A=1 program` is for that program alone.
            value = child.child_by_field_name("value")
            if value is not None and value.type != "array":
                self.options.take(self._words.expand(value, scope, place).split(), _here(scope), in_command=False)
        if before and cut_words(node, children) & {len(before) - 1}:
            # It is no command at all but assignments, of which the grammar broke one apart.
            for child in children:
                self._fill([text_of(child)], scope)
            return
        fields = self._words.fields(node, words, scope, place)
        if not fields:
            return
        name, arguments = fields[0], fields[1:]
        if name in _FILL:
            self._fill(_names_filled(name, arguments), scope)
        if name in ("cd", "pushd", "popd"):
            scope.set(CURRENT_DIRECTORY, change_directory(arguments, scope) if name == "cd" else UNKNOWN)
        elif name in ("source", "."):
            self._source(arguments, scope, place)
        elif name == "eval":
            self._embedded(" ".join(arguments), scope, place)
        elif name in self._functions:
            self._call(name, scope)
        if name not in _SAY and name != "eval":
            self._take(fields, scope, place)

    def _take(self, fields: Sequence[str], scope: Scope, place: Place) -> None:
        """Look for options in a command, and in an argument that is a command itself (`bash -c "..."`)."""
        self.options.take(fields, _here(scope), in_command=True)
        for field in fields:
            if holds_a_line(field):
                self._embedded(field, scope.child(), place)

    def _embedded(self, text: str, scope: Scope, place: Place) -> None:
        with self._budget:
            self._text(text, scope, place)

    def _fill(self, words: Sequence[str], scope: Scope) -> None:
        """Something unknown is put into the names that the words begin with."""
        for word in words:
            name = word.partition("=")[0].rstrip("+")
            if name.isidentifier():
                scope.set(name, UNKNOWN)

    def _call(self, name: str, scope: Scope) -> None:
        """A function that the script defines: read at each call, but not inside itself."""
        body, place = self._functions[name]
        self._called.add(name)
        inside = scope.child(is_function=True)
        del self._functions[name]
        try:
            self._visit(body, inside, place)
        finally:
            self._functions.setdefault(name, (body, place))
        scope.absorb([inside], is_exhaustive=False)

    def _source(self, arguments: Sequence[str], scope: Scope, place: Place) -> None:
        """Read a sourced file in the script's place. One that cannot be read may have assigned anything."""
        path = absolute(arguments[0], _here(scope)) if arguments else UNKNOWN
        if not is_literal(path):
            scope.open()
            return
        if path in self._open_files:
            return
        self._sourced += 1
        if self._sourced > MOST_SOURCED or len(self._open_files) >= MOST_SOURCED_DEEP:
            raise ScriptTooHard(f"more than {MOST_SOURCED} sourced files, or {MOST_SOURCED_DEEP} in one another")
        try:
            text = self._read_source(path)
        except UnreadableSource:
            scope.open()
            return
        if text is None:
            # `[ -f x ] && . x` takes an absent file for granted; a plain `. x` means that this machine lacks it.
            if not scope.is_branch:
                scope.open()
            return
        self._open_files.append(path)
        try:
            self._text(clean(text), scope, Place(source=path, script=place.script))
        finally:
            self._open_files.pop()


def _names_filled(name: str, arguments: Sequence[str]) -> Sequence[str]:
    if name != "printf":
        return arguments
    return [after for word, after in pairwise(arguments) if word == "-v"]


def _here(scope: Scope) -> str:
    return scope.get(CURRENT_DIRECTORY) or UNKNOWN
