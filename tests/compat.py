"""`make compat`: the hand-off demo on other versions of Slurm, in Debian trees; a section of docs/verification.md.

A tree is made once by debootstrap in out/compat/, from the mirror of this machine's apt and checked by the keys of the
archive; the demo then runs in it with this machine's Python and virtual environments, read-only, and with that tree's
Slurm. Needs root. Touches: out/, docs/verification.md, mounts in a namespace of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nvrx_chain.demo.scenario import DemoReport
from tests.verify import head_commit
from tests.verifypage import write_versions

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "out" / "compat"
STATE = ROOT / "out" / "compat.json"
ENTER = ROOT / "scripts" / "compat-enter.sh"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = ("trixie", "sid")
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "hostname",
    "procps",
    "util-linux",
    # What the interpreter of this machine is linked against.
    "libbz2-1.0",
    "libffi8",
    "liblzma5",
    "libreadline8t64",
    "libsqlite3-0",
    "libssl3t64",
    "zlib1g",
)
TREE_SECONDS = 1800
DEMO_SECONDS = 900

HEADER = """\
The scenario `hand-off` of the demo ([demo.md](demo.md)) inside of Debian trees that have other versions of Slurm: that
version's daemons and programs, this project as it is. Written by `make compat`; Commit is the one that it ran at.
"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the demo went in one tree. `report` None: it said nothing."""

    suite: str
    slurm: str
    commit: str
    report: DemoReport | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, action="append", help="only this tree; may be given several times")
    options = parser.parse_args()
    known = {outcome.suite: outcome for outcome in read_state()}
    wanted = options.suite or SUITES
    for suite in wanted:
        known[suite] = run_suite(suite)
        found = tuple(known[name] for name in SUITES if name in known)
        STATE.write_bytes(msgspec.json.encode(found, enc_hook=str))
        write_versions(render(found))
    failed = [suite for suite in wanted if not is_good(known[suite])]
    print(f"{len(wanted) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def is_good(outcome: Outcome) -> bool:
    return outcome.report is not None and outcome.report.ok


def read_state() -> tuple[Outcome, ...]:
    if not STATE.exists():
        return ()
    return msgspec.json.decode(STATE.read_bytes(), type=tuple[Outcome, ...], dec_hook=_as_kind)


def _as_kind(kind: type, value: object) -> object:
    """A path, which JSON does not know."""
    return kind(value)


def run_suite(suite: str) -> Outcome:
    """Make the tree unless it is there, and play the demo in it."""
    tree = make_tree(suite)
    # What an earlier run left there to look at.
    remove_tree(PLACE / f"{suite}.tmp")
    slurm = enter(suite, tree, ["slurmd", "-V"], 60).stdout.split()[-1]
    print(f"{suite}: Slurm {slurm}", flush=True)
    command = [str(ROOT / ".venv/bin/nvrx-chain"), "demo", "--plain", "--json"]
    command.append(f"--python={ROOT}/.venv-peers/bin/python")
    done = enter(suite, tree, command, DEMO_SECONDS)
    log = PLACE / f"{suite}.log"
    log.write_text(f"{done.stderr}\n{done.stdout}")
    try:
        report = msgspec.json.decode(done.stdout, type=DemoReport, dec_hook=_as_kind)
    except msgspec.DecodeError:
        print(f"{suite}: the demo ended with {done.returncode}:\n{done.stderr[-3000:]}", flush=True)
        report = None
    outcome = Outcome(suite=suite, slurm=slurm, commit=head_commit(), report=report)
    print(f"{suite}: {'passed' if is_good(outcome) else 'FAILED'}, see {log}", flush=True)
    return outcome


def make_tree(suite: str) -> Path:
    """The directory of a tree. What an interrupted call left behind is removed first."""
    tree = PLACE / suite
    complete = PLACE / f"{suite}.complete"
    wanted = " ".join(PACKAGES)
    if complete.exists() and complete.read_text() == wanted and tree.is_dir():
        return tree
    complete.unlink(missing_ok=True)
    remove_tree(tree)
    PLACE.mkdir(parents=True, exist_ok=True)
    print(f"{suite}: making the tree in {tree}", flush=True)
    argv = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", f"--include={','.join(PACKAGES)}"]
    done = run([*argv, suite, str(tree), find_mirror()], TREE_SECONDS)
    if done.returncode != 0:
        raise SystemExit(f"debootstrap of {suite} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    complete.write_text(wanted)
    return tree


def remove_tree(tree: Path) -> None:
    """Remove a tree of ours. Raises SystemExit while anything is mounted below it: that would be removed as well."""
    if not tree.exists():
        return
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted = line.split()[4]
        if mounted == str(tree) or mounted.startswith(f"{tree}/"):
            raise SystemExit(f"{mounted} is mounted: unmount it, then repeat this command")
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(tree)], check=True, timeout=600)


