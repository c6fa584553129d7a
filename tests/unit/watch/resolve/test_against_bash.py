"""What the reader says to know is what bash makes of the same script. The scripts here only assign and print."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nvrx_watch.resolve.batch_script import ScriptFacts, ScriptPaths, interpret_script

BASH = shutil.which("bash")
FACTS = ScriptFacts(work_directory="/tmp", job_name=None, user=None, uid=None, home="/root", script_path=None)

PIECES = r"""
/p | q.r | /a/ | .. | x\ y | $A | ${B} | ${A:-/d} | ${B-$A} | ${C:-${A}/e} | ${A%/*} | ${B##*/} | ${A#/} | - | : | ~
${B%%/q*} | ${C:+/set} | $A$B | $(dirname $A) | $(dirname -- "/u/v"/w) | '$A' | "$A" | "$B/x/$A" | "${C:-"$A"}"
"$(dirname "$A")" | "$(basename "$B")" | `pwd` | $(cd /usr && pwd) | $(cd /; pwd) | "\$A" | "a  b" | ${A:=/n} | ${#A}
$((1+2)) | ${A/p/q} | $? | {x,y} | "\\$A" | 'it'"'"s | $'/t' | $"/u" | ${A:-$B/m/$C/n} | $B/m/$C/n | /p"$A"\ z | \\
$(cd /usr >/dev/null 2>&1 && pwd -P) | $(realpath -m /usr/../$A) | ${A:+$B/$C} | "`pwd`"
é | # | ${A:-~} | "${C:-~/x}"
"""
BARE = st.sampled_from([piece.strip() for line in PIECES.strip().splitlines() for piece in line.split(" | ")])
WORD = st.lists(BARE, min_size=1, max_size=4).map("".join)
# No `${A:=/n}`: what a branch alone assigns counts here, and may not have happened.
IN_BRANCH = st.sampled_from(["/b", "$A/c/$B/d", "'e f'", "/b"])
NAME = st.sampled_from(["A", "B", "C"])
ASSIGNMENT = st.builds("{}={}".format, NAME, WORD)
STATEMENT = (
    ASSIGNMENT
    | st.builds("{}+={}".format, NAME, WORD)
    | st.builds("export {}".format, ASSIGNMENT)
    | st.lists(ASSIGNMENT, min_size=2, max_size=3).map(" ".join)
    | st.builds("{}\\\n{}".format, ASSIGNMENT, WORD)
    | st.builds("{}=/k && {}".format, NAME, ASSIGNMENT)
    | st.builds("{} true".format, ASSIGNMENT)
    | st.builds("({})".format, ASSIGNMENT)
    | st.builds("{} &".format, ASSIGNMENT)
    | st.builds("unset {}".format, NAME)
    | st.builds("if test -d /; then\n{0}={1}\nelse\n{0}={2}\nfi".format, NAME, IN_BRANCH, IN_BRANCH)
    | st.builds("f() {{ local {}; {}; }}".format, ASSIGNMENT, ASSIGNMENT)
    | st.just("# a comment ' \"")
)


@pytest.mark.skipif(BASH is None, reason="no bash here")
@settings(max_examples=200, deadline=None)
@given(st.lists(STATEMENT, min_size=1, max_size=6).map("\n".join), WORD)
def test_what_is_known_is_what_bash_says(script: str, last: str) -> None:
    script = f"{script}\nNVRX_WORK_DIR=/w/{last}\n"
    found = interpret_script(f"#!/bin/bash\n{script}", FACTS)
    assert isinstance(found, ScriptPaths)
    if found.work_directory is None:
        return
    # wait: a background assignment must not come late into the output.
    done = subprocess.run(
        [str(BASH), "--norc", "-c", f'{script}wait\ncd -- /\nrealpath -ms -- "$NVRX_WORK_DIR"'],
        env={"PATH": "/usr/bin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
        cwd="/tmp",
        capture_output=True,
        timeout=20,
        check=False,
    )
    # A script that bash refuses for its syntax tells nothing.
    assume(done.returncode == 0)
    assert done.stdout.decode().removesuffix("\n") == found.work_directory, script
