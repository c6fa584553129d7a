"""Mounts are told by the text of a path."""

from __future__ import annotations

import pytest

from nvrx_watch.reading.mounts import mount_of, mount_points, read_mount_points

TEXT = """\
22 1 8:1 / / rw - ext4 /dev/sda rw
30 22 0:40 / /home rw shared:1 - nfs server:/home rw
31 30 0:41 / /home/my\\040scratch rw - lustre a@tcp:/s rw
short line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/alice/run", "/home"),
        ("/home/my scratch/run", "/home/my scratch"),
        ("/home/my scratch", "/home/my scratch"),
        ("/homes/alice", None),
        ("/tmp/run", None),
        ("relative", None),
    ],
)
def test_the_deepest_mount_holds_a_path(path: str, expected: str | None) -> None:
    assert mount_of(path, mount_points(TEXT)) == expected


def test_this_machine_has_mounts() -> None:
    assert "/proc" in read_mount_points()
