"""No text of a file, a variable or Slurm is given to a shell or to Python to evaluate: every script is a constant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for name in ("nvrx_chain", "nvrx_watch") for path in (ROOT / name).rglob("*.py"))
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash", "dash"}
EVALUATING = {"eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
KNOWN_SCRIPTS = {"nvrx_chain/sandbox/processes.py", "nvrx_chain/launchers/prologue.py"}
"""Modules that start a shell with a script of their own; what they hand it are arguments."""

BECOMES_A_SCRIPT = ROOT / "nvrx_chain/launcher/parked.py"
"""A parked worker that becomes the user's own training script, as an interpreter does that is given its path."""


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def constants_of(tree: ast.Module) -> set[str]:
    """Names at the top of a module that are bound to a plain string, and only once."""
    bound = [
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    plain = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {name for name in plain if bound.count(name) == 1}


def find_evaluations(source: str) -> Iterator[str]:
    """Calls that evaluate text, and shells whose script is no constant of the module."""
    tree = ast.parse(source)
    constants = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if name_of(node.func) in EVALUATING:
                yield f"line {node.lineno}: {name_of(node.func)}"
            starts = name_of(node.func).startswith(("subprocess.", "Popen"))
            if starts and any(word.arg == "shell" for word in node.keywords):
                yield f"line {node.lineno}: shell="
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [element.value if isinstance(element, ast.Constant) else None for element in node.elts]
            for at, word in enumerate(words):
                if word != "-c" or not SHELLS & {each for each in words[:at] if isinstance(each, str)}:
                    continue
                script = node.elts[at + 1] if at + 1 < len(node.elts) else None
                is_fixed = isinstance(script, ast.Name) and script.id in constants
                if not is_fixed:
                    yield f"line {node.lineno}: a shell with a script that is put together"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_evaluates_no_text(path: Path) -> None:
    found = list(find_evaluations(path.read_text()))
    if path == BECOMES_A_SCRIPT:
        assert [one.partition(": ")[2] for one in found] == ["exec", "compile"]
    else:
        assert found == []


def test_the_modules_that_start_a_shell_are_known() -> None:
    pattern = re.compile(r"""["'](?:/bin/)?(?:ba|da)?sh["'],\s*["']-c["']""")
    assert {str(path.relative_to(ROOT)) for path in MODULES if pattern.search(path.read_text())} == KNOWN_SCRIPTS


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.system(name)",
        "eval(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import subprocess\nsubprocess.run(['bash', '-c', f'echo {name}'])",
        "import subprocess\nsubprocess.run(['sh', '-e', '-c', name])",
        "S = 'true'\nS = S + name\nimport subprocess\nsubprocess.run(('sh', '-c', S))",
    ],
)
def test_each_way_to_evaluate_text_is_found(source: str) -> None:
    assert list(find_evaluations(source))


@pytest.mark.parametrize("script", sorted((ROOT / "sbatch_templates").iterdir()), ids=lambda path: path.name)
def test_a_batch_script_evaluates_no_text(script: Path) -> None:
    code = [line.partition(" #")[0] for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in code:
        assert not re.search(r"\b(eval|source)\b|`|^\s*\.\s|(ba)?sh -c", line), line
