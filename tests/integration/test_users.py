"""Several users on one cluster: an ordinary user's chain, what others may do with it, and what a forger can reach."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvrx_chain.records.layout import RunDirectory
from nvrx_chain.records.outcome import Outcome, Verdict
from tests.forged import PLANTS, Victim, forge, give, put_in_place, read_victim
from tests.integration.case_tools import PAIR, SMALL, beat, wait_for_ranks
from tests.integration.cluster import QueueRow, wait_for
from tests.integration.harness import COMMAND, TORCHRUN, Chain, Shape
from tests.integration.people import UIDS, Entered, People, living_people
from tests.integration.watch_tools import WATCH

HOSTILE = "$(touch pwned) `touch pwned` ;touch pwned; \"'|&\n\ttouch pwned #"
OF_AN_OPERATOR = ("cancel", "hold", "release")
WATCH_EVERYTHING = ("--act", "--allow=fence", "--allow=cancel-chain", "--allow=hold", "--allow=extend")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with living_people(tmp_path_factory.mktemp("people"), nodes=6) as found:
        yield found


@pytest.fixture(autouse=True)
def _free_cluster(people: People) -> Iterator[None]:
    yield
    people.root.cancel(*sorted({row.job for row in people.root.live_rows()}))
    wait_for(lambda: not people.root.live_rows(), 60, "an empty queue")


def start(user: Entered, name: str, *, shape: Shape = SMALL, depth: int = 2, **more: object) -> Chain:
    """A chain of ranks without torch that trains until it is told."""
    chain = Chain.submit(
        user,
        user.home / name,
        beat(),
        shape=shape,
        depth=depth,
        **more,  # type: ignore[arg-type]
    )
    wait_for_ranks(chain, chain.jobs[0])
    return chain


def open_to_others(run_dir: Path) -> list[str]:
    """Everything below a run directory that anybody but its owner may write."""
    found = []
    for path in (run_dir, *run_dir.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o022:
            found.append(f"{path.relative_to(run_dir)} {stat.filemode(status.st_mode)}")
    return found


def watch(user: Entered, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One pass of the watcher as a user types it, with a state directory of its own."""
    return user.run([*WATCH, f"--state-dir={user.home / f'watch-{name}'}", "--json", *words], check=False)


# An ordinary user


@pytest.mark.slow
def test_the_chain_of_an_ordinary_user_is_handed_off_and_completes(tmp_path: Path) -> None:
    # A cluster of its own: it loses a node.
    with living_people(tmp_path, nodes=5) as people:
        complete_in_spite_of_a_lost_node(people)


def complete_in_spite_of_a_lost_node(people: People) -> None:
    """The hand-off as the demo shows it, all of it as alice."""
    chain = Chain.submit(
        people.alice, people.alice.home / "demo", TORCHRUN, shape=Shape(train=2, hot=1, cold=1), target_iteration=150
    )
    first, second = chain.jobs[:2]
    chain.wait_for_training(first, seconds=150)
    chain.kill_node_of(first, 0)
    chain.wait_for_step(second, seconds=240)
    assert chain.closed(first).outcome is Outcome.LEASE_LOST  # type: ignore[union-attr]
    assert chain.wait_for_verdict(seconds=180) is Verdict.COMPLETED
    chain.assert_no_overlap()
    assert {path.stat().st_uid for path in chain.run_dir.rglob("*")} == {UIDS["alice"]}
    for user in (people.alice, people.root):
        seen = watch(user, "demo", f"--run-dir={chain.run_dir}")
        assert json.loads(seen.stdout)["verdict"] == "completed", (seen.stdout, seen.stderr)


