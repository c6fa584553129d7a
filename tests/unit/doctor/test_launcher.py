"""Looking for a launcher: what is installed, whether it can be imported, how long that takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvrx_chain.doctor.facts import Launcher
from nvrx_chain.doctor.launcher import read_launcher
from nvrx_chain.errors import Unobserved


def make_torch(directory: Path, body: str) -> dict[str, str]:
    """An environment in which `torch.distributed.run` is this code."""
    package = directory / "torch" / "distributed"
    package.mkdir(parents=True)
    (directory / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text(body)
    return {**os.environ, "PYTHONPATH": str(directory)}


def look(environ: dict[str, str], kind: str | None = "torchrun", seconds: float = 30.0) -> Launcher:
    seen = read_launcher(sys.executable, kind, environ, seconds=seconds)
    assert isinstance(seen, Launcher), seen
    return seen


def test_a_launcher_that_can_be_imported_has_a_time(tmp_path: Path) -> None:
    seen = look(make_torch(tmp_path, "print('a banner of a library')"))
    assert seen.kind == "torchrun"
    assert "torchrun" in seen.versions
    assert seen.problem is None
    assert 0 <= (seen.import_seconds or -1) < 10


def test_a_launcher_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    seen = look(make_torch(tmp_path, "raise ImportError('libcudart.so.12: cannot open\\nshared object')"))
    assert seen.import_seconds is None
    assert seen.problem == "ImportError: libcudart.so.12: cannot open; shared object"


def test_an_import_that_does_not_end_leaves_what_is_installed(tmp_path: Path) -> None:
    seen = look(make_torch(tmp_path, "import time; time.sleep(60)"), seconds=4.0)
    assert "torchrun" in seen.versions
    assert (seen.import_seconds, seen.problem) == (None, None)


def test_a_launcher_that_is_not_installed_is_not_among_the_versions(tmp_path: Path) -> None:
    seen = look(make_torch(tmp_path, ""), "ft_launcher")
    assert seen.kind == "ft_launcher"
    assert "ft_launcher" not in seen.versions


def test_without_a_kind_the_first_that_is_installed_is_tried(tmp_path: Path) -> None:
    assert look(make_torch(tmp_path, ""), None).kind == "torchrun"


def test_an_interpreter_that_is_none_is_unobserved() -> None:
    assert isinstance(read_launcher("/bin/false", None, os.environ, seconds=5.0), Unobserved)
    assert isinstance(read_launcher("/bin/echo", None, os.environ, seconds=5.0), Unobserved)
