"""Who sees what is written to a path, by the kernel's table of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvrx_chain.submit.mounts import FileSystem, Reach, find_mount, read_file_system

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw
24 22 8:2 / /scratch rw - xfs /dev/sdb rw
25 22 0:40 / /home rw shared:9 master:2 - nfs4 server:/home rw,vers=4.2
26 25 0:41 / /home/alice/my\\040dir rw - tmpfs tmpfs rw
27 22 0:42 / /lustre rw - lustre mgs@tcp:/fs rw
28 22 0:43 / /mnt/over rw - overlay overlay rw
29 22 0:44 / /mnt/twice rw - ext4 /dev/sdc rw
30 22 0:45 / /mnt/twice rw - nfs server:/x rw
31 22 0:46 / /tmp rw - nfs4 server:/tmp rw
32 22 0:47 / /fuse rw - fuse.sshfs host:/ rw
half a line
"""


@pytest.mark.parametrize(
    ("path", "point", "kind", "reach"),
    [
        ("/data/run", "/", "ext4", Reach.LOCAL_DISK),
        ("/var/tmp/run", "/", "ext4", Reach.TEMPORARY),
        ("/tmpfiles/run", "/", "ext4", Reach.LOCAL_DISK),
        ("/dev/shm/run", "/dev/shm", "tmpfs", Reach.TEMPORARY),
        ("/scratch/run", "/scratch", "xfs", Reach.LOCAL_DISK),
        ("/scratchy/run", "/", "ext4", Reach.LOCAL_DISK),
        ("/home/alice/run", "/home", "nfs4", Reach.SHARED),
        ("/home/alice/my dir/run", "/home/alice/my dir", "tmpfs", Reach.TEMPORARY),
        ("/lustre", "/lustre", "lustre", Reach.SHARED),
        ("/mnt/over/run", "/mnt/over", "overlay", Reach.TEMPORARY),
        ("/mnt/twice/run", "/mnt/twice", "nfs", Reach.SHARED),
        ("/tmp/run", "/tmp", "nfs4", Reach.SHARED),
        ("/fuse/run", "/fuse", "fuse.sshfs", Reach.SHARED),
    ],
)
def test_the_innermost_mount_says_who_sees_a_path(path: str, point: str, kind: str, reach: Reach) -> None:
    assert find_mount(TABLE, path) == FileSystem(mount_point=point, kind=kind, reach=reach)


def test_an_empty_table_says_nothing() -> None:
    assert find_mount("", "/data") is None


def test_a_directory_that_is_not_made_yet_is_on_the_file_system_of_its_parent(tmp_path: Path) -> None:
    there = read_file_system(tmp_path)
    assert isinstance(there, FileSystem)
    assert read_file_system(tmp_path / "a" / "b") == there


def test_a_link_is_followed_to_where_the_files_will_be(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    found = read_file_system(tmp_path / "link" / "run")
    assert isinstance(found, FileSystem)
    assert found.mount_point == "/dev/shm"
