"""Task 0 counts who is at the gate, and says what the missing ones wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.errors import Unobserved
from nvrx_chain.generation.assemble import Assembly
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.records.manifest import Thresholds
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.generation_lab import HeldWork, Lab, freeze


@pytest.fixture
def task_zero(lab: Lab) -> TaskContext:
    return lab.arrive(1, 0)


def test_it_is_complete_when_the_training_tasks_are_there_whoever_they_are(lab: Lab, task_zero: TaskContext) -> None:
    assembly = Assembly(task_zero)
    assert not assembly.is_complete(task_zero.watcher.latest())
    lab.arrive(1, 2)
    snapshot = task_zero.watcher.latest()
    assert assembly.present(snapshot) == (0, 2)
    assert assembly.is_complete(snapshot)


def test_one_that_left_again_is_not_there(lab: Lab, task_zero: TaskContext) -> None:
    lab.arrive(1, 1).board.leave("terminated")
    assert Assembly(task_zero).present(task_zero.watcher.latest()) == (0,)


def test_one_that_died_at_the_gate_is_not_there(lab: Lab, task_zero: TaskContext) -> None:
    peer = lab.arrive(1, 1)
    task_zero.watcher.latest()
    freeze(peer)
    lab.clock.advance(29)
    assert Assembly(task_zero).present(task_zero.watcher.latest()) == (0, 1)
    lab.clock.advance(3)
    assert Assembly(task_zero).present(task_zero.watcher.latest()) == (0,)


def test_without_a_limit_it_waits_for_as_long_as_the_allocation_lasts(lab: Lab, task_zero: TaskContext) -> None:
    assembly = Assembly(task_zero)
    freeze(task_zero)
    lab.clock.advance(3000)
    assert not assembly.is_overdue()


def test_with_a_limit_it_is_overdue_after_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path, thresholds=Thresholds(assemble_timeout=60.0))
    lab.submit(1)
    assembly = Assembly(lab.arrive(1, 0))
    lab.clock.advance(60)
    assert not assembly.is_overdue()
    lab.clock.advance(1)
    assert assembly.is_overdue()


@pytest.fixture
def crowded(tmp_path: Path) -> Lab:
    """One node for five tasks."""
    lab = Lab(tmp_path, slurm=lambda clock: FakeSlurm(clock, user="alice", nodes=["n1"]))
    lab.submit(1)
    return lab


def report(context: TaskContext, assembly: Assembly, seconds: float) -> str:
    end = context.clock.monotonic() + seconds
    while context.clock.monotonic() < end:
        assembly.report(context.watcher.latest())
        context.clock.wait(context.signals.wake, 1.0)
    return context.lease.phase


def test_it_says_how_many_have_come_and_after_a_while_why_the_others_have_not(crowded: Lab) -> None:
    context = crowded.arrive(1, 0)
    assembly = Assembly(context)
    assert report(context, assembly, 1) == "assembling (1 of 2)"
    assert crowded.slurm.asked("queue") == []
    assert report(context, assembly, 100) == "assembling (1 of 2; pending: 4 Resources)"
    assert len(crowded.slurm.asked("queue")) <= 4


def test_a_slurm_that_does_not_answer_is_said(crowded: Lab) -> None:
    context = crowded.arrive(1, 0)
    crowded.slurm.always("queue", Unobserved("away"))
    assert "Slurm does not say why" in report(context, Assembly(context), 100)


def test_a_slurm_that_hangs_holds_up_nobody(crowded: Lab) -> None:
    hanging = HeldWork()
    context = crowded.arrive(1, 0, spawn=hanging)
    began = crowded.clock.monotonic()
    report(context, Assembly(context), 100)
    assert crowded.clock.monotonic() - began == 100
    assert hanging.names == ["reasons of pending tasks"]
