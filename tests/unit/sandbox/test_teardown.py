"""Removing a sandbox's files, whoever else is at it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.sandbox import teardown


def test_a_file_that_somebody_else_removes_first_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "runtime"
    (tree / "deep").mkdir(parents=True)
    (tree / "gres.conf").write_text("")
    (tree / "deep" / "x").write_text("")
    unlink = os.unlink

    def twice(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", twice)
    teardown._remove_tree(tree)
    assert not tree.exists()


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "runtime"
    tree.mkdir()
    (tree / "x").write_text("")

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        teardown._remove_tree(tree)
