"""Faults that close no connection and end no process: a cut node, one that the controller lost, a disk that stalls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nvrx_chain.errors import SandboxError
from nvrx_chain.sandbox import FaultKind
from tests.integration.sandbox_lab import CLOCK, Lab, needs_cluster, needs_held_opens, running_lab, wait

pytestmark = [pytest.mark.integration, needs_cluster, needs_held_opens]

# Beats in a file of the shared directory, opened anew each time, and in one that stays open outside of it.
BEATS = """\
#!/bin/bash
exec 3>>"$1.outside"
while :; do echo x >&3; echo x >>{shared}/beats; sleep 0.1; done
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("silence") / "a&b"
    with running_lab(path, nodes=3, network=True, slurmd_timeout_seconds=300) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _all_is_well(lab: Lab) -> Iterator[None]:
    yield
    for node in lab.sandbox.node_names:
        lab.sandbox.heal_node(node)
    lab.reset()


def beats(lab: Lab) -> int:
    path = lab.sandbox.shared / "beats"
    return path.stat().st_size if path.exists() else 0


def outside(lab: Lab) -> int:
    return (lab.directory / "pulse.outside").stat().st_size


def moves(read: object, lab: Lab) -> bool:
    """Whether a counter of bytes goes up within a second."""
    assert callable(read)
    before = read(lab)
    try:
        return bool(wait(lambda: read(lab) > before, "more", seconds=1.0))
    except AssertionError:
        return False


def start_beats(lab: Lab, node: str) -> int:
    job = lab.submit("-w", node, script=BEATS.format(shared=f"'{lab.sandbox.shared}'"))
    before = beats(lab)
    wait(lambda: beats(lab) > before, "the first beat")
    return job


def faults(lab: Lab) -> dict[str, tuple[str, ...]]:
    return {node.name: node.faults for node in lab.sandbox.status().nodes if node.faults}


def test_a_cut_node_lives_on_silently_and_its_disk_hangs_until_it_is_healed(lab: Lab) -> None:
    job = start_beats(lab, "n1")
    for _ in range(2):
        report = lab.sandbox.cut_node("n1")
        assert (report.kind, report.target) == (FaultKind.CUT_NODE, "n1")
        assert len(report.pids) >= 3, report
        assert faults(lab) == {"n1": ("cut", "disk held")}
        assert not moves(beats, lab)
    assert outside(lab) > 0
    # Slurm is not told, and the others go on.
    assert lab.queue()[str(job)] == ("RUNNING", "n1")
    assert lab.run("srun", "-w", "n2", "ls", str(lab.sandbox.shared)) == "beats"
    for undone in ("undone: cut, disk held; it answers", "undone: nothing; it answers"):
        assert lab.sandbox.heal_node("n1").verified == undone
    assert moves(beats, lab)
    assert faults(lab) == {}
    assert lab.queue()[str(job)] == ("RUNNING", "n1")


@pytest.mark.slow
def test_a_cut_node_with_its_disk_goes_on_writing(lab: Lab) -> None:
    start_beats(lab, "n1")
    lab.sandbox.cut_node("n1", keep_disk=True)
    assert moves(beats, lab)
    assert faults(lab) == {"n1": ("cut",)}


@pytest.mark.slow
def test_an_isolated_node_reaches_its_peers_and_the_disk_and_not_the_controller(lab: Lab) -> None:
    start_beats(lab, "n1")
    for _ in range(2):
        report = lab.sandbox.isolate_from_controller("n1")
        assert report.verified == "slurmctld and it do not reach each other, it reaches n2"
    assert moves(beats, lab)
    assert faults(lab) == {"n1": ("isolated from the controller",)}
    assert lab.run("srun", "-N2", "-w", "n2,n3", "hostname").split()
    assert lab.sandbox.heal_node("n1").verified == "undone: isolated from the controller; it answers"
    assert lab.run("sinfo", "-h", "-o", "%D") == "3"