def find_mirror() -> str:
    """The mirror from which this machine's apt takes Debian. Raises SystemExit when apt names none."""
    line = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    for found in run(["apt-get", "indextargets", "--format", line, "Created-By: Packages"], 60).stdout.splitlines():
        origin, label, uri = found.split("|")
        # Its security updates are a part of an archive, and no suite is whole there.
        if origin == label == "Debian":
            return uri
    raise SystemExit("apt knows no mirror of Debian here: apt-get update first")


def enter(suite: str, tree: Path, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command in a tree, in namespaces of its own, which take all of its processes and mounts along."""
    scratch = PLACE / f"{suite}.tmp"
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o1777)
    spaces = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--propagation=private"]
    return run([*spaces, str(ENTER), str(tree), str(scratch), *read_only_directories(), "--", *command], seconds)


def read_only_directories() -> tuple[str, ...]:
    """What of this machine is seen in a tree: the project and its interpreter."""
    base = Path(sys.base_prefix).resolve()
    if base == Path("/usr"):
        raise SystemExit("the interpreter of .venv is that of the distribution, whose /usr would hide the tree's Slurm")
    return (str(ROOT), str(base))


def run(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
    )


def render(outcomes: Sequence[Outcome]) -> str:
    """The section: a row for each version, then each expectation with a column for each version. Pure."""
    lines = [HEADER, "| Slurm | Debian | Commit | Launcher | Demo | Faults and what repaired them | Seconds |"]
    lines.append("|" + "---|" * 7)
    lines += [f"| {' | '.join((one.slurm, one.suite, one.commit, *_course(one.report)))} |" for one in outcomes]
    told = [one for one in outcomes if one.report is not None]
    lines += ["", f"| Expectation | {' | '.join(one.slurm for one in told)} |", "|" + "---|" * (len(told) + 1)]
    names = dict.fromkeys(row.name for one in told if one.report for row in one.report.expectations)
    lines += [f"| {name} | {' | '.join(_state(one, name) for one in told)} |" for name in names]
    return "\n".join(lines)


def _course(report: DemoReport | None) -> tuple[str, ...]:
    if report is None:
        return ("-", "FAILED", "-", "-")
    return (report.launcher, "ok" if report.ok else "FAILED", _repairs(report), f"{report.seconds:.0f}")


def _repairs(report: DemoReport) -> str:
    texts = []
    for repair in report.repairs:
        seconds = "-" if repair.seconds is None else f"{repair.seconds:.1f} s"
        fault = repair.fault.partition(" (")[0]
        texts.append(f"{fault}: {repair.repaired_by}, {seconds}, {repair.steps_lost} steps lost")
    return "; ".join(texts)


def _state(outcome: Outcome, name: str) -> str:
    rows = outcome.report.expectations if outcome.report is not None else ()
    return next((row.state.value for row in rows if row.name == name), "-")


if __name__ == "__main__":
    sys.exit(main())
