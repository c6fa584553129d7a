"""The view fits 80 columns without colour, says what to type next, and takes no orders from file contents."""

from __future__ import annotations

import io

from rich.console import Console

from nvrx_chain.errors import Unobserved
from nvrx_chain.ops.hold import release_chain
from nvrx_chain.ops.status_view import print_status
from nvrx_chain.ops.survey import survey_chain
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.unit.ops.conftest import ChainOnDisk, World
from tests.unit.ops.test_status import drain


def view(world: World, chain: ChainOnDisk, width: int = 80) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False)
    print_status(survey_chain(chain.open(), world.slurm, world.clock), console)
    return stream.getvalue()


def rows(text: str) -> list[str]:
    lines = text.split("\n")
    start = next(index for index, line in enumerate(lines) if line.lstrip().startswith("#"))
    table = lines[start + 1 :]
    return table[: table.index("")] if "" in table else table


def test_one_line_per_generation_at_80_columns(world: World, chain: ChainOnDisk) -> None:
    first, second, third = chain.submit_three()
    chain.lease(first, "running")
    chain.record(first, start=None, end=None, outcome=None)
    chain.iteration("120")
    world.clock.advance(125)
    lines = rows(view(world, chain))
    assert [line.split() for line in lines] == [
        ["1", str(first), "3", "running", "2", "pending", "running", "none", "->", "120", "2m"],
        ["2", str(second), "5", "pending", "Dependency", "2m"],
        ["3", str(third), "5", "pending", "Dependency", "2m"],
    ]
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_an_extended_chain_has_not_more_submitted_than_there_are(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    assert "3 of 3 submitted" in view(world, chain, width=200)
    chain.submit(4)
    assert "4 submitted, 3 at first" in view(world, chain, width=200)


def test_without_colour_there_is_no_escape(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.brake()
    assert "\x1b" not in view(world, chain)


def test_a_long_phase_is_folded_and_nothing_of_it_lost(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.lease(job, "assembling (1 of 2, Resources, ReqNodeNotAvail)")
    table = rows(view(world, chain))
    assert max(len(line.rstrip()) for line in table) <= 80
    assert "ReqNodeNotAvail)" in view(world, chain, width=200)
    joined = "".join("".join(line.split()) for line in table)
    for word in ("assembling", "(1", "of", "2,", "Resources,"):
        assert word in joined


def test_a_hold_says_who_why_since_when_and_how_to_go_on(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.brake("2 generations in a row failed within 300 s each")
    world.clock.advance(240)
    text = view(world, chain)
    assert (
        "held       since 2026-01-01T00:00:00Z (4m ago) by brake in 11_0 on n1:"
        " 2 generations in a row failed within 300 s each" in text
    )
    assert "let it go on: nvrx-chain release --run-dir '" in text
    assert "'\"'\"'" in text, "the path must be fit to be pasted into a shell"


def test_a_released_hold_is_not_shown(world: World, chain: ChainOnDisk) -> None:
    chain.submit_three()
    chain.brake()
    assert "nvrx-chain release" in view(world, chain)
    release_chain(chain.open(), world.desk())
    assert "nvrx-chain release" not in view(world, chain)


def test_a_verdict_and_what_went_wrong_last(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.close(job, Outcome.NO_RESTART, "the launcher on n2 exited with 93")
    chain.decide(Verdict.NO_RESTART, "the launcher on n2 exited with 93")
    text = view(world, chain)
    assert "verdict    no_restart (0s ago) by 11_0 on n1: the launcher on n2 exited with 93" in text
    assert f"last end   {job} no_restart: the launcher on n2 exited with 93" in text
    assert f"--generation {job}" in text


def test_a_finished_chain_does_not_dwell_on_earlier_failures(world: World, chain: ChainOnDisk) -> None:
    first, second = chain.submit(1), chain.submit(2)
    chain.close(first, Outcome.FAILED, "x")
    chain.close(second, Outcome.COMPLETED, "y")
    assert "last end" not in view(world, chain)


def test_a_chain_that_ran_dry_says_so_and_how_to_go_on(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    world.slurm.cancel([str(job)])
    text = view(world, chain)
    assert "ran dry" in text
    assert "nvrx-chain submit --resume --run-dir" in text


def test_a_silent_slurm_is_said_and_counts_are_open(world: World, chain: ChainOnDisk) -> None:
    chain.submit(1)
    world.slurm.always("queue", Unobserved("squeue did not answer in 25 s"))
    text = view(world, chain)
    assert "Slurm      could not be read, this is what the files say: squeue did not answer in 25 s" in text
    assert rows(text)[0].split()[:3] == ["1", "11", "?"]


def test_text_of_others_is_neither_markup_nor_an_order_to_the_terminal(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    chain.lease(job, "[bold red]x[/] \x1b[2J")
    chain.brake("[link=http://x]\x1b]0;owned\x07")
    text = view(world, chain, width=200)
    assert "[bold red]x[/] \\x1b[2J" in text
    assert "[link=http://x]\\x1b]0;owned\\x07" in text


def test_a_generation_that_never_started_is_told_from_one_that_ended_without_a_word(
    world: World, chain: ChainOnDisk
) -> None:
    first, second, third = chain.submit_three()
    world.slurm.cancel([str(third)])
    chain.record(first, start=None, end=None, outcome=None)
    world.slurm.cancel([str(second), str(first)])
    lines = rows(view(world, chain))
    assert "ended without a word" in " ".join(" ".join(line.split()) for line in lines)
    assert "never started" in lines[-1]


def test_drained_tasks_are_named_with_what_becomes_of_them(world: World, chain: ChainOnDisk) -> None:
    job = chain.submit(1)
    drain(chain, job, 0, excluded=False)
    drain(chain, job, 1)
    drain(chain, job, 2, excluded=False)
    fate = f"it hosts the rendezvous and stays; scancel {job}_0 frees it, and the next generation goes on"
    shown = [line.strip() for line in view(world, chain, width=200).splitlines() if "  drained  " in line]
    assert shown == [
        f'drained    {job}_0 on n1 (draining, "xid 79" by root): {fate}',
        f'drained    {job}_1 on n2 (draining, "xid 79" by root): a spare takes its place',
        f'drained    {job}_2 on n3 (draining, "xid 79" by root): it stays',
    ]
