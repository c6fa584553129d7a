"""The Slurm client that runs Slurm's own programs and reads their text. Starts processes, nothing else.

Text with explicit columns is the same on 22.05, 24.11 and 26.05; JSON is not. Plain Slurm programs of the local
cluster are asked, without `-M`, which would need the database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from nvrx_chain.clock import Clock
from nvrx_chain.errors import SlurmAmbiguous, SlurmError, SlurmUnavailable, Unobserved
from nvrx_chain.slurm.array import is_task_spec
from nvrx_chain.slurm.client import SlurmClient
from nvrx_chain.slurm.command import (
    DEFAULT_TIMEOUT_SECONDS,
    CommandResult,
    TimedOut,
    reading_environment,
    run_command,
    scrubbed_environment,
)
from nvrx_chain.slurm.model import (
    AccountedTask,
    ClusterConfig,
    JobDetail,
    Node,
    Partition,
    QueueReading,
    SubmitLimits,
    Submitted,
)
from nvrx_chain.slurm.nodelist import fold_nodes
from nvrx_chain.slurm.parse.replies import complaints, is_job_gone, is_unreachable, one_line, parse_submitted
from nvrx_chain.slurm.parse.rows import unguessable_separator
from nvrx_chain.slurm.parse.sacct import accounting_arguments, parse_accounting
from nvrx_chain.slurm.parse.sacctmgr import association_arguments, parse_associations, parse_qos, qos_arguments
from nvrx_chain.slurm.parse.scontrol import parse_config, parse_jobs, parse_partitions
from nvrx_chain.slurm.parse.sinfo import gres_arguments, node_arguments, parse_gpus, parse_nodes
from nvrx_chain.slurm.parse.squeue import parse_queue, queue_arguments

log = logging.getLogger(__name__)

PROGRAMS = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue")

_T = TypeVar("_T")
# A command line stays readable in a log, and far from any limit on its length.
_SPECS_PER_CALL = 200
# While two tasks of the array wait, 22.05 delivers the signal, calls it refused all the same, and scancel goes on
# trying for 95 s (first again after 5 s). The signal is out with the first try.
_NUDGE_TIMEOUT_SECONDS = 5.0
_SUBMIT_TIME_SLACK = timedelta(seconds=2)


class CommandLineClient(SlurmClient):
    """Asks Slurm through its programs; the contract is in nvrx_chain/slurm/client.py.

    `environ` is the environment of the caller, from which the variables that change Slurm's answers are dropped.
    `programs` puts other paths in the place of programs, e.g. {"squeue": "/opt/site/squeue"}.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        environ: Mapping[str, str],
        programs: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        given = dict(programs or {})
        unknown = sorted(set(given) - set(PROGRAMS))
        if unknown:
            raise ValueError(f"choose Slurm programs: {', '.join(unknown)} is none of {', '.join(PROGRAMS)}")
        self._clock = clock
        self._programs = {name: name for name in PROGRAMS} | given
        self._reading = reading_environment(environ)
        # sbatch hands its environment on to the job, so it gets the user's own locale and time zone.
        self._submitting, _dropped = scrubbed_environment(environ)
        self._timeout_seconds = timeout_seconds

    def queue(self, user: str | None = None) -> QueueReading | Unobserved:
        separator = unguessable_separator()
        text = self._read("squeue", queue_arguments(separator, user))
        if isinstance(text, Unobserved):
            return text
        parsed = parse_queue(text, separator)
        if parsed.junk and not parsed.tasks:
            return _unreadable("squeue", parsed.junk)
        _report_junk("squeue", parsed.junk)
        return QueueReading(tasks=parsed.tasks, read_at=self._clock.now(), unparsed=parsed.junk)

    def accounting(self, array_job_ids: Sequence[int], since: datetime) -> tuple[AccountedTask, ...] | Unobserved:
        if not array_job_ids:
            return ()
        separator = unguessable_separator()
        text = self._read("sacct", accounting_arguments(separator, array_job_ids))
        if isinstance(text, Unobserved):
            return text
        parsed = parse_accounting(text, separator)
        if parsed.junk and not parsed.tasks:
            return _unreadable("sacct", parsed.junk)
        _report_junk("sacct", parsed.junk)
        # `sacct -j 14` also prints the task of another array whose own id is 14; and ids are given out again.
        wanted, earliest = set(array_job_ids), since - _SUBMIT_TIME_SLACK
        return tuple(
            task
            for task in parsed.tasks
            if task.array_job_id in wanted and (task.submitted_at is None or task.submitted_at >= earliest)
        )

    def show_job(self, job_id: int) -> tuple[JobDetail, ...] | Unobserved | None:
        result = self._run("scontrol", ("--all", "--details", "--oneliner", "show", "job", str(job_id)))
        if isinstance(result, CommandResult) and result.returncode and is_job_gone(result.stderr + result.stdout):
            return None
        text = _answer("scontrol", result)
        details = text if isinstance(text, Unobserved) else _parsed(parse_jobs, text)
        if isinstance(details, Unobserved):
            return details
        asked = tuple(detail for detail in details if job_id in (detail.job_id, detail.array_job_id))
        if len({detail.user for detail in asked}) != 1:
            # A job name with newlines in it can look like records of somebody else.
            return Unobserved(f"scontrol did not show one owner's records for job {job_id}")
        return asked

    def batch_script(self, job_id: int) -> str | Unobserved | None:
        result = self._run("scontrol", ("write", "batch_script", str(job_id), "-"))
        if not isinstance(result, CommandResult) or result.stdout.startswith("#!"):
            # A script need not end with a newline.
            return result.stdout if isinstance(result, CommandResult) else _unanswered("scontrol", result)
        said = result.stderr + result.stdout
        if is_job_gone(said):
            return None
        # scontrol refuses another user's script with exit code 0.
        return Unobserved(f"scontrol showed no script of job {job_id}: {one_line(said)}")

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        separator = unguessable_separator()
        try:
            arguments = node_arguments(separator, names)
        except ValueError as error:
            return Unobserved(str(error))
        text = self._read("sinfo", arguments)
        if isinstance(text, Unobserved):
            return text
        parsed = parse_nodes(text, separator)
        if parsed.junk and not parsed.nodes:
            return _unreadable("sinfo", parsed.junk)
        _report_junk("sinfo", parsed.junk)
        return parsed.nodes

    def config(self) -> ClusterConfig | Unobserved:
        text = self._read("scontrol", ("show", "config"))
        return text if isinstance(text, Unobserved) else _parsed(parse_config, text)

    def partitions(self) -> tuple[Partition, ...] | Unobserved:
        text = self._read("scontrol", ("--all", "--oneliner", "show", "partition"))
        if isinstance(text, Unobserved):
            return text
        separator = unguessable_separator()
        gres = self._read("sinfo", gres_arguments(separator))
        gpus = {} if isinstance(gres, Unobserved) else parse_gpus(gres, separator)
        return _parsed(lambda shown: parse_partitions(shown, gpus), text)

    def submit_limits(self, user: str) -> SubmitLimits | Unobserved:
        text = self._read("sacctmgr", association_arguments(user))
        associations = text if isinstance(text, Unobserved) else _parsed(parse_associations, text)
        if isinstance(associations, Unobserved):
            return associations
        text = self._read("sacctmgr", qos_arguments())
        by_qos = text if isinstance(text, Unobserved) else _parsed(parse_qos, text)
        return by_qos if isinstance(by_qos, Unobserved) else SubmitLimits(associations=associations, by_qos=by_qos)

    def submit(self, argv: Sequence[str]) -> Submitted:
        result = run_command((self._programs["sbatch"], *argv), self._submitting, timeout_seconds=self._timeout_seconds)
        if isinstance(result, TimedOut):
            raise SlurmAmbiguous("submit a job", part=f"sbatch did not end in {result.seconds:.0f} s")
        said = one_line(result.stderr)
        found = parse_submitted(result.stdout)
        if found is not None and result.returncode == 0:
            return Submitted(array_job_id=found.array_job_id, cluster=found.cluster, warnings=result.stderr.strip())
        if found is not None:
            raise SlurmAmbiguous("submit a job", part=f"sbatch printed the id {found.array_job_id} and failed: {said}")
        if result.returncode == 0:
            printed = one_line(result.stdout) or "nothing"
            raise SlurmAmbiguous("submit a job", part=f"sbatch printed no job id but {printed!r}")
        if result.returncode < 0 or not said or is_unreachable(said):
            raise SlurmAmbiguous("submit a job", part=f"sbatch ended with {result.returncode}: {said}")
        raise SlurmError("submit a job", part=said)

    def cancel(self, specs: Sequence[str], *, pending_only: bool = False) -> None:
        options = ("--state=PENDING",) if pending_only else ()
        self._change("cancel jobs", "scancel", [(*options, *chunk) for chunk in _chunks(specs)])

    def nudge(self, spec: str) -> None:
        _check_specs([spec])
        result = self._run(
            "scancel", ("--batch", "--signal=CONT", spec), min(_NUDGE_TIMEOUT_SECONDS, self._timeout_seconds)
        )
        if not isinstance(result, CommandResult) or result.returncode != 0:
            log.info("nudge not delivered spec=%s result=%s", spec, result)

    def hold(self, specs: Sequence[str]) -> None:
        self._change("hold jobs", "scontrol", [("hold", ",".join(chunk)) for chunk in _chunks(specs)])

    def exclude(self, spec: str, nodes: Sequence[str]) -> None:
        _check_specs([spec])
        try:
            listed = fold_nodes(nodes)
        except ValueError as error:
            raise SlurmError("exclude nodes", part=str(error)) from error
        self._change("exclude nodes", "scontrol", [("update", f"jobid={spec}", f"excnodelist={listed}")])

    def release(self, specs: Sequence[str]) -> None:
        self._change("release jobs", "scontrol", [("release", ",".join(chunk)) for chunk in _chunks(specs)])

    def _change(self, what: str, program: str, calls: Sequence[Sequence[str]]) -> None:
        """Make the calls. Raises SlurmAmbiguous at once, SlurmError after the last: one refusal stops no other."""
        refused: list[str] = []
        for arguments in calls:
            result = run_command(
                (self._programs[program], *arguments), self._reading, timeout_seconds=self._timeout_seconds
            )
            if isinstance(result, TimedOut):
                raise SlurmAmbiguous(what, part=f"{program} did not end in {result.seconds:.0f} s")
            if result.returncode == 0:
                continue
            said = f"{result.stderr}\n{result.stdout}"
            if result.returncode < 0 or not said.strip() or is_unreachable(said):
                raise SlurmAmbiguous(what, part=f"{program} ended with {result.returncode}: {one_line(said)}")
            refused += complaints(said)
        if refused:
            raise SlurmError(what, part=one_line("\n".join(refused)))

    def _read(self, program: str, arguments: Sequence[str]) -> str | Unobserved:
        return _answer(program, self._run(program, arguments))

    def _run(
        self, program: str, arguments: Sequence[str], timeout_seconds: float | None = None
    ) -> CommandResult | TimedOut | Unobserved:
        try:
            return run_command(
                (self._programs[program], *arguments),
                self._reading,
                timeout_seconds=self._timeout_seconds if timeout_seconds is None else timeout_seconds,
            )
        except SlurmUnavailable as error:
            return Unobserved(str(error))


