"""What a batch script tells of its paths: by its text alone, and nothing where only running it would tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_watch.resolve.batch_script import ScriptFacts, ScriptPaths, interpret_script

WORK = "/w d/a&b"


def facts(**changes: object) -> ScriptFacts:
    fields: dict[str, object] = {
        "work_directory": WORK,
        "job_name": "train",
        "user": "alice",
        "uid": os.getuid(),
        "home": "/home/alice",
        "script_path": "/w d/scripts/run it.sh",
    }
    return ScriptFacts(**{**fields, **changes})  # type: ignore[arg-type]


def told(script: str, **changes: object) -> ScriptPaths:
    found = interpret_script(f"#!/bin/bash\n{script}\n", facts(**changes))
    assert not isinstance(found, Unobserved), found
    return found


def cycles(script: str, **changes: object) -> str | None:
    """The directory of `--ft-cycle-info-dir`, `*` for the array job id."""
    found = told(script, **changes).cycle_info_glob
    return found.removesuffix("/cycle_info.*") if found is not None else None


def value(expression: str, before: str = "", **changes: object) -> str | None:
    return cycles(f'{before}\nft_launcher --ft-cycle-info-dir "{expression}"', **changes)


STRING_OF_ARGUMENTS = r"""
CELL_ID=cell_512n
ROOT_BASE="/scratch/team/matrix"
ROOT="${ROOT_BASE}/${CELL_ID}"
JOB_DIR="${ROOT}/nvrx/${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID}}"
LAUNCHER_ARGS=" \
    --ft-cycle-info-dir=${JOB_DIR}/cycle_infos \
    --ft-checkpoint-iteration-file=${ROOT}/checkpoints/latest_checkpointed_iteration.txt \
    --nnodes=$SLURM_NNODES --max-restarts 7 \
"
srun ft_launcher ${LAUNCHER_ARGS} train.py
"""
ARRAY_OF_ARGUMENTS = r"""
export ROOT=/scratch/team/matrix/cell_512n JOB_DIR
declare JOB_DIR="$ROOT"/nvrx/$SLURM_ARRAY_JOB_ID
readonly ITER=${ROOT}/checkpoints/latest_checkpointed_iteration.txt
args=(
    --ft_cycle_info_dir "$JOB_DIR/cycle_infos"   # one per generation
    --ft_checkpoint_iteration_file="$ITER"
)
args+=(--max_restarts '7')
srun -K0 ft_launcher "${args[@]}" train.py &
wait
"""
SHELL_IN_A_CONTAINER = r"""
ROOT=/scratch/team/matrix/cell_512n
launch() {
    local dir=${ROOT}/nvrx/${SLURM_JOB_ID}
    srun --container-image=x bash -c "cd /app && ft_launcher --max-restarts=7 \
        --ft-cycle-info-dir ${dir}/cycle_infos \
        --ft-checkpoint-iteration-file '${ROOT}/checkpoints/latest_checkpointed_iteration.txt' train.py \"\$@\""
}
echo "usage: --ft-cycle-info-dir /nowhere"
launch
"""
COMMAND_IN_A_STRING = r"""
ROOT=/scratch/team/matrix/cell_512n
CMD="ft_launcher --ft-cycle-info-dir=$ROOT/nvrx/\$SLURM_ARRAY_JOB_ID/cycle_infos"
CMD+=" --ft-checkpoint-iteration-file=$ROOT/checkpoints/latest_checkpointed_iteration.txt"
CMD="$CMD --max-restarts=7 train.py"
eval "$CMD"
"""


@pytest.mark.parametrize("script", [STRING_OF_ARGUMENTS, ARRAY_OF_ARGUMENTS, SHELL_IN_A_CONTAINER, COMMAND_IN_A_STRING])
def test_the_launcher_options_are_found_in_every_style_of_script(script: str) -> None:
    root = "/scratch/team/matrix/cell_512n"
    found = told(script)
    assert found.cycle_info_glob == f"{root}/nvrx/*/cycle_infos/cycle_info.*"
    assert found.iteration_file == f"{root}/checkpoints/latest_checkpointed_iteration.txt"
    assert found.max_restarts == 7


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("${D}", "/a/b.d/c"),
        ("${D:-/z}", "/a/b.d/c"),
        ("${NEVER:-/z/$D}", "/z/a/b.d/c"),
        ("${NEVER-/z}", "/z"),
        ("${EMPTY:-/z}", "/z"),
        ("/x${EMPTY-/z}", "/x"),
        ("${NEVER:=/z}/$NEVER", "/z/z"),
        ("${D:+/set}", "/set"),
        ("${D%/*}", "/a/b.d"),
        ("${D%%/b*}", "/a"),
        ("/x/${D##*/}", "/x/c"),
        ("/x/${D#/a/}", "/x/b.d/c"),
        ("${D%/c}", "/a/b.d"),
        ("$(dirname $D)", "/a/b.d"),
        ('$(dirname -- "$D")/$(basename "$D" )', "/a/b.d/c"),
        ("/x/$(basename /q/run.sh .sh)", "/x/run"),
        ("`dirname ${D}`", "/a/b.d"),
        ("$(cd $D/.. && pwd)", "/a/b.d"),
        ('$( cd -- "$(dirname "$D")" >/dev/null 2>&1 && pwd -P )', "/a/b.d"),
        ("$(cd $D; pwd)", "/a/b.d/c"),
        ("$(pwd)/x", f"{WORK}/x"),
        ("$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME", f"{WORK}/train"),
        ("$HOME/$USER", "/home/alice/alice"),
        ("relative", f"{WORK}/relative"),
        ('$(dirname "$0")', "/w d/scripts"),
        ('$(dirname "${BASH_SOURCE[0]}")/..', "/w d"),
        ('$(dirname "$BASH_SOURCE")', "/w d/scripts"),
        ("/x/${SLURM_ARRAY_JOB_ID}/$D", "/x/*/a/b.d/c"),
        ("$(dirname /x/run_${SLURM_JOB_ID}/y)", "/x/run_*"),
        ("/x/\\$D", "/x/$D"),
    ],
)
def test_an_expansion_is_what_bash_would_make_of_it(expression: str, expected: str) -> None:
    assert value(expression, "D=/a/b.d/c\nEMPTY=''") == expected


@pytest.mark.parametrize(
    "expression",
    [
        "$(mktemp -d)",
        "$(cat dir.txt)",
        "$(scontrol show job $SLURM_JOB_ID | awk '{print $1}')",
        "$(rm -rf /)",
        "/x/$((1 + 1))",
        "/x/$NEVER",
        "/x/${NEVER}",
        "${NEVER:?no directory}",
        "/x/$1",
        "/x/${1:-y}/$@",
        "/x/$?",
        "/x/$SLURM_ARRAY_TASK_ID",
        "/x/${SLURM_NNODES:-2}",
        "/x/$HOSTNAME",
        "${LIST[0]}",
        "${LIST[@]}",
        "${#D}",
        "${!D}",
        "${D/a/b}",
        "${D:1:2}",
        "${D^^}",
        "${D##[a-z]*}",
        "$(dirname $NEVER)",
        "$(dirname $0)",
        "$(cd $NEVER && pwd)",
        "$(cd /a && ls && pwd)",
        "$(cd /a || pwd)",
        "/x/${SLURM_JOB_ID%7}",
    ],
)
def test_what_only_running_it_would_tell_is_unknown(expression: str) -> None:
    found = told(f'D=/a/b\nLIST=(/a /b)\nft_launcher --ft-cycle-info-dir "{expression}"')
    assert (found.cycle_info_glob, found.gives_cycles) == (None, True)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("D=/a\nD=/b", "/b"),
        ("D=/a\nif [ -n $X ]; then D=/b; fi", "/a"),
        ("if [ -n $X ]; then D=/b; fi", "/b"),
        ("[[ -z $D ]] && D=/b", "/b"),
        ("D=/a\n[[ -z $D ]] && D=/b", "/a"),
        ("if x; then D=/a; else D=/b; fi", None),
        ("D=/z\nif x; then D=/a; else D=/b; fi", None),
        ("D=/z\nif x; then D=/a; elif y; then D=/a; else D=/a; fi", "/a"),
        ("if x; then D=/a; elif y; then D=/b; fi", None),
        ("case $X in a) D=/a ;; *) D=/b ;; esac", None),
        ("case $X in a) D=/a ;; b) D=/a ;; esac", "/a"),
        ("D=$(mktemp)\nif x; then D=/b; fi", None),
        ("D=''\nif x; then D=/b; fi", "/b"),
        ("for D in /a /b; do :; done", None),
        ("D=/a\nfor i in 1 2; do echo; done", "/a"),
        ("D=''\nfor i in 1 2; do D=$D/x; done", None),
        ("f() { D=/a; }\nf", "/a"),
        ("f() { local D=/a; }\nf", None),
        ("function f { declare -g D=/a; }\nf", "/a"),
        ("D=/z\nf() { local D=/a; }\nf", "/z"),
        ("(D=/a)", None),
        ("D=/a | cat", None),
        ("D=/a true", None),
        ("{ D=/a; }", "/a"),
        ("mkdir -p /x && D=/a && export D", "/a"),
        ("D=/z\ncd /x && D=/a", "/a"),
        ("D=/z\nread -r D < file", None),
        ("D=/z\nprintf -v D %s x", None),
        ("D=/a\nunset D", None),
        ("eval 'D=/a'", "/a"),
        ('export "D=/a"', "/a"),
        ("D=~/x", "/home/alice/x"),
        ("D=/a'/b c'\"/d\"", "/a/b c/d"),
        ("D=/a\\ b", "/a b"),
        ("D=/a'/b'\\ c", None),
        ("D=/a & wait", None),
        ("A=/1 B=2\nD=$A/x/$B/y/$A/z-$B.t", "/1/x/2/y/1/z-2.t"),
        ("A=/1 D=/2\n# a comment\nA=/3 B=/4\nC=5 true", "/2"),
        ("A=/1 D=/2 \\\n true", None),
        ("A=/1 B=/2\nunset A\nD=$B", "/2"),
        ("A=/1 B=/2\nexport D=$A$B", "/1/2"),
        ("A=/1 B=/2\nif true; then D=$A; else D=$A; fi", "/1"),
        ("A=/1\nD=$(dirname $A/b/$A/c)$A", "/1/b/1/1"),
        ("A=/1\nD=$A/b/${NEVER:-x$A/c/$A/d}/e", "/1/b/x/1/c/1/d/e"),
        ("A=/1\nD=$A/b/$1/c", None),
        ("D=/a\nD+=/b", "/a/b"),
        ("D=$D/x", None),
        ("D=/a\\\nb", "/ab"),
        ('D="/a\\\nb"', "/ab"),
        ("D=$'/a'", "/a"),
        ("D=$'/a\\n'", None),
        ("D={/a,/b}", None),
        ("D=(/a /b)", None),
        ("A=$B\nB=$A\nD=$A", None),
    ],
)
def test_the_straight_way_counts_and_a_branch_only_where_nothing_else_is_known(
    before: str, expected: str | None
) -> None:
    assert value("$D", before) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("ft_launcher --ft-cycle-info-dir /a --ft-cycle-info-dir=/b", "/b"),
        ("ft_launcher --ft-cycle-info-dir /a\nft_launcher --ft-cycle-info-dir /a", "/a"),
        ("if x; then ft_launcher --ft-cycle-info-dir /a; else ft_launcher --ft-cycle-info-dir /b; fi", None),
        ("args=(--ft-cycle-info-dir /old)\nft_launcher --ft-cycle-info-dir /a", "/a"),
        ("ft_launcher --ft-cycle-info-dir '/a b/c'", "/a b/c"),
        ("args=('--ft-cycle-info-dir=/a b')", "/a b"),
        ("A='--ft-cycle-info-dir=/a --max-restarts=2'\nrun \"$A\"", "/a"),
        ("args=(--ft-cycle-info-dir)\nargs+=(/a)", None),
        ("ft_launcher --ft-cycle-info-dir=/a\\\n/b", "/a/b"),
        ("ft_launcher --ft-cycle-info-dir \\\n  /a", "/a"),
        ("ft_launcher --ft-cycle-info-dir=", None),
        ("# --ft-cycle-info-dir /a", None),
        ("A=/1\nft_launcher --ft-cycle-info-dir $A/x/$A/y", "/1/x/1/y"),
        ("A=/1\nargs=(--ft-cycle-info-dir=$A/x/$A/y z)", "/1/x/1/y"),
        ("cd /x\nft_launcher --ft-cycle-info-dir y", "/x/y"),
        ("cd $NEVER\nft_launcher --ft-cycle-info-dir y", None),
        ("srun ft_launcher --ft-cycle-info-dir /a <<EOF\nx\nEOF\n", "/a"),
        ("if srun ft_launcher --ft-cycle-info-dir /a; then echo; fi", "/a"),
        ("! timeout 5 srun ft_launcher --ft-cycle-info-dir /a | tee log", "/a"),
        ("trap cleanup EXIT\nmain() { ft_launcher --ft-cycle-info-dir $D; }\nD=/a", "/a"),
        ("ft_launcher --ft-cycle-info-dir '/a[1]/*'", "/a[[]1]/[*]"),
        ("ft_launcher --ft-cycle-info-dir /a/*", None),
        ("A='/a b'\nft_launcher --ft-cycle-info-dir $A/c", None),
        ("A='/a b'\nft_launcher --ft-cycle-info-dir \"$A\"/c", "/a b/c"),
    ],
)
def test_the_last_option_of_a_command_counts_and_commands_must_agree(script: str, expected: str | None) -> None:
    assert cycles(script) == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("0", 0), ("-1", None), ("x", None), ("9" * 30, None)])
def test_a_restart_budget_is_a_small_number_or_unknown(text: str, expected: int | None) -> None:
    assert told(f"ft_launcher --max-restarts {text}").max_restarts == expected


def test_an_iteration_file_that_differs_by_job_is_no_path() -> None:
    found = told("ft_launcher --ft-checkpoint-iteration-file /a/$SLURM_JOB_ID/it.txt")
    assert (found.iteration_file, found.gives_iteration) == (None, True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("NVRX_WORK_DIR=/a\nWORK_DIR=/b", "/a"),
        ('NVRX_WORK_DIR="${NVRX_WORK_DIR:-${PWD}/run}"', f"{WORK}/run"),
        ("export WORK_DIR=/b", "/b"),
        ("NVRX_WORK_DIR=$(x)\nWORK_DIR=/b", None),
        ("", None),
    ],
)
def test_the_work_directory_of_nvrx_is_known_by_its_names(script: str, expected: str | None) -> None:
    assert told(script).work_directory == expected


class TestSourcedFiles:
    def test_a_library_is_read_in_place_and_knows_where_it_lies(self, tmp_path: Path) -> None:
        library = tmp_path / 'lib\'s "#1"' / "paths.sh"
        library.parent.mkdir()
        library.write_text('ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$CELL"\n')
        found = cycles(
            'CELL=c1\nsource "$(dirname "$0")/paths.sh"\nft_launcher --ft-cycle-info-dir "$ROOT/x"',
            script_path=str(library.parent / "run.sh"),
        )
        assert found == f"{library.parent}/c1/x"

    def test_a_relative_source_is_seen_from_the_current_directory(self, tmp_path: Path) -> None:
        (tmp_path / "env").write_text("D=/a")
        assert value("$D", ". ./env", work_directory=str(tmp_path)) == "/a"

    def test_a_file_of_somebody_else_is_not_read(self, tmp_path: Path) -> None:
        library = tmp_path / "lib.sh"
        library.write_text("D=/a")
        assert value("$D", f". '{library}'") == "/a"
        if os.getuid() == 0:
            os.chown(library, 54321, 54321)
            assert value("$D", f". '{library}'") is None
        assert value("$D", f". '{library}'", uid=None) is None

    @pytest.mark.parametrize("kind", ["fifo", "directory", "device", "huge"])
    def test_what_is_no_small_regular_file_is_not_read(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "lib.sh"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.write_text("D=/a\n" + "#" * (1 << 20))
        assert value("$D", f". '{path}'") is None

    def test_after_a_source_that_cannot_be_read_no_default_is_taken(self, tmp_path: Path) -> None:
        assert value("${D:-/a}", "") == "/a"
        assert value("${D:-/a}", ". $NEVER/env") is None
        assert value("${D:-/a}", f". '{tmp_path}/absent'") is None
        assert value("$D", f"D=/b\n. '{tmp_path}/absent'") == "/b"

    def test_an_absent_file_that_is_asked_for_first_changes_nothing(self, tmp_path: Path) -> None:
        assert value("${D:-/a}", f"[ -f '{tmp_path}/x' ] && . '{tmp_path}/x'") == "/a"

    def test_files_that_source_each_other_end(self, tmp_path: Path) -> None:
        one, two = tmp_path / "1.sh", tmp_path / "2.sh"
        one.write_text(f"A=/a; . '{two}'")
        two.write_text(f"B=$A/b; . '{one}'")
        assert value("$B", f". '{one}'") == "/a/b"

    def test_a_long_row_of_sources_is_given_up(self, tmp_path: Path) -> None:
        for at in range(12):
            (tmp_path / f"{at}").write_text(f". '{tmp_path}/{at + 1}'\nD=/a")
        found = interpret_script(f". '{tmp_path}/0'", facts())
        assert isinstance(found, Unobserved)
        assert "sourced files" in found.reason

    def test_a_link_in_the_path_is_followed_by_realpath(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        assert value(f"$(realpath '{tmp_path}/link')/x") == f"{tmp_path}/real/x"
        assert value(f"$(readlink -f '{tmp_path}/link'/$SLURM_JOB_ID)") == f"{tmp_path}/real/*"
        assert value(f"$(cd '{tmp_path}/link' && pwd)") == f"{tmp_path}/link"
