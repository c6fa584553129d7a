from __future__ import annotations

import fnmatch
import glob
import os
import posixpath
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nvrx_watch.resolve.shell_text import (
    ANY_JOB,
    UNKNOWN,
    absolute,
    clean,
    directory_of,
    glob_of,
    is_filled,
    name_of,
    resolve_links,
    trim,
)

PATHS = st.text(alphabet="ab./ -", max_size=12)


@pytest.mark.parametrize(
    ("path", "directory", "name"),
    [
        ("/a/b", "/a", "b"),
        ("/a/b/", "/a", "b"),
        ("a", ".", "a"),
        ("/a", "/", "a"),
        ("/", "/", "/"),
        ("//a", "/", "a"),
        ("a//b", "a", "b"),
        ("", ".", ""),
    ],
)
def test_dirname_and_basename_are_those_of_the_programs(path: str, directory: str, name: str) -> None:
    assert (directory_of(path), name_of(path)) == (directory, name)


def test_what_is_unknown_stays_unknown() -> None:
    part = f"/a{UNKNOWN}"
    assert directory_of(part) == name_of(part) == absolute(part, "/") == resolve_links(part, "/") == UNKNOWN
    assert trim("%", part, "/*") == absolute("x", UNKNOWN) == absolute("", "/") == UNKNOWN
    assert (is_filled(UNKNOWN), is_filled(""), is_filled(part)) == (None, False, True)


@given(st.sampled_from(["%", "%%", "#", "##"]), PATHS, st.text(alphabet="ab./", min_size=1, max_size=3), st.booleans())
def test_trim_takes_the_shortest_or_longest_match(operator: str, value: str, literal: str, has_star: bool) -> None:
    from_end = operator[0] == "%"
    pattern = literal if not has_star else f"{literal}*" if from_end else f"*{literal}"
    sizes = range(len(value) + 1)
    matching = [
        size for size in sizes if fnmatch.fnmatchcase(value[len(value) - size :] if from_end else value[:size], pattern)
    ]
    size = 0 if not matching else max(matching) if len(operator) == 2 else min(matching)
    assert trim(operator, value, pattern) == (value[: len(value) - size] if from_end else value[size:])


@given(PATHS)
def test_absolute_is_what_normpath_makes_of_it(path: str) -> None:
    assume(path)
    expected = posixpath.normpath(posixpath.join("/x", path))
    assert absolute(path, "/x") == "/" + expected.lstrip("/")


@given(st.text(max_size=40))
def test_cleaned_text_has_no_marks_and_can_be_a_path(text: str) -> None:
    found = clean(text)
    assert not {ANY_JOB, UNKNOWN, "\0"} & set(found)
    os.fsencode(found)


def test_only_the_job_id_is_open_in_a_glob(tmp_path: Path) -> None:
    for name in ("r[1]*_7", "r[1]x_7", "r1_7"):
        (tmp_path / name).mkdir()
    assert glob.glob(glob_of(f"{tmp_path}/r[1]*_{ANY_JOB}")) == [f"{tmp_path}/r[1]*_7"]


def test_links_are_resolved_before_the_open_job_id_and_dots_after_it_are_not(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert resolve_links(f"{tmp_path}/link/{ANY_JOB}/x", "/") == f"{tmp_path}/{ANY_JOB}/x"
    assert resolve_links(f"link/{ANY_JOB}/..", str(tmp_path)) == UNKNOWN
