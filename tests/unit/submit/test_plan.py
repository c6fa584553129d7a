"""The exact sbatch commands: what is on them, in which form, and that they say the same as shape and script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import NvrxError, UsageError
from nvrx_chain.slurm.array import parse_array_spec
from nvrx_chain.slurm.identity import parse_comment
from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.plan import SubmitPlan
from nvrx_chain.submit.render import read_template, render_script
from tests.unit.submit.chains import CHAIN_ID, NASTY, make_config, make_plan


def options(argv: tuple[str, ...]) -> dict[str, str]:
    """The long options of an sbatch command line; "" for one without a value."""
    pairs = (word[2:].partition("=") for word in argv if word.startswith("--"))
    return {name: value for name, _, value in pairs}


def first(plan: SubmitPlan) -> dict[str, str]:
    return options(plan.generations[0].argv)


def directives(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    return options(tuple(lines))


def test_every_option_that_the_chain_depends_on_is_on_the_command_line() -> None:
    plan = make_plan(make_config(run_dir="/data/run", name="mine"))
    assert first(plan) == {
        "parsable": "",
        "job-name": "mine",
        "array": "0-4%3",
        "dependency": "singleton",
        "no-requeue": "",
        "open-mode": "append",
        "export": "ALL",
        "chdir": "/data/run",
        "comment": f"nvrx-chain:{CHAIN_ID}/1",
        "nodes": "1",
        "ntasks-per-node": "1",
        "signal": "B:USR1@180",
        "output": "/data/run/logs/slurm-%A_%a.log",
        "exclusive": "",
    }
    assert plan.generations[0].argv[-1] == "/data/run/generation.sbatch"


def test_optional_options_appear_when_they_are_asked_for() -> None:
    asked = first(
        make_plan(
            make_config(
                gpus_per_node="8", time_limit="4:00:00", partition="long", account="a", exclusive=False, segment="2"
            )
        )
    )
    assert (asked["gpus-per-node"], asked["time"], asked["partition"], asked["account"]) == (
        "8",
        "4:00:00",
        "long",
        "a",
    )
    assert not {"exclusive", "segment"} & set(asked)


def test_further_options_come_after_ours_and_before_the_script() -> None:
    argv = make_plan(make_config(sbatch_arg=("--nice=100", "-v"))).generations[0].argv
    assert argv[-3:-1] == ("--nice=100", "-v")


def test_only_the_first_generation_waits_for_a_job_of_somebody_else() -> None:
    generations = make_plan(make_config(after="4711")).generations
    waits = [word for one in generations for word in one.argv if word.startswith("--dependency=")]
    assert waits == ["--dependency=singleton,afterany:4711", *["--dependency=singleton"] * (len(generations) - 1)]


def test_generations_differ_in_their_stamp_only() -> None:
    plan = make_plan(make_config(chain_depth="3"))
    assert [parse_comment(g.stamp) for g in plan.generations] == [(CHAIN_ID, 1), (CHAIN_ID, 2), (CHAIN_ID, 3)]
    without = {tuple(word for word in g.argv if not word.startswith("--comment")) for g in plan.generations}
    assert len(without) == 1


def test_a_percent_sign_of_the_directory_is_doubled_in_the_name_of_the_log_only() -> None:
    asked = first(make_plan(make_config(run_dir="/data/100%j")))
    assert asked["output"] == "/data/100%%j/logs/slurm-%A_%a.log"
    assert asked["chdir"] == "/data/100%j"


def test_the_printed_command_is_the_argv_in_shell_quotes() -> None:
    generation = make_plan(make_config(run_dir=f"/data/{NASTY}")).generations[0]
    assert shlex.split(generation.command) == ["sbatch", *generation.argv]


def test_the_queued_tasks_are_those_that_a_submit_limit_counts() -> None:
    assert make_plan(make_config(chain_depth="4")).queued_tasks == 20


def test_the_interpreter_line_is_bash_and_directives_follow_it_at_once() -> None:
    lines = make_plan(make_config()).script.splitlines()
    assert lines[0] == "#!/bin/bash"
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#SBATCH --") for line in lines[1 : last + 1])


def assignment(script: str, name: str) -> str:
    match = re.search(rf"(?m)^{name}=(.*)$", script)
    assert match is not None
    words = shlex.split(match[1])
    assert len(words) == 1
    return words[0]


@pytest.mark.parametrize("directory", [f"/data/{NASTY}", "/data/$(id)", "/data/`id`", "/data/@PYTHON@", "/data/;x"])
def test_a_nasty_directory_is_one_word_of_the_script(directory: str) -> None:
    assert assignment(make_plan(make_config(run_dir=directory)).script, "run_dir") == directory


def test_a_value_that_cannot_be_a_line_is_refused() -> None:
    for bad in ("a\nb", "a\0b", "a\rb"):
        with pytest.raises(UsageError, match="line break or NUL in X"):
            render_script("x=@X@", {"X": bad})


def test_a_field_without_a_value_or_a_value_without_a_field_is_an_error() -> None:
    with pytest.raises(NvrxError, match="B, C"):
        render_script("@A@ @B@", {"A": "1", "C": "2"})


def test_the_template_is_found_from_a_checkout() -> None:
    assert read_template().startswith("#!/bin/bash\n")


SHAPES = st.builds(
    lambda train, hot, cold, nodes, gpus, depth: make_config(
        run_dir="/data/run",
        train_tasks=str(train),
        hot_spares=str(hot),
        cold_spares=str(cold),
        nodes_per_task=str(nodes),
        gpus_per_node=str(gpus),
        chain_depth=str(depth),
    ),
    st.integers(1, 600),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(1, 64),
    st.integers(0, 16),
    st.integers(1, 6),
)


@given(SHAPES)
def test_shape_array_throttle_nodes_and_world_agree_read_back_from_argv_and_script(config: ChainConfig) -> None:
    plan = make_plan(config)
    shape = plan.manifest.shape
    assert len(plan.generations) == config.chain_depth
    for asked in (*(options(generation.argv) for generation in plan.generations), directives(plan.script)):
        array = parse_array_spec(asked["array"])
        assert array is not None
        assert array.complete
        assert array.indices == tuple(range(shape.total))
        assert array.throttle == shape.throttle
        nodes = int(asked["nodes"])
        assert nodes == shape.nodes_per_task
        # MIN:MAX of the rendezvous: all that train, and all that can be alive at once.
        assert shape.min_nodes == shape.train_tasks * nodes
        assert shape.max_nodes == array.throttle * nodes
        assert shape.world_size == shape.min_nodes * (shape.gpus_per_node or 1)
        assert asked["dependency"] == "singleton"
        assert "no-requeue" in asked
    assert Path(plan.manifest.run_directory) == config.run_directory
