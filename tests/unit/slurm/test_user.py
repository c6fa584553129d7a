"""Whose jobs they are: by the process, never by the environment."""

from __future__ import annotations

import os
import pwd

import pytest

from nvrx_chain.slurm.user import current_user, user_name


def test_a_user_without_a_name_is_known_by_number() -> None:
    nobody_has_it = max(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid < 1_000_000_000) + 1
    assert user_name(nobody_has_it) == str(nobody_has_it)
    assert user_name(0) == "root"


def test_the_environment_does_not_change_who_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "mallory")
    monkeypatch.setenv("LOGNAME", "mallory")
    assert current_user() == (pwd.getpwuid(os.getuid()).pw_name, os.getuid())
