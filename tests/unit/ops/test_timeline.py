"""`status --timeline`: what the marks of a chain's launchers say, for people and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from nvrx_chain.cli import cli
from nvrx_chain.ops.timeline import survey_timeline
from nvrx_chain.ops.timeline_view import print_timeline
from nvrx_chain.records.cycle_info import CycleEnd, CycleFacts
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.marks import Mark, MarkName, encode_mark, marks_path
from tests.unit.ops.conftest import ChainOnDisk, World

NOW = 1_790_000_000.0


def note(chain: ChainOnDisk, job: int, cycle: int, **steps: float) -> None:
    """The marks of one launcher in one cycle: step -> seconds after the failure."""
    directory = chain.run.generation(job).timeline
    directory.mkdir(parents=True, exist_ok=True)
    with marks_path(directory, "0-a").open("ab") as file:
        for name, seconds in steps.items():
            found = Mark(
                cycle=cycle,
                name=MarkName(name),
                at=NOW + seconds,
                monotonic=5.0 + seconds,
                boot="b",
                node="n1",
                agent="0-a",
            )
            file.write(encode_mark(found))


def end_cycle(chain: ChainOnDisk, job: int, cycle: int, end: CycleEnd, attempt: int = 0) -> Path:
    facts = CycleFacts(
        job_id=str(job), attempt_index=attempt, cycle_number=cycle, started_at="", active=("0-a",), end=end
    )
    path = chain.run.generation(job).cycle_infos / f"cycle_facts.{job}.{attempt}.{cycle}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, encode_record(facts))
    return path


def whole(chain: ChainOnDisk, job: int) -> None:
    note(chain, job, 0, joined=0.0, workers_started=1.0, first_step=4.0)
    note(chain, job, 1, failure_detected=0.0, workers_stopped=0.02, joined=0.03, workers_started=0.05, first_step=0.09)
    note(chain, job, 2, failure_detected=0.0, workers_started=0.05)
    end_cycle(chain, job, 0, CycleEnd(reason="worker", rank=1, node="n2", signal="SIGKILL"))


def run(world: World, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.chdir(world.root)
    return CliRunner().invoke(cli, ["status", *words, "--timeline"], obj=world.desk(), catch_exceptions=False)


def view(chain: ChainOnDisk, width: int = 80) -> str:
    stream = io.StringIO()
    print_timeline(survey_timeline(chain.open(), None), Console(file=stream, width=width, color_system=None))
    return stream.getvalue()


def test_each_cycle_has_its_steps_and_why_the_one_before_ended(
    world: World, chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = chain.submit(1)
    whole(chain, job)
    seen = json.loads(run(world, monkeypatch, str(chain.run.path), "--json").stdout)
    assert (seen["schema"], seen["chain_id"], seen["problems"]) == (1, "c0ffee", [])
    first, second, third = seen["recoveries"]
    assert (first["cause"], first["after_seconds"]["first_step"]) == ("start", 4.0)
    assert second == {
        "array_job_id": job,
        "cycle_number": 1,
        "failed_at": "2026-09-21T14:13:20Z",
        "cause": "worker rank 1 on n2 SIGKILL",
        "after_seconds": {"workers_stopped": 0.02, "joined": 0.03, "workers_started": 0.05, "first_step": 0.09},
        "approximate_steps": [],
        "is_recovered": True,
        "recovered_iteration": None,
        "active_launchers": 1,
    }
    assert not third["is_recovered"]


def test_the_view_fits_80_columns_and_counts_only_cycles_with_a_step(
    world: World, chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = chain.submit(1)
    whole(chain, job)
    text = view(chain)
    table, summary = text.split("seconds after the failure", 1)
    assert max(len(line.rstrip()) for line in table.split("\n")) <= 80
    assert "2 of 3 cycles reached a committed step" in summary
    rows = [line.split()[:9] for line in text.split("\n") if line.split()[:1] == [str(job)]]
    assert [row[:2] + row[8:] for row in rows] == [
        [str(job), "0", "4.00"],
        [str(job), "1", "0.09"],
        [str(job), "2", "-"],
    ]
    assert run(world, monkeypatch, str(chain.run.path)).stdout.startswith("JOB")


def test_a_job_id_names_one_generation(world: World, chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = chain.submit(1), chain.submit(2)
    whole(chain, first)
    note(chain, second, 0, joined=0.0)
    seen = json.loads(run(world, monkeypatch, str(second), "--json").stdout)
    assert [found["array_job_id"] for found in seen["recoveries"]] == [second]
    both = json.loads(run(world, monkeypatch, str(chain.run.path), "--json").stdout)
    assert [found["array_job_id"] for found in both["recoveries"]] == [first] * 3 + [second]


def test_a_chain_whose_launcher_keeps_no_timeline_says_so(
    world: World, chain: ChainOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain.submit(1)
    assert "only nvrx-chain's own launcher keeps a timeline" in run(world, monkeypatch, str(chain.run.path)).stdout


def test_the_newest_attempt_says_why_a_cycle_ended(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    whole(chain, job)
    end_cycle(chain, job, 0, CycleEnd(reason="hang", rank=0, node="n1", section="step"), attempt=1)
    assert survey_timeline(chain.open(), None).recoveries[1].cause == "hang rank 0 on n1 in section step"


def test_damaged_facts_are_a_problem_and_the_marks_still_count(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    whole(chain, job)
    end_cycle(chain, job, 0, CycleEnd(reason="x")).write_text("{")
    seen = survey_timeline(chain.open(), None)
    assert seen.recoveries[1].cause == "on n1"
    assert len(seen.problems) == 1


def test_text_of_others_gives_no_orders_to_the_terminal(chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    whole(chain, job)
    end_cycle(chain, job, 1, CycleEnd(reason="worker", detail="\x1b[2J[bold]x[/bold]"))
    text = view(chain, width=200)
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
