"""A script that is made to hurt its reader never runs, never hangs it and never ends it."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_chain.errors import Unobserved
from nvrx_watch.resolve import batch_script
from nvrx_watch.resolve.batch_script import ScriptFacts, ScriptPaths, interpret_script, read_script_paths
from nvrx_watch.resolve.shell_text import ANY_JOB, UNKNOWN

FACTS = ScriptFacts(
    work_directory="/w", job_name="train", user="alice", uid=os.getuid(), home="/home/alice", script_path="/w/run.sh"
)
LAST = "\nft_launcher --ft-cycle-info-dir /a\n"

NESTED = {
    "substitution": "x=$(",
    "braces": "{ ",
    "expansion": '"${a:-',
    "subshell": "(",
    "function": "f() {\n",
    "if": "if a; then\n",
    "backquote": "`",
    "and": "a && ",
}


@pytest.mark.parametrize("kind", sorted(NESTED))
def test_deep_nesting_is_given_up_or_survived(kind: str) -> None:
    found = interpret_script(NESTED[kind] * 3000 + LAST, FACTS)
    assert isinstance(found, Unobserved | ScriptPaths)


def test_a_well_formed_tower_is_given_up_with_a_reason() -> None:
    found = interpret_script("x=" + "$(dirname " * 500 + "/a" + ")" * 500 + LAST, FACTS)
    assert isinstance(found, Unobserved)
    assert "deep" in found.reason


def test_a_script_with_very_many_parts_is_given_up() -> None:
    found = interpret_script("a=b\n" * 200_000 + LAST, FACTS)
    assert isinstance(found, Unobserved)
    assert "parts" in found.reason


def test_functions_that_call_each_other_many_times_end() -> None:
    levels = [f"f{at}() {{ f{at + 1}; f{at + 1}; f{at + 1}; }}" for at in range(20)]
    assert isinstance(interpret_script("\n".join([*levels, "f0"]), FACTS), Unobserved)
    assert isinstance(interpret_script(f"f() {{ f; g; }}\ng() {{ f; }}\nf{LAST}", FACTS), ScriptPaths)


def test_a_value_that_doubles_each_time_is_given_up() -> None:
    found = interpret_script("a=xxxxxxxxxx\n" + 'a="$a$a"\n' * 60 + LAST, FACTS)
    assert isinstance(found, Unobserved)
    assert "characters" in found.reason


def test_nothing_is_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    attacks = [
        f"x=$(rm -rf '{victim}')",
        f"x=`rm '{victim}'`",
        f"rm '{victim}'",
        f"> '{victim}'",
        f"cat <(rm '{victim}')",
        f": $(( a[$(rm '{victim}')] ))",
        f"eval \"rm '{victim}'\"",
        f"x=$(dirname $(rm '{victim}'))",
        f"x=${{y:=$(rm '{victim}')}}",
        f"cd '{tmp_path}' && rm victim",
        f"bash -c \"rm '{victim}'; ft_launcher --ft-cycle-info-dir /b\"",
        f"__import__('os').remove('{victim}')",
    ]
    for attack in attacks:
        assert isinstance(interpret_script(f"{attack}\n", FACTS), ScriptPaths), attack
        assert victim.read_text() == "precious", attack


def test_the_private_marks_in_a_script_mean_nothing() -> None:
    found = interpret_script(f"ft_launcher --ft-cycle-info-dir /a/{ANY_JOB}/{UNKNOWN}", FACTS)
    assert isinstance(found, ScriptPaths)
    assert found.cycle_info_glob == "/a/\ufffd/\ufffd/cycle_info.*"


def test_the_child_tells_the_same() -> None:
    text = "D='/a&b'\nft_launcher --ft-cycle-info-dir $D/$SLURM_JOB_ID --max-restarts 2"
    found = read_script_paths(text, FACTS)
    assert found == interpret_script(text, FACTS)
    assert isinstance(found, ScriptPaths)
    assert found.cycle_info_glob == "/a&b/*/cycle_info.*"


def test_the_child_says_why_it_gave_up() -> None:
    found = read_script_paths("a=b\n" * 200_000, FACTS)
    assert isinstance(found, Unobserved)
    assert "parts" in found.reason


def test_a_script_of_more_than_a_mebibyte_is_not_read() -> None:
    found = read_script_paths("#" * ((1 << 20) + 1), FACTS)
    assert isinstance(found, Unobserved)
    assert "larger" in found.reason


@pytest.mark.parametrize("piece", ["a=(", "a | ", "<<<"])
def test_a_text_that_keeps_the_grammar_busy_is_given_up_in_time(piece: str) -> None:
    """The grammar's parser takes minutes or gigabytes for these, and cannot be stopped from inside."""
    started = time.monotonic()
    found = read_script_paths(piece * 43_000, FACTS, seconds=2)
    assert isinstance(found, Unobserved)
    assert time.monotonic() - started < 30


def test_a_parser_that_dies_of_a_text_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_script, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = read_script_paths("a=b\n", FACTS)
    assert isinstance(found, Unobserved)
    assert "ended with -11" in found.reason


def test_a_stray_module_in_the_current_directory_is_not_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "msgspec.py", "tree_sitter.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert isinstance(read_script_paths("ft_launcher --ft-cycle-info-dir /a", FACTS), ScriptPaths)
    assert not (tmp_path / "ran").exists()


WORDS = r"""
D=/a $D ${D:- } $( ) ` " ' ; && || | fi else esac *) ;; f() f . source eval cd bash -c (( )) [[ ]] args=( ) =
--max-restarts --ft-cycle-info-dir 9 \ é local declare -g unset for i in do done ${#D} ${D%/*} ~ {a,b} $'\x00'
# /dev/zero <<EOF EOF if x; then case x in { } & $ > < ! $D/x/$D/y export read D while : $0 ${BASH_SOURCE[0]}
"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\0", " ", "\t"])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300) | st.lists(PIECES, max_size=60).map("".join) | st.lists(PIECES, max_size=60).map(" ".join))
def test_no_text_breaks_the_reader(text: str) -> None:
    in_fork(lambda: check_what_is_told(text))


def in_fork(check: Callable[[], None]) -> None:
    """A check in a process of its own: the grammar's parser dies of some texts, as it may in `read_script_paths`."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    died_of_the_parser = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGABRT,
    )
    assert status == 0 or died_of_the_parser, status


def check_what_is_told(text: str) -> None:
    found = interpret_script(text, FACTS)
    if isinstance(found, ScriptPaths):
        assert found.cycle_info_glob is None or found.cycle_info_glob.startswith("/")
        for told in (found.cycle_info_glob, found.iteration_file, found.work_directory):
            assert told is None or not {ANY_JOB, UNKNOWN, "\0"} & set(told)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0\ufffd" + ANY_JOB + UNKNOWN), max_size=40))
def test_a_quoted_path_comes_back_as_it_was_written(name: str) -> None:
    quoted = name.replace("'", "'\\''")
    found = interpret_script(f"D='/a/b{quoted}'\nexport NVRX_WORK_DIR=\"$D\"\n", FACTS)
    assert isinstance(found, ScriptPaths)
    assert found.work_directory is not None
    assert os.path.normpath(f"/a/b{name}") == found.work_directory