def test_others_look_and_only_the_user_and_an_operator_act(people: People) -> None:
    chain = start(people.alice, "guarded")
    before = rows(people, chain)
    where = f"--run-dir={chain.run_dir}"
    assert chain.chain_id in people.mallory.run([COMMAND, "status", where]).stdout
    for user in (people.mallory, people.root):
        for command in (["cancel", "--yes"], ["hold"], ["release"], ["extend", "--by=1"]):
            done = user.run([COMMAND, command[0], where, *command[1:]], check=False)
            assert done.returncode == 1, (user.user, command, done)
            assert f"it belongs to alice, and this is {user.user} (refused; it is for alice" in done.stderr
    denied = people.mallory.run([COMMAND, "cancel", where, "--yes", "--act-as-operator"], check=False)
    assert "--act-as-operator is for root" in denied.stderr
    assert rows(people, chain) == before
    held = people.root.run([COMMAND, "hold", where, "--act-as-operator"])
    assert f"held         {chain.jobs[1]}" in held.stdout
    # What root did with her rights she can undo herself.
    assert f"released     {chain.jobs[1]}" in chain.cli("release")
    people.root.run([COMMAND, "cancel", where, "--yes", "--act-as-operator"])
    verdict = chain.verdict()
    assert verdict is not None
    assert (verdict.verdict, verdict.why) == (Verdict.CANCELLED, "cancelled by an operator")
    assert verdict.by.startswith("root on ")
    assert RunDirectory(chain.run_dir).outcome.stat().st_uid == UIDS["alice"]
    chain.wait_until_gone(seconds=60)


@pytest.mark.slow
def test_nothing_in_a_run_directory_is_others_to_write_whatever_the_umask(people: People) -> None:
    prologue = people.alice.home / "prologue.sh"
    prologue.write_text("export TOKEN=secret\n")
    chain = start(people.carefree, "carefree", shape=PAIR, options=(f"--prologue={prologue}",))
    first, second = chain.jobs
    chain.cli("hold")
    chain.cli("release")
    chain.kill_task_0(first)
    wait_for_ranks(chain, second)
    chain.cli("cancel", "--yes")
    chain.wait_until_gone(seconds=60)
    assert len([*chain.run_dir.rglob("*")]) > 30
    assert open_to_others(chain.run_dir) == []
    run = RunDirectory(chain.run_dir)
    for secret in (run.generation(first).rendezvous, run.generation(second).rendezvous, run.prologue):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600, secret


@pytest.mark.slow
def test_a_run_directory_that_somebody_put_in_place_of_ours_is_not_run(people: People) -> None:
    chain = start(people.alice, "replaced", depth=2)
    moved = chain.run_dir.with_name("moved away")
    victim = read_victim(chain.run_dir)
    chain.run_dir.rename(moved)
    forge(chain.run_dir, victim, owner=UIDS["mallory"], run_directory=str(chain.run_dir))
    for path in (chain.run_dir / "logs", chain.run_dir / "generations"):
        path.chmod(0o777)
    people.root.cancel(f"{chain.jobs[0]}_0")
    log = chain.run_dir / "logs" / f"slurm-{chain.jobs[1]}_0.log"
    wait_for(
        lambda: log.exists() and "belongs to uid 61002" in log.read_text(), 60, "the refusal of the second generation"
    )
    assert not [*(chain.run_dir / "generations").rglob("*.json")]
    assert not (chain.run_dir / "forged-script-ran").exists()


def test_an_interpreter_that_the_user_cannot_reach_is_refused_before_anything_is_queued(people: People) -> None:
    closed = people.mallory.home / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    launcher = replace(TORCHRUN, python=str(closed / "python"))
    with pytest.raises(AssertionError, match=r"give an interpreter that runs here with --python"):
        Chain.submit(people.alice, people.alice.home / "unreachable", launcher, shape=SMALL, target_iteration=9)
    assert not people.root.live_rows()


# A forger


def rows(people: People, chain: Chain) -> list[tuple[int, int | None, str, str]]:
    """The live tasks of a chain, with their states and reasons."""
    live = [row for row in people.root.queue() if row.job in chain.jobs and row.is_live]
    return sorted((row.job, row.task, row.state, _reason(row)) for row in live)


