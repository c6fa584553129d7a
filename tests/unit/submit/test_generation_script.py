"""generation.sbatch run for real by bash: exit codes, signals, and the one decision that it holds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.records.control import Closed
from nvrx_chain.records.outcome import Outcome
from tests.unit.submit.scripts import BatchScript, make_script, storm, wait_until

LEFT_OPEN = "sys.exit(5)"
RUNS_UNTIL_TOLD = "(here / 'ready').touch(); until('go'); sys.exit(7)"
RECORDS_SIGNALS = """
def note(name, code):
    with open(here / 'signals', 'a') as log:
        log.write(name + chr(10))
    if code is not None:
        sys.exit(code)
on(signal.SIGTERM, lambda: note('TERM', 143))
on(signal.SIGUSR1, lambda: note('USR1', None))
(here / 'ready').touch()
until('go')
sys.exit(7)
"""
# Shows that it was entered and waits; then does its work.
BLOCKS = """
touch "$here/entered"
for _ in {1..6000}; do [ -e "$here/go_on" ] && break; sleep 0.01; done
exec "$real" "$@"
"""


def start_and_wait(script: BatchScript) -> subprocess.Popen[bytes]:
    process = script.start()
    wait_until(lambda: script.exists("ready"), "run-task is ready")
    return process


@pytest.mark.parametrize(("inside", "outside"), [(0, 0), (1, 1), (75, 75), (93, 93), (143, 143), (221, 1)])
def test_the_exit_code_is_that_of_run_task_and_never_221(tmp_path: Path, inside: int, outside: int) -> None:
    script = make_script(tmp_path, f"sys.exit({inside})")
    assert script.run_to_end()[0] == outside


def test_the_log_says_first_which_task_of_which_chain_runs_where(tmp_path: Path) -> None:
    _, output = make_script(tmp_path, LEFT_OPEN).run_to_end()
    assert "77_0 on node-7: chain abc, script of nvrx-chain 1" in output.splitlines()[0]


def test_run_task_gets_the_run_directory_as_it_is_named(tmp_path: Path) -> None:
    script = make_script(tmp_path, "(here / 'seen').write_text(str(run_dir)); sys.exit(0)")
    script.run_to_end()
    assert (script.here / "seen").read_text() == str(script.run.path)


def test_a_task_0_that_left_its_generation_open_is_closed_as_failed(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    assert script.run_to_end(environ={"SLURM_RESTART_COUNT": "2"})[0] == 5
    closed = script.closed()
    assert closed is not None
    assert closed.outcome is Outcome.FAILED
    assert closed.exit_code == 5
    assert (closed.array_job_id, closed.array_task_id, closed.restart_count) == (77, 0, 2)
    assert closed.host == "node-7"
    assert closed.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert closed.closed_by == "batch script of 77_0 on node-7"
    assert closed.evidence == ("run-task ended with code 5 and left no closed.json",)
    assert script.leftovers() == []


def test_its_closed_file_has_the_fields_of_the_record_and_no_others(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    script.run_to_end()
    written = msgspec.json.decode(script.run.generation(77).closed.read_bytes())
    assert set(written) == set(Closed.__struct_fields__)


@pytest.mark.parametrize("name", ["generations", "generations/77", "generations/77/control"])
def test_the_safety_net_writes_through_no_link(tmp_path: Path, name: str) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "control").mkdir(parents=True)
    place = script.run.path / name
    if place.is_dir():
        place.rmdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(elsewhere)
    assert script.run_to_end()[0] == 5
    assert not [path for path in elsewhere.rglob("*") if not path.is_dir()]


@pytest.mark.skipif(os.getuid() != 0, reason="gives a directory away")
def test_the_safety_net_writes_nothing_into_a_run_directory_of_somebody_else(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    os.chown(script.run.path, 4242, 4242)
    assert script.run_to_end()[0] == 5
    assert script.closed() is None


def test_what_the_safety_net_writes_is_nobody_elses_to_change_whatever_the_umask_was(tmp_path: Path) -> None:
    script = make_script(tmp_path, "(here / 'umask').write_text(str(os.umask(0))); sys.exit(5)")
    before = os.umask(0)
    try:
        script.run_to_end()
    finally:
        os.umask(before)
    assert int((script.here / "umask").read_text()) == 0o022
    generation = script.run.generation(77).path
    assert not [path for path in (generation, *generation.rglob("*")) if path.stat().st_mode & 0o022]


@pytest.mark.parametrize("task", ["1", "12"])
def test_no_other_task_closes_anything(tmp_path: Path, task: str) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    assert script.run_to_end(task=task)[0] == 5
    assert script.closed() is None


@pytest.mark.parametrize("task", ["", "0"])
def test_a_job_that_is_no_array_is_task_0(tmp_path: Path, task: str) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    script.run_to_end(task=task)
    assert script.closed() is not None


def test_a_closed_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    body = """
control = run_dir / 'generations' / '77' / 'control'
control.mkdir(parents=True)
(control / 'closed.json').write_text('first')
sys.exit(1)
"""
    script = make_script(tmp_path, body)
    script.run_to_end()
    assert script.run.generation(77).closed.read_text() == "first"
    assert script.leftovers() == []


def test_a_closed_file_that_appears_at_the_last_moment_wins(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    script.put_program("ln", 'echo first >"${@: -1}"; exec "$real" "$@"')
    assert script.run_to_end()[0] == 5
    assert script.run.generation(77).closed.read_text() == "first\n"
    assert script.leftovers() == []


def test_a_file_that_was_cut_short_by_a_full_disk_is_not_published(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    script.put_program("dd", 'for word in "$@"; do case $word in of=*) head -c 40 >"${word#of=}";; esac; done')
    assert script.run_to_end()[0] == 5
    assert script.closed() is None
    assert script.leftovers() == []


def test_a_run_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    script = make_script(tmp_path, "import shutil; shutil.rmtree(run_dir); sys.exit(3)")
    assert script.run_to_end()[0] == 3
    assert not script.run.path.exists()


def test_a_missing_interpreter_closes_the_generation(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN, edit=lambda text: text.replace("py thon", "no such python"))
    assert script.run_to_end()[0] == 127
    closed = script.closed()
    assert closed is not None
    assert closed.exit_code == 127


THIRD_TIME = """
lives = here / "lives"
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
if len(lives.read_text()) < 3:
    sys.exit(1)
