"""While a launcher runs: what stops it, what is said to it, and when its ranks are known to be gone."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvrx_chain.errors import NvrxError
from nvrx_chain.generation.context import TaskContext
from nvrx_chain.generation.launcher_process import SrunLauncher, interpreter_argv, srun_options, step_environment
from nvrx_chain.generation.session import Session, SessionEnd, StopCause, StopOrder, save_seconds
from nvrx_chain.generation.watcher import Snapshot
from nvrx_chain.records.control import LauncherExit, Walltime
from nvrx_chain.records.outcome import Outcome
from tests.fakes.fake_slurm import FakeSlurm
from tests.fakes.generation_lab import FakeLauncher, HeldWork, Lab, freeze, read, shape, terminate


def quiet(_snapshot: Snapshot) -> StopOrder | None:
    return None


@pytest.fixture
def peer(lab: Lab) -> TaskContext:
    return lab.arrive(1, 1)


@pytest.fixture
def launcher(lab: Lab, peer: TaskContext) -> FakeLauncher:
    return lab.launcher(peer)


def run(context: TaskContext) -> SessionEnd:
    return Session(context, quiet).run()


@pytest.mark.parametrize("code", [0, 1, 75, 93, 137])
def test_a_launcher_that_ends_by_itself_ends_the_session_with_its_code(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher, code: int
) -> None:
    lab.clock.after(30, lambda: launcher.exit(code))
    end = run(peer)
    assert (end.cause, end.exit_code, end.ranks_gone) == (StopCause.LAUNCHER_ENDED, code, True)
    assert 30 <= end.run_seconds <= 31
    assert launcher.said == []


def test_a_closed_generation_stops_the_launcher_and_a_completed_one_lets_it_end(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    zero = lab.context(1, 0)
    lab.clock.after(10, lambda: zero.board.close(Outcome.SUPERSEDED, exit_code=None, evidence=(), leases={}))
    end = run(peer)
    assert end.cause is StopCause.CLOSED
    assert end.ranks_gone
    assert launcher.said == ["stop"]
    assert end.run_seconds <= 12


def test_a_completed_generation_lets_the_launcher_end_by_itself_first(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    zero = lab.context(1, 0)
    lab.clock.after(10, lambda: zero.board.close(Outcome.COMPLETED, exit_code=0, evidence=(), leases={}))
    assert run(peer).cause is StopCause.CLOSED
    assert launcher.said == ["stop gentle"]


def test_a_lease_that_cannot_be_written_fences_the_own_ranks(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(31, lambda: freeze(peer))
    end = run(peer)
    assert end.cause is StopCause.SELF_FENCED
    assert 50 <= end.run_seconds <= 53
    assert launcher.said == ["stop"]


class Excuse:
    """A link that knows, or does not, that the directory stalls for everybody."""

    seconds = float("inf")

    def excused_seconds(self) -> float:
        return self.seconds

    def maybe_excused_seconds(self) -> float:
        return self.excused_seconds()

    def host_silent_seconds(self) -> float:
        return 0.0


def test_a_stall_that_is_everybodys_fences_nobody_until_nobody_says_so_any_more(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    link = Excuse()
    link.seconds = 4.0
    lab.clock.after(31, lambda: freeze(peer))
    lab.clock.after(121, lambda: setattr(link, "seconds", 25.0))
    end = run(dataclasses.replace(peer, link=link))
    assert end.cause is StopCause.SELF_FENCED
    assert 120 <= end.run_seconds <= 124
    # Wrappers watch the lease themselves, and are told as long as it is excused.
    assert launcher.said[-1] == "stop"
    assert 20 <= launcher.said.count("excused") <= 30
    assert set(launcher.excuses) == {4.0}


def test_a_lease_that_beats_needs_no_excuse(lab: Lab, peer: TaskContext, launcher: FakeLauncher) -> None:
    link = Excuse()
    link.seconds = 0.0
    lab.clock.after(60, lambda: launcher.exit(0))
    run(dataclasses.replace(peer, link=link))
    assert launcher.said == []


def test_what_is_said_on_a_stop_may_hang_and_the_ranks_are_killed_all_the_same(lab: Lab) -> None:
    held = HeldWork()
    context = lab.arrive(1, 1, spawn=held)
    launcher = lab.launcher(context)
    launcher.obeys = None
    lab.clock.after(10, lambda: terminate(context))
    assert Session(context, quiet, lambda _order: None).run().cause is StopCause.TERMINATED
    assert held.names == ["say why it stops"]
    assert launcher.said == ["stop", "kill"]


def test_a_lease_that_is_written_late_but_in_time_fences_nobody(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    freeze(peer)
    lab.clock.after(19, lambda: launcher.exit(0))
    assert run(peer).cause is StopCause.LAUNCHER_ENDED


def test_a_term_stops_the_launcher_at_once(lab: Lab, peer: TaskContext, launcher: FakeLauncher) -> None:
    lab.clock.after(10, lambda: terminate(peer))
    stopped: list[float] = []
    end = Session(peer, quiet, lambda _order: stopped.append(lab.clock.monotonic())).run()
    assert (end.cause, end.exit_code) == (StopCause.TERMINATED, 143)
    assert stopped == [10.0]


def test_what_is_done_on_a_stop_comes_after_the_ranks_were_told(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    seen: list[list[str]] = []
    lab.clock.after(10, lambda: terminate(peer))
    Session(peer, quiet, lambda _order: seen.append(list(launcher.said))).run()
    assert seen == [["stop"]]


def test_a_failure_on_a_stop_keeps_nobody_from_seeing_the_ranks_end(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    def fail(_order: StopOrder) -> None:
        raise NvrxError("creating closed.json: no space left")

    lab.clock.after(10, lambda: terminate(peer))
    end = Session(peer, quiet, fail).run()
    assert end.cause is StopCause.TERMINATED
    assert end.ranks_gone


def test_an_error_in_the_loop_stops_the_ranks_before_it_goes_up(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    def crash(_snapshot: Snapshot) -> StopOrder | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Session(peer, crash).run()
    assert launcher.said == ["stop"]
    assert launcher.poll() == 143


def test_a_launcher_that_cannot_be_started_is_a_failure_without_ranks(lab: Lab, peer: TaskContext) -> None:
    def refuse() -> FakeLauncher:
        raise NvrxError("starting srun: No such file or directory")

    end = run(dataclasses.replace(peer, start_launcher=refuse))
    assert (end.cause, end.exit_code, end.ranks_gone) == (StopCause.LAUNCHER_ENDED, 1, True)
    assert "starting srun" in end.reason


def test_a_launcher_that_ignores_everything_is_killed_and_its_ranks_are_not_called_gone(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    launcher.obeys = None
    lab.clock.after(10, lambda: terminate(peer))
    end = run(peer)
    assert launcher.said == ["stop", "kill"]
    assert not end.ranks_gone
    assert end.run_seconds <= 10 + 2 * 10 + 35 + 6


def test_a_zero_of_srun_without_a_word_of_the_wrappers_is_no_success(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    # srun of 22.05 returns 0 when a node of its step dies.
    lab.clock.after(10, lambda: launcher.vanish(0))
    end = run(peer)
    assert end.exit_code is None
    assert not end.ranks_gone
    lab.launchers.clear()


def test_another_code_of_srun_is_believed_without_a_word_of_the_wrappers(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    lab.clock.after(10, lambda: launcher.vanish(137))
    assert run(peer).exit_code == 137


def test_an_srun_that_stays_though_every_wrapper_has_ended_is_not_waited_for(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    # 26.05 does not let srun return while its controller is away.
    launcher.obeys = None
    lab.clock.after(10, lambda: terminate(peer))
    lab.clock.after(12, lambda: launcher.write_exit("n2", 143))
    end = run(peer)
    assert end.ranks_gone
    assert end.exit_code == 143
    assert end.run_seconds <= 19


def test_an_exit_of_an_earlier_start_of_this_task_proves_nothing(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    earlier = lab.context(1, 1, restart_count=1)
    FakeLauncher(earlier.board, lab.clock).write_exit("n2", 0)
    lab.clock.after(10, lambda: launcher.vanish(0))
    end = run(peer)
    assert not end.ranks_gone
    assert end.exit_code is None


# The time limit


def test_the_warning_asks_the_ranks_to_save_once_and_stops_them_when_the_time_for_that_is_over(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    def warn() -> None:
        peer.signals.walltime_warned = True
        peer.signals.wake.set()

    lab.clock.after(10, warn)
    end = run(peer)
    assert end.cause is StopCause.WALLTIME
    assert launcher.said == ["save", "stop"]
    assert 10 + save_seconds(peer) <= end.run_seconds <= 12 + save_seconds(peer)


def test_a_warning_of_one_task_makes_the_ranks_of_all_save(lab: Lab, peer: TaskContext) -> None:
    other = lab.arrive(1, 2)
    peer.signals.walltime_warned = True
    lab.clock.after(5, lambda: lab.launcher(peer).exit(0))
    run(peer)
    assert read(lab.directory(1).walltime, Walltime).array_task_id == 1
    lab.clock.after(5, lambda: lab.launcher(other).exit(0))
    run(other)
    assert lab.launcher(other).said == ["save"]


def test_a_launcher_that_ends_after_its_save_is_not_stopped(
    lab: Lab, peer: TaskContext, launcher: FakeLauncher
) -> None:
    peer.signals.walltime_warned = True
    lab.clock.after(20, lambda: launcher.exit(0))
    assert run(peer).cause is StopCause.LAUNCHER_ENDED
    assert launcher.said == ["save"]


def test_a_file_system_that_hangs_keeps_no_rank_from_saving(lab: Lab) -> None:
    hanging = HeldWork()
    context = lab.arrive(1, 1, spawn=hanging)
    context.signals.walltime_warned = True
    lab.clock.after(5, lambda: lab.launcher(context).exit(0))
    run(context)
    assert lab.launcher(context).said == ["save"]
    assert hanging.names == ["announce the time limit"]


# Several nodes


@pytest.fixture
def two_nodes(tmp_path: Path) -> Lab:
    lab = Lab(
        tmp_path,
        shape=shape(train=2, hot=0, cold=0, nodes=2),
        slurm=lambda clock: FakeSlurm(clock, user="alice"),
    )
    lab.submit(1)
    return lab


def test_when_one_node_failed_the_others_get_the_drain_time_and_then_are_stopped(two_nodes: Lab) -> None:
    context = two_nodes.arrive(1, 0)
    launcher = two_nodes.launcher(context)
    two_nodes.clock.after(10, lambda: launcher.write_exit("n2", 93))
    end = run(context)
    assert end.cause is StopCause.NODE_FAILED
    assert "n2" in end.reason
    assert launcher.said == ["stop"]
    assert end.exit_code == 143
    assert 20 <= end.run_seconds <= 23


def test_ranks_are_gone_only_when_every_node_says_so(two_nodes: Lab) -> None:
    context = two_nodes.arrive(1, 0)
    launcher = two_nodes.launcher(context)

    def half() -> None:
        launcher.write_exit("n1", 0)
        launcher.vanish(0)

    two_nodes.clock.after(10, half)
    end = run(context)
    assert not end.ranks_gone
    assert end.exit_code is None


def test_the_code_of_a_task_is_the_highest_of_its_nodes(two_nodes: Lab) -> None:
    context = two_nodes.arrive(1, 0)
    launcher = two_nodes.launcher(context)

    def both() -> None:
        launcher.write_exit("n1", 0)
        launcher.write_exit("n2", 1)
        launcher.vanish(143)

    two_nodes.clock.after(10, both)
    assert run(context).exit_code == 1


# The real process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], SrunLauncher]]:
    """Starts a Python program in the place of srun; its output is in `srun & 1.log`."""
    started: list[SrunLauncher] = []

    def start(program: str) -> SrunLauncher:
        process = SrunLauncher((sys.executable, "-c", program), {}, tmp_path / "srun & 1.log")
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        assert process._process.stdin is not None
        process._process.stdin.close()


def test_words_reach_the_process_and_its_output_is_kept(tmp_path: Path, start: Callable[[str], SrunLauncher]) -> None:
    process = start("import sys; [print(sys.stdin.readline(), end='') for _ in range(3)]")
    process.save()
    process.stop(gentle=True)
    process.stop(gentle=False)
    assert process._process.wait(60) == 0
    assert process.poll() == 0
    assert (tmp_path / "srun & 1.log").read_text() == "save\nstop gentle\nstop\n"


def test_a_program_that_is_not_there_and_a_log_that_cannot_be_opened_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(NvrxError, match="starting no-such-srun"):
        SrunLauncher(("no-such-srun",), {}, tmp_path / "log")
    with pytest.raises(NvrxError, match="gone"):
        SrunLauncher((sys.executable, "-c", ""), {}, tmp_path / "gone" / "log")


def test_talking_to_a_process_that_has_ended_is_no_error(start: Callable[[str], SrunLauncher]) -> None:
    process = start("")
    assert process._process.wait(60) == 0
    process.stop(gentle=False)
    process.kill()
    assert process.poll() == 0


def test_a_process_that_reads_nothing_holds_up_nobody_and_is_killed(start: Callable[[str], SrunLauncher]) -> None:
    process = start("import time; time.sleep(600)")
    logging.disable(logging.WARNING)
    try:
        for _ in range(20_000):
            process.save()
    finally:
        logging.disable(logging.NOTSET)
    process.kill()
    assert process.poll() == -9


def test_srun_is_told_all_that_a_site_or_a_user_could_default() -> None:
    argv = ("srun", *srun_options(4), *interpreter_argv("/v e n v/python", "run-launcher", "--run-dir", "/a b"))
    assert argv[0] == "srun"
    assert {"--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "-K0", "--wait=0"} <= set(argv)
    assert argv[-6:] == ("-I", "-m", "nvrx_chain", "run-launcher", "--run-dir", "/a b")


def test_the_step_does_not_inherit_what_would_change_it() -> None:
    environ = {
        "SLURM_KILL_BAD_EXIT": "1",
        "SLURM_WAIT": "3",
        "SLURM_CPU_BIND": "quiet",
        "SLURM_JOB_ID": "7",
        "PATH": "/",
    }
    assert step_environment(environ) == {"SLURM_JOB_ID": "7", "PATH": "/"}


def test_the_exit_of_another_task_is_not_ours(lab: Lab, peer: TaskContext, launcher: FakeLauncher) -> None:
    zero = lab.context(1, 0)
    FakeLauncher(zero.board, lab.clock).write_exit("n2", 7)
    assert read(lab.directory(1).launcher_exit(0, "n2"), LauncherExit).exit_code == 7
    lab.clock.after(3, lambda: launcher.exit(0))
    assert run(peer).exit_code == 0