def _answer(program: str, result: CommandResult | TimedOut | Unobserved) -> str | Unobserved:
    """Standard output, if the program saw Slurm: a failure must never be read as "nothing is there"."""
    if not isinstance(result, CommandResult):
        return _unanswered(program, result)
    said = one_line(result.stderr)
    if result.returncode != 0:
        return Unobserved(f"{program} failed with {result.returncode}: {said or one_line(result.stdout)}")
    if not result.stdout.strip() and said:
        return Unobserved(f"{program} printed nothing but an error: {said}")
    if result.stdout and not result.stdout.endswith("\n"):
        return Unobserved(f"{program} was cut off in the middle of a line")
    if said:
        log.warning("a Slurm program complained program=%s stderr=%s", program, said)
    return result.stdout


def _unanswered(program: str, result: TimedOut | Unobserved) -> Unobserved:
    if isinstance(result, Unobserved):
        return result
    return Unobserved(f"{program} did not answer in {result.seconds:.0f} s")


def _parsed(parse: Callable[[str], _T], text: str) -> _T | Unobserved:
    try:
        return parse(text)
    except ValueError as error:
        return Unobserved(str(error))


def _unreadable(program: str, junk: Sequence[str]) -> Unobserved:
    return Unobserved(f"{program} printed {len(junk)} lines and none as it was asked to: {one_line(junk[0], 80)!r}")


def _report_junk(program: str, junk: Sequence[str]) -> None:
    if junk:
        log.warning("lines that are no record program=%s count=%s first=%r", program, len(junk), junk[0][:80])


def _check_specs(specs: Sequence[str]) -> None:
    """A word that is no job id could be an option, or everything of a user."""
    for spec in specs:
        if not is_task_spec(spec):
            raise SlurmError("name a job to Slurm", part=f"{spec!r} is no job id")


def _chunks(specs: Sequence[str]) -> list[Sequence[str]]:
    _check_specs(specs)
    return [specs[at : at + _SPECS_PER_CALL] for at in range(0, len(specs), _SPECS_PER_CALL)]