"""
"""A run-task whose interpreter cannot import anything until it is started for the third time."""


def test_a_run_task_that_could_not_start_is_started_again(tmp_path: Path) -> None:
    script = make_script(tmp_path, THIRD_TIME, start_pauses="1 1 1")
    code, output = script.run_to_end(task="1")
    assert code == 0
    assert output.count("run-task did not start (exit code 1)") == 2


def test_a_run_task_that_never_starts_closes_the_generation_in_the_end(tmp_path: Path) -> None:
    script = make_script(tmp_path, "sys.exit(1)", start_pauses="1 1")
    code, output = script.run_to_end()
    assert code == 1
    assert output.count("run-task did not start") == 2
    assert script.closed() is not None


def test_a_run_task_that_has_written_its_lease_is_never_started_again(tmp_path: Path) -> None:
    wrote_its_lease = """
control = run_dir / "generations" / "77" / "control"
control.mkdir(parents=True)
(control / "lease.0.json").touch()
"""
    script = make_script(tmp_path, wrote_its_lease + THIRD_TIME, start_pauses="1 1 1")
    code, output = script.run_to_end()
    assert code == 1
    assert "did not start" not in output


def test_a_term_ends_the_wait_for_the_next_start(tmp_path: Path) -> None:
    script = make_script(tmp_path, "(here / 'tried').touch(); sys.exit(1)", start_pauses="50 50")
    process = script.start()
    wait_until(lambda: "next try" in (script.here / "output").read_text(), "the first start failed")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert script.closed() is not None


def test_a_run_task_that_was_killed_closes_the_generation(tmp_path: Path) -> None:
    script = make_script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert script.run_to_end()[0] == 137
    closed = script.closed()
    assert closed is not None
    assert closed.exit_code == 137


def test_term_to_the_shell_alone_reaches_run_task(tmp_path: Path) -> None:
    script = make_script(tmp_path, RECORDS_SIGNALS)
    process = start_and_wait(script)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert (script.here / "signals").read_text() == "TERM\n"


def test_the_warning_of_the_time_limit_is_passed_on_and_the_run_goes_on(tmp_path: Path) -> None:
    script = make_script(tmp_path, RECORDS_SIGNALS)
    process = start_and_wait(script)
    for count in (1, 2):
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda count=count: _count(script, "USR1") == count, "USR1 arrived")
    assert process.poll() is None
    script.touch("go")
    assert process.wait(60) == 7


def _count(script: BatchScript, name: str) -> int:
    log = script.here / "signals"
    return log.read_text().split().count(name) if log.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2])
def test_a_signal_that_is_not_ours_ends_neither_shell_nor_run_task(tmp_path: Path, number: signal.Signals) -> None:
    script = make_script(tmp_path, RUNS_UNTIL_TOLD)
    process = start_and_wait(script)
    process.send_signal(number)
    script.touch("go")
    assert process.wait(60) == 7


def test_a_term_before_run_task_exists_still_reaches_it(tmp_path: Path) -> None:
    script = make_script(tmp_path, "(here / 'ready').touch(); until('never')")
    script.put_program("date", BLOCKS)
    process = script.start()
    wait_until(lambda: script.exists("entered"), "the shell is at its first line of output")
    process.send_signal(signal.SIGTERM)
    script.touch("go_on")
    assert process.wait(60) == 143
    assert script.closed() is not None


def test_an_early_warning_of_the_time_limit_does_not_kill_run_task(tmp_path: Path) -> None:
    script = make_script(tmp_path, "sys.exit(7)")
    script.put_program("date", BLOCKS)
    process = script.start()
    wait_until(lambda: script.exists("entered"), "the shell is at its first line of output")
    process.send_signal(signal.SIGUSR1)
    script.touch("go_on")
    assert process.wait(60) == 7


def _term_while_the_handler_runs(script: BatchScript) -> int:
    script.put_program("dd", BLOCKS)
    process = script.start()
    wait_until(lambda: script.exists("entered"), "the EXIT handler is at work")
    for _ in range(5):
        # To every process of the step, as scancel does: the handler's own dd and ln as well.
        os.killpg(process.pid, signal.SIGTERM)
    script.touch("go_on")
    return process.wait(60)


def test_a_term_while_the_exit_handler_runs_does_not_end_it(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    assert _term_while_the_handler_runs(script) == 5
    assert script.closed() is not None


def test_without_its_ignored_signals_the_exit_handler_is_ended_half_way(tmp_path: Path) -> None:
    script = make_script(tmp_path, LEFT_OPEN, edit=lambda text: re.sub(r"(?m)^ *trap '' .*$", "", text))
    _term_while_the_handler_runs(script)
    assert script.closed() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("round_", range(6))
def test_a_storm_of_signals_at_the_end_of_run_task_hides_neither_code_nor_closing(
    tmp_path: Path, number: signal.Signals, round_: int
) -> None:
    body = f"""