def test_a_disk_that_stalls_blocks_readers_and_writers_of_one_node_and_goes_on_by_itself(lab: Lab) -> None:
    start_beats(lab, "n1")
    began = CLOCK.monotonic()
    report = lab.sandbox.slow_disk("n1", seconds=4)
    assert (report.kind, report.target) == (FaultKind.SLOW_DISK, "n1")
    assert not moves(beats, lab)
    assert moves(outside, lab) is False, "the loop should hang in its open"
    assert lab.run("srun", "-w", "n2", "cat", str(lab.sandbox.shared / "beats"))
    wait(lambda: moves(beats, lab), "the disk to go on", seconds=10)
    assert CLOCK.monotonic() - began > 3.5
    assert faults(lab) == {}


@pytest.mark.slow
def test_a_disk_that_stalls_everywhere_is_healed_node_by_node(lab: Lab) -> None:
    start_beats(lab, "n2")
    assert lab.sandbox.slow_disk(None, seconds=600).target == "n1 n2 n3"
    assert lab.sandbox.slow_disk("n2", seconds=600).target == "n2"
    assert not moves(beats, lab)
    lab.sandbox.heal_node("n2")
    assert moves(beats, lab)
    assert set(faults(lab)) == {"n1", "n3"}


@pytest.mark.slow
def test_a_killed_process_leaves_a_stalled_disk_at_once(lab: Lab) -> None:
    job = start_beats(lab, "n1")
    lab.sandbox.slow_disk("n1", seconds=600)
    lab.run("scancel", "--signal=KILL", "--full", str(job))
    wait(lambda: not lab.processes(), "nothing of the job is left", seconds=10)


@pytest.mark.slow
def test_what_is_off_is_not_cut_and_a_revived_node_is_whole(lab: Lab) -> None:
    (lab.sandbox.shared / "here").write_text("")
    lab.sandbox.cut_node("n3")
    lab.sandbox.kill_node("n3")
    with pytest.raises(SandboxError, match="it is off"):
        lab.sandbox.cut_node("n3")
    with pytest.raises(SandboxError, match="it is off"):
        lab.sandbox.slow_disk("n3", seconds=1)
    # Long enough to be seen as stalled on a busy machine too.
    assert lab.sandbox.slow_disk(None, seconds=10).target == "n1 n2"
    lab.sandbox.revive_node("n3")
    assert faults(lab).get("n3") is None
    assert "here" in lab.run("srun", "-w", "n3", "ls", str(lab.sandbox.shared))


@pytest.mark.slow
def test_down_ends_a_sandbox_whose_nodes_are_cut_and_stalled(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("down") / "x"
    with running_lab(directory, nodes=2, network=True) as lab:
        start_beats(lab, "n1")
        lab.sandbox.cut_node("n1")
        lab.sandbox.slow_disk("n2", seconds=600)
        before = CLOCK.monotonic()
        lab.sandbox.down(grace_seconds=1.0)
        assert CLOCK.monotonic() - before < 30
        assert lab.processes() == []
        assert (lab.sandbox.shared / "beats").exists(), "what users left there is theirs"


@pytest.mark.slow
def test_without_a_network_of_their_own_nodes_cannot_be_cut_but_their_disk_can(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_lab(tmp_path_factory.mktemp("plain") / "x", nodes=1) as lab:
        for cut in (lab.sandbox.cut_node, lab.sandbox.isolate_from_controller):
            with pytest.raises(SandboxError, match=r"share this machine's network \(start .* `up --network`\)"):
                cut("n1")
        lab.sandbox.slow_disk("n1", seconds=600)
        words = ["timeout", "1", "srun", "-w", "n1", "ls", str(lab.sandbox.shared)]
        with pytest.raises(AssertionError):
            lab.run(*words)
        lab.sandbox.heal_node("n1")
        assert lab.run("srun", "-w", "n1", "ls", str(lab.sandbox.shared)) == ""
