"""What a site and a user hand over with a chain: --export, --prologue, --after, --parsable, sizes and features.

A value travels from the submitting shell to the ranks without standing in a command line, and no shell reads it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvrx_chain.clock import SystemClock
from nvrx_chain.errors import Unobserved
from nvrx_chain.records.files import read_record
from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.manifest import ChainManifest, ExportMode, PrivateSettings
from nvrx_chain.records.outcome import Outcome
from nvrx_chain.slurm.command_client import CommandLineClient
from nvrx_chain.submit.export import parse_export
from tests.integration.case_tools import (
    PAIR,
    SECONDS,
    SMALL,
    beat,
    chain_of,
    environment_of,
    field_of,
    put_fake,
    run_bare,
    run_submit,
    submit_argv,
    wait_for_ranks,
)
from tests.integration.cluster import Cluster, wait_for
from tests.integration.conftest import SubmitChain
from tests.integration.harness import COMMAND, NASTY_NAME, Chain, Launcher, Shape

TOKEN = "hunter2hunter2"
NASTY_VALUE = """a "b" 'c' $(touch evaluated) `touch evaluated` $HOME ; & # % \\ é,end"""


@pytest.fixture
def run_dir(tmp_path: Path, cluster: Cluster) -> Iterator[Path]:
    """A run directory for tests that type the command themselves; what is queued is cancelled at the end."""
    yield tmp_path / NASTY_NAME
    cluster.cancel(*{row.job for row in cluster.live_rows()})


def submit_parsable(
    cluster: Cluster,
    run_dir: Path,
    launcher: Launcher,
    shape: Shape,
    depth: int,
    *options: str,
    environ: dict[str, str],
) -> Chain:
    """A chain by --parsable: its ids are the lines that were printed, all else is in its own file."""
    argv = [word for word in submit_argv(run_dir, launcher, shape, depth, *options) if word != "--json"]
    done = run_submit(cluster, [*argv[:2], "--parsable", *argv[2:]], environ)
    assert done.returncode == 0, done.stderr
    manifest = read_record(RunDirectory(run_dir).manifest, ChainManifest)
    assert isinstance(manifest, ChainManifest)
    jobs = tuple(int(line.split(";")[0]) for line in done.stdout.splitlines())
    return Chain(cluster, run_dir, manifest.chain_id, manifest.job_name, jobs, shape)


@contextmanager
def feature(cluster: Cluster, name: str, count: int) -> Iterator[tuple[str, ...]]:
    """`count` nodes that have a feature for a while."""
    nodes = tuple(sorted(cluster.node_states()))[-count:]
    change = ["scontrol", "update", f"nodename={','.join(nodes)}"]
    cluster.run([*change, f"availablefeatures={name}", f"activefeatures={name}"])
    try:
        yield nodes
    finally:
        cluster.run([*change, "availablefeatures=", "activefeatures="])


def assert_nowhere(run_dir: Path, secret: str) -> None:
    """No file of the chain but the private one and what the ranks wrote themselves holds it."""
    private = RunDirectory(run_dir).private
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert secret in private.read_text()
    for path in run_dir.rglob("*"):
        if path.is_file() and path != private and path.parent.name != "environ":
            assert secret.encode() not in path.read_bytes(), path