def _reason(row: QueueRow) -> str:
    # Slurm itself changes what it says of a waiting job; a hold it says plainly.
    return row.reason if row.reason.startswith("JobHeld") else ""


def records(run_dir: Path) -> dict[str, bytes]:
    """What decides about a chain, and what would if it were there."""
    run = RunDirectory(run_dir)
    paths = [
        run.manifest,
        run.outcome,
        run.hold,
        *run.submissions.iterdir(),
        *run.generations.glob("*/control/closed.json"),
    ]
    return {str(path): path.read_bytes() for path in paths if path.exists()}


def forgeries(people: People, victim: Victim) -> dict[str, Path]:
    """Run directories of mallory that name alice's jobs, each in another way."""
    own, uid = people.mallory.home, UIDS["mallory"]
    claims: dict[str, dict[str, object]] = {
        "all of alice": {},
        "name of alice, uid of mallory": {"uid": uid},
        "name of mallory": {"user": "mallory", "uid": uid},
        "root": {"user": "root", "uid": 0},
        "claims to be in alice's directory": {"run_directory": victim.manifest.run_directory},
    }
    made = {name: forge(own / name, victim, owner=uid, **claim) for name, claim in claims.items()}
    linked = forge(own / "her manifest", victim, owner=uid)
    (linked / "chain.json").unlink()
    os.link(RunDirectory(Path(victim.manifest.run_directory)).manifest, linked / "chain.json")
    generation = forge(own / "her generation", victim, owner=uid, user="mallory", uid=uid)
    job = victim.generations[0].array_job_id
    (generation / "generations" / str(job)).symlink_to(
        RunDirectory(Path(victim.manifest.run_directory)).generation(job).path
    )
    give(generation, uid)
    return made | {"her manifest": linked, "her generation": generation}


@pytest.mark.slow
def test_a_forged_run_directory_reaches_no_job_under_root_and_under_the_forger(people: People) -> None:
    chain = start(people.alice, "victim", depth=3)
    victim = read_victim(chain.run_dir)
    before, on_record = rows(people, chain), records(chain.run_dir)
    tried = 0
    for name, directory in forgeries(people, victim).items():
        where = f"--run-dir={directory}"
        for user in (people.root, people.mallory):
            operator = ("--act-as-operator",)
            for words in (
                ("cancel", where, "--yes", "--timeout=2"),
                ("cancel", where, "--after-current", "--yes", "--timeout=2"),
                ("hold", where, "--timeout=2"),
                ("release", where, "--timeout=2"),
                ("extend", where, "--by=1"),
                ("exclude", "n1", where, "--timeout=2"),
                ("prune", where, "--yes", "--keep=0"),
            ):
                for flags in ((), operator) if words[0] in OF_AN_OPERATOR else ((),):
                    user.run([COMMAND, *words, *flags], check=False)
                    tried += 1
                    assert rows(people, chain) == before, (name, user.user, words, flags)
            watch(user, "forged", where, *WATCH_EVERYTHING, *operator)
            assert rows(people, chain) == before, (name, user.user, "nvrx-watch")
    assert tried >= 7 * 2 * 11
    assert records(chain.run_dir) == on_record
    assert not [row for row in people.root.live_rows() if row.job not in chain.jobs]


