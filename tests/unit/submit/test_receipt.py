"""What is printed after a submit can be typed, and read by a program."""

from __future__ import annotations

import json
import shlex

from nvrx_chain.submit.receipt import render_parsable, render_result
from tests.unit.submit.chains import CHAIN_ID, Site


def test_the_next_commands_can_be_typed_as_they_are_printed(site: Site) -> None:
    shown = render_result(site.submit(), as_json=False)
    commands = [line[12:] for line in shown.splitlines() if "nvrx-chain " in line[12:]]
    assert [shlex.split(command)[1] for command in commands] == ["status", "logs", "cancel"]
    assert all(str(site.directory) in shlex.split(command) for command in commands)


def test_the_ids_alone_are_those_of_sbatch_parsable(site: Site) -> None:
    result = site.submit(chain_depth="2")
    lines = render_parsable(result).split("\n")
    assert [line.partition(";")[0] for line in lines] == [str(job) for job in result.array_job_ids]
    assert {line.partition(";")[2] for line in lines} == {result.cluster or ""}


def test_the_result_as_data_has_the_ids_and_the_place(site: Site) -> None:
    result = site.submit()
    shown = json.loads(render_result(result, as_json=True))
    assert shown["chain_id"] == CHAIN_ID
    assert shown["array_job_ids"] == list(result.array_job_ids)
    assert shown["run_directory"] == str(site.directory)
    assert shown["notes"] == list(result.notes) == site.said