signal.signal({int(number)}, signal.SIG_IGN)
(here / 'ready').touch()
while not (here / 'storm').exists():
    time.sleep(0.001)
time.sleep({round_} * 0.006)
sys.exit(7)
"""
    script = make_script(tmp_path, body)
    process = start_and_wait(script)
    process.send_signal(number)
    (script.here / "storm").touch()
    storm(process, number)
    assert process.returncode == 7
    closed = script.closed()
    assert closed is not None
    assert closed.exit_code == 7
    assert script.leftovers() == []


def test_a_node_without_the_pipe_waits_without_spinning(tmp_path: Path) -> None:
    script = make_script(tmp_path, RECORDS_SIGNALS, edit=lambda text: text.replace("exec 9<> <(:)", "exec 9</dev/null"))
    script.put_program("sleep", 'echo >>"$here/sleeps"; exec "$real" "$@"')
    process = start_and_wait(script)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert 1 <= len((script.here / "sleeps").read_text().splitlines()) < 60 / 0.2


@pytest.mark.parametrize("environ", [{"POSIXLY_CORRECT": "1"}, {"SHELLOPTS": "errexit"}, {"SHELLOPTS": "nounset"}])
def test_inherited_shell_modes_change_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    script = make_script(tmp_path, LEFT_OPEN)
    assert script.run_to_end(environ=environ)[0] == 5
    assert script.closed() is not None