def test_exported_values_reach_the_ranks_of_every_generation_and_no_shell_reads_them(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    prologue = tmp_path / "my prologue.sh"
    prologue.write_text('export SEEN_BY_PROLOGUE="<$VALUE>"\n')
    environ = {"VALUE": NASTY_VALUE, "HF_TOKEN": TOKEN, "OF_THE_SHELL": "not listed"}
    before = run_bare(cluster, tmp_path / "before", "while [ ! -e go ]; do sleep 0.2; done\n")
    options = ["--export=VALUE,HF_TOKEN,GIVEN=x=1", f"--prologue={prologue}", f"--after={before}"]
    with feature(cluster, "fast", 2) as nodes:
        options += ["--constraint=fast", "--mem=1G", "--cpus-per-task=2"]
        chain = submit_parsable(cluster, run_dir, beat(), PAIR, 1, *options, environ=environ)
        (first,) = chain.jobs
        assert f"afterany:{before}" in field_of(cluster, first, "Dependency")
        assert all(row.is_pending for row in chain.rows(first))
        (tmp_path / "before" / "go").touch()
        chain.wait_for_step(first)
        wait_for_ranks(chain, first)
        assert set(chain.running(first).values()) == set(nodes)
        assert field_of(cluster, f"{first}_0", "MinMemoryNode") == "1G"
        assert field_of(cluster, f"{first}_0", "CPUs/Task") == "2"
        # From another shell, without any of the values.
        answer = json.loads(cluster.run([COMMAND, "extend", f"--run-dir={run_dir}", "--by=1", "--json"]).stdout)
        (second,) = answer["array_job_ids"]
        cluster.cancel(first)
        chain.wait_for_step(second)
        wait_for_ranks(chain, second)
    for job in (first, second):
        for task in (0, 1):
            seen = environment_of(chain, job, task)
            assert (seen["VALUE"], seen["HF_TOKEN"], seen["GIVEN"]) == (NASTY_VALUE, TOKEN, "x=1")
            assert seen["SEEN_BY_PROLOGUE"] == f"<{NASTY_VALUE}>"
            assert "OF_THE_SHELL" not in seen
        assert TOKEN not in cluster.run(["scontrol", "--oneliner", "show", "job", str(job)]).stdout
    assert not list(tmp_path.rglob("evaluated")), "a shell has read the value"
    assert_nowhere(run_dir, TOKEN)
    private = read_record(RunDirectory(run_dir).private, PrivateSettings)
    assert isinstance(private, PrivateSettings)
    assert set(private.variables) == {"VALUE", "HF_TOKEN", "GIVEN"}
    cluster.run([COMMAND, "cancel", f"--run-dir={run_dir}", "--yes"])


AS_SBATCH_READS_IT = (
    "ALL",
    "ALL,NEW=1",
    "ALL,SHELL_ONE=other",
    "NONE",
    "SHELL_ONE",
    "SHELL_ONE,NEW=1=2",
    "NEW=",
    "NOT_SET,NEW=1",
    "'NEW=a,b',SHELL_TWO",
    "NEW='a,b',SHELL_TWO",
    'NEW="a b",SHELL_ONE=c d',
)


@pytest.mark.slow
def test_the_list_means_to_a_chain_what_it_means_to_sbatch(cluster: Cluster, tmp_path: Path) -> None:
    shell = {"SHELL_ONE": "1", "SHELL_TWO": "two words"}
    names = {*shell, "NEW", "NOT_SET"}
    differing = {}
    for number, text in enumerate(AS_SBATCH_READS_IT):
        place = tmp_path / str(number)
        run_bare(cluster, place, "env -0 >env.new && mv env.new env\n", f"--export={text}", environ=shell)
        wait_for((place / "env").exists, SECONDS, f"the environment of --export={text}")
        lines = (place / "env").read_text().split("\0")
        real = {name: value for name, _, value in (line.partition("=") for line in lines) if name in names}
        export = parse_export(text, shell)
        ours = dict(shell if export.mode is ExportMode.ALL else {}) | dict(export.variables)
        if real != ours:
            differing[text] = (real, ours)
    assert not differing


@pytest.mark.slow
def test_a_value_with_a_line_break_is_refused_before_anything_is_queued(cluster: Cluster, run_dir: Path) -> None:
    argv = submit_argv(run_dir, beat(), PAIR, 1, "--export=VALUE")
    done = run_submit(cluster, argv, {"VALUE": f"{TOKEN}\nb"})
    assert done.returncode == 2
    assert "the value of VALUE has a line break" in done.stderr
    assert TOKEN not in done.stderr
    assert not cluster.live_rows()
    assert not run_dir.exists()


@pytest.mark.slow
def test_a_secret_word_of_the_workload_reaches_the_rank_and_nobody_else(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, time\nopen('argv', 'w').write(repr(sys.argv[1:]))\ntime.sleep(600)\n")
    launcher = Launcher(name="command", kind=beat().kind, python=beat().python, options=("--launcher-command", "env"))
    chain = submit(launcher, shape=SMALL, depth=1, workload=(beat().python, str(script), "--api-key", TOKEN, "--lr=1"))
    path = chain.run_dir / "argv"
    text = wait_for(lambda: path.exists() and path.read_text(), SECONDS, "the rank's words")
    path.unlink()
    assert text == repr(["--api-key", TOKEN, "--lr=1"])
    assert_nowhere(chain.run_dir, TOKEN)


@pytest.mark.slow
def test_a_prologue_that_fails_is_named_and_the_chain_is_held_after_two_generations(
    cluster: Cluster, submit: SubmitChain, tmp_path: Path
) -> None:
    prologue = tmp_path / "prologue.sh"
    prologue.write_text("no-such-module load cuda\n")
    chain = submit(beat(), shape=PAIR, depth=4, options=[f"--prologue={prologue}"])
    wait_for(chain.hold, SECONDS, "the brake")
    assert chain.started_jobs() == chain.jobs[:2]
    assert chain.wait_for_outcome(chain.jobs[0], seconds=1) is Outcome.FAILED
    log = chain.generation(chain.jobs[0]).launcher_log(0).read_text()
    (line,) = [line for line in log.splitlines() if "ended with 127" in line]
    assert "prologue.sh" in line
    assert "the launcher is not started" in line
    assert not chain.events(), "a rank started without its prologue"


# In the place of pyxis: writes down what it is told of a container and starts the step without one.
STRIP_CONTAINER = """
keep=()
for word in "$@"; do
  case $word in
    --container-*) printf '%s\\n' "$word" >>"$own.container" ;;
    *) keep+=("$word") ;;
  esac
done
exec "$real" "${keep[@]}"
"""


@pytest.mark.slow
def test_each_task_of_each_generation_is_started_in_a_container_of_its_own(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    """Case 33: a container's name is that of one task of one generation, and Slurm's programs run outside of it."""
    environ = put_fake(tmp_path, "srun", STRIP_CONTAINER, cluster)
    options = ["--container-image=nvcr.io#nvidia/pytorch:25.01-py3", f"--container-mounts={tmp_path}:/d:ro"]
    launcher = beat()
    done = run_submit(cluster, submit_argv(run_dir, launcher, PAIR, 2, *options), environ)
    assert done.returncode == 0, done.stderr
    assert "never run by the tests of nvrx-chain: containers (pyxis)" in done.stderr
    chain = chain_of(cluster, done, PAIR)
    first, second = chain.jobs
    chain.wait_for_step(first)
    wait_for_ranks(chain, first)
    cluster.cancel(first)
    chain.wait_for_step(second)
    wait_for_ranks(chain, second)
    told = (tmp_path / "srun.container").read_text().splitlines()
    names = [word for word in told if word.startswith("--container-name=")]
    assert sorted(names) == [f"--container-name=nvrx-{job}-{task}" for job in chain.jobs for task in (0, 1)]
    assert told.count(options[0]) == 4
    assert told.count(f"--container-workdir={run_dir}") == 4
    (mounts,) = {word for word in told if word.startswith("--container-mounts=")}
    listed = mounts.partition("=")[2].split(",")
    assert listed[0] == f"{tmp_path}:/d:ro"
    assert f"{run_dir}:{run_dir}" in listed
    assert any(COMMAND.startswith(f"{mount.split(':')[0]}/") for mount in listed), "nvrx-chain is not mounted"
    chain.cli("cancel", "--yes")


@pytest.mark.slow
def test_without_the_shell_s_environment_run_task_finds_slurm_all_the_same(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    environ = {"OF_THE_SHELL": "not listed"}
    chain = submit_parsable(cluster, run_dir, beat("--until=5"), PAIR, 2, "--export=NONE", environ=environ)
    # The verdict needs squeue, scontrol and scancel on the node.
    chain.wait_for_step(chain.jobs[0])
    seen = environment_of(chain, chain.jobs[0], 0)
    assert "OF_THE_SHELL" not in seen
    assert seen["SLURM_CONF"] == cluster.environ["SLURM_CONF"]
    chain.cli("cancel", "--yes")


def test_a_submit_that_dies_between_sbatch_and_its_record_leaves_each_generation_once(
    cluster: Cluster, run_dir: Path, tmp_path: Path
) -> None:
    # The job is queued, and whoever asked for it is killed before it hears so.
    fake = 'if [ $n = 2 ]; then "$real" "$@" >"$own.id"; kill -9 $PPID; exit; fi\nexec "$real" "$@"\n'
    environ = put_fake(tmp_path, "sbatch", fake, cluster)
    argv = submit_argv(run_dir, beat(), PAIR, 4)
    died = run_submit(cluster, argv, environ)
    assert died.returncode == -9
    lost = int((tmp_path / "sbatch.id").read_text())
    assert {row.job for row in cluster.live_rows()} > {lost}
    done = run_submit(cluster, argv, environ)
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)["array_job_ids"]
    assert len(jobs) == 4
    assert jobs[1] == lost
    assert sorted({row.job for row in cluster.live_rows()}) == sorted(jobs)


@pytest.mark.slow
@pytest.mark.cluster(accounting=True)
def test_the_limits_of_the_accounting_are_read_and_those_of_slurm_conf_refuse(cluster: Cluster, run_dir: Path) -> None:
    client = CommandLineClient(clock=SystemClock(), environ=cluster.environ)
    config = client.config()
    assert not isinstance(config, Unobserved)
    assert config.max_job_count == 10_000
    cluster.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=7"])
    try:
        limits = client.submit_limits("root")
    finally:
        cluster.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=-1"])
    assert not isinstance(limits, Unobserved), limits.reason
    assert limits.by_qos["normal"] == 7
    again = client.submit_limits("root")
    assert not isinstance(again, Unobserved), again.reason
    assert again.by_qos["normal"] is None
    argv = submit_argv(run_dir, beat(), Shape(train=1, hot=0, cold=999), 11)
    done = run_submit(cluster, argv)
    assert done.returncode == 2
    assert "11 generations of 1000 tasks are 11000 jobs" in done.stderr
    assert not cluster.live_rows()