@pytest.mark.slow
def test_what_is_no_file_hangs_no_command_of_root_and_cancels_nothing(people: People) -> None:
    chain = start(people.alice, "planted")
    victim = read_victim(chain.run_dir)
    before = rows(people, chain)
    directory = forge(
        people.mallory.home / "plants", victim, owner=UIDS["mallory"], user="mallory", uid=UIDS["mallory"]
    )
    run = RunDirectory(directory)
    for plant in sorted(PLANTS):
        for path in (run.manifest, run.outcome, run.hold, run.submission_id(1)):
            kept = path.read_bytes() if path.exists() else None
            put_in_place(path, plant)
            done = people.root.run(
                [COMMAND, "cancel", f"--run-dir={directory}", "--yes", "--act-as-operator", "--timeout=1"], check=False
            )
            assert done.returncode in (0, 1), (plant, path.name, done)
            assert "Traceback" not in done.stderr, (plant, path.name, done.stderr)
            assert rows(people, chain) == before, (plant, path.name)
            put_in_place(path, "garbage")
            path.unlink()
            if kept is not None:
                path.write_bytes(kept)
                os.chown(path, UIDS["mallory"], UIDS["mallory"])
            elif path == run.outcome:
                continue
        run.outcome.unlink(missing_ok=True)


@pytest.mark.slow
def test_a_generation_fences_and_closes_nothing_that_a_forged_submission_names(people: People) -> None:
    victim_chain = start(people.alice, "innocent")
    before, on_record = rows(people, victim_chain), records(victim_chain.run_dir)
    forger = start(people.mallory, "forger", depth=2)
    run = RunDirectory(forger.run_dir)
    victim = read_victim(victim_chain.run_dir)
    # Her jobs as earlier submissions of his chain, and her generation in place of one of his.
    for number, known in enumerate(victim.generations, start=1):
        record = json.loads(run.submission_id(1).read_text())
        record |= {"sequence": 100 + number, "array_job_id": known.array_job_id, "submitted_at": known.submitted_at}
        run.submission_id(100 + number).write_text(json.dumps(record))
    hers = RunDirectory(victim_chain.run_dir).generation(victim.generations[0].array_job_id).path
    (run.generations / hers.name).symlink_to(hers)
    give(run.submissions, UIDS["mallory"])
    forger.kill_task_0(forger.jobs[0])
    wait_for(
        lambda: "fenc" in forger.task_log(forger.jobs[1], 0) or "predecessor" in forger.task_log(forger.jobs[1], 0),
        90,
        "the fence of the forger's second generation",
    )
    forger.cli("cancel", "--yes", check=False)
    forger.wait_until_gone(seconds=90)
    assert rows(people, victim_chain) == before
    assert records(victim_chain.run_dir) == on_record


# Hostile text


@pytest.mark.slow
def test_no_text_of_a_name_a_directory_a_variable_or_a_reason_is_evaluated(people: People) -> None:
    hostile = HOSTILE.replace("\n", " ").replace("/", " ")
    run_dir = people.alice.home / hostile
    environ = {"EVIL": HOSTILE, "NVRX_EVIL": HOSTILE, "SBATCH_COMMENT": HOSTILE, "BASH_FUNC_x%%": "() { touch pwned; }"}
    for name in ("n$(touch${IFS}pwned)", "`touch pwned`", "x;touch pwned", "x\ntouch pwned"):
        with pytest.raises(AssertionError, match="reading --name"):
            Chain.submit(people.alice, run_dir, beat(), shape=PAIR, options=(f"--name={name}",))
    chain = Chain.submit(people.alice, run_dir, beat(), shape=PAIR, depth=2, environ=environ)
    first, second = chain.jobs
    wait_for_ranks(chain, first)
    chain.cli("hold", f"--reason={HOSTILE}")
    chain.cli("status")
    chain.cli("release")
    chain.kill_task_0(first)
    wait_for_ranks(chain, second)
    watch(people.alice, "hostile", f"--run-dir={run_dir}", *WATCH_EVERYTHING)
    chain.cli("cancel", "--yes", f"--reason={HOSTILE}")
    chain.wait_until_gone(seconds=60)
    verdict = chain.verdict()
    assert verdict is not None
    assert verdict.why == HOSTILE
    places = (people.alice.home, Path.cwd(), people.root.home, Path("/tmp"), Path("/"))
    assert not [str(path) for place in places for path in place.glob("pwned*")]
    assert not [*people.alice.home.rglob("pwned")]
