"""What the command does before any of its subcommands."""

from __future__ import annotations

import os

import pytest

from nvrx_chain import cli


@pytest.mark.parametrize(("before", "after"), [(0o000, 0o022), (0o002, 0o022), (0o022, 0o022), (0o077, 0o077)])
def test_no_umask_lets_others_write_what_a_command_writes(
    monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    seen = []

    def command(**_options: object) -> None:
        seen.append(os.umask(0))

    monkeypatch.setattr(cli.cli, "main", command)
    own = os.umask(before)
    try:
        cli.main()
    finally:
        os.umask(own)
    assert seen == [after]
