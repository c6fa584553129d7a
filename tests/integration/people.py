"""Several users on one sandbox that root started: alice, whose chain it is, and mallory, who is after it.

The users exist in a mount namespace alone, by a user database of its own, in which interpreter and project can be read.
Outside nothing is changed, so nothing has to be taken back. The whole cluster is started in it.

    people.alice.run([...])      # a Cluster: what it runs is run by her
    people.root.run([...])       # by root, as on a login node of that cluster

Touches: one process that keeps the namespace, the sandbox, a directory for each user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nvrx_chain.sandbox import Sandbox
from tests.integration.cluster import Cluster, wait_for
from tests.integration.harness import COMMAND, REPOSITORY

UIDS = {"alice": 61001, "mallory": 61002}
_ENTER_SECONDS = 30.0

# usage: keeper.sh PASSWD GROUP CLOSED_DIRECTORY... -- NEEDED_DIRECTORY...
_KEEPER = """\
set -eu
mount --bind "$1" /etc/passwd
mount --bind "$2" /etc/group
shift 2
hidden=()
while [ "$1" != -- ]; do hidden+=("$1"); shift; done
shift
holder=$(mktemp -d)
mount -t tmpfs tmpfs "$holder"
number=0
for path; do mkdir "$holder/$((++number))"; mount --bind "$path" "$holder/$number"; done
for path in "${hidden[@]}"; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
number=0
for path; do mkdir -p "$path"; mount --bind "$holder/$((++number))" "$path"; done
umount --recursive "$holder"
rmdir "$holder"
echo ready
exec sleep infinity
"""


class Entered(Cluster):
    """The cluster as one user of its machine sees it."""

    def __init__(self, sandbox: Sandbox, keeper: int, user: str, home: Path, umask: str = "022") -> None:
        super().__init__(sandbox)
        self._prefix = ["nsenter", f"--mount=/proc/{keeper}/ns/mnt"]
        self.user, self.home, self._umask = user, home, umask
        if user != "root":
            self.environ |= {"HOME": str(home), "USER": user, "LOGNAME": user}

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        become = []
        if self.user != "root":
            uid = UIDS[self.user]
            become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        shell = ["/bin/sh", "-c", 'umask "$1"; shift; exec "$@"', "sh", self._umask]
        inside = [*self._prefix, f"--wdns={cwd or self.home}", *become, *shell]
        return super().run([*inside, *argv], environ=environ, check=check)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The users, each with a directory of their own. `carefree` is alice with a umask of 000."""

    root: Entered
    alice: Entered
    carefree: Entered
    mallory: Entered


@contextmanager
def living_people(directory: Path, *, nodes: int = 4) -> Iterator[People]:
    """A cluster with its users while the block runs."""
    homes = Path(tempfile.mkdtemp(prefix="nvrx-people-"))
    homes.chmod(0o755)
    try:
        with _keeper(directory) as keeper:
            prefix = ["nsenter", f"--mount=/proc/{keeper}/ns/mnt"]
            place = directory / "slurm"
            up = [
                COMMAND,
                "sandbox",
                "up",
                f"--dir={place}",
                f"--nodes={nodes}",
                "--kill-wait=5",
                "--slurmd-timeout=300",
            ]
            subprocess.run([*prefix, *up], check=True, timeout=60, capture_output=True)
            sandbox = Sandbox.open(place)
            try:
                for user, uid in UIDS.items():
                    (homes / user).mkdir(mode=0o755)
                    os.chown(homes / user, uid, uid)
                yield People(
                    root=Entered(sandbox, keeper, "root", directory),
                    alice=Entered(sandbox, keeper, "alice", homes / "alice"),
                    carefree=Entered(sandbox, keeper, "alice", homes / "alice", umask="000"),
                    mallory=Entered(sandbox, keeper, "mallory", homes / "mallory"),
                )
            finally:
                sandbox.down(grace_seconds=0)
    finally:
        shutil.rmtree(homes)


@contextmanager
def _keeper(directory: Path) -> Iterator[int]:
    """A process in a mount namespace in which the users exist; its pid."""
    databases = []
    for name, line in (("passwd", "{0}:x:{1}:{1}::/nonexistent:/bin/bash"), ("group", "{0}:x:{1}:")):
        path = directory / name
        added = "".join(f"{line.format(user, uid)}\n" for user, uid in UIDS.items())
        path.write_text(Path("/etc", name).read_text() + added)
        path.chmod(0o644)
        databases.append(str(path))
    needed = [path for path in (sys.base_prefix, str(REPOSITORY), sys.prefix) if _closed_above(path)]
    closed = sorted({str(_closed_above(path)) for path in needed})
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", _KEEPER, "keeper", *databases]
    with subprocess.Popen([*argv, *closed, "--", *needed], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", "the namespace of the users was not made"
            wait_for(lambda: _is_apart(process.pid), _ENTER_SECONDS, "a mount namespace of its own")
            yield process.pid
        finally:
            process.kill()


def _closed_above(path: str) -> Path | None:
    """The outermost directory above a path that other users cannot pass."""
    outermost = None
    for parent in Path(path).parents:
        if not parent.stat().st_mode & 0o001:
            outermost = parent
    return outermost


def _is_apart(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
