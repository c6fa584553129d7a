"""A user without an entry in the user database still has something to be called."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from nvrx_chain.userids import own_user_name

NOBODY = 54321
"""No user database has it."""


def test_a_user_has_the_name_of_the_user_database() -> None:
    assert own_user_name() == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_one_whom_the_database_does_not_know_is_a_number() -> None:
    code = f"import nvrx_chain.userids, os; os.seteuid({NOBODY}); print(nvrx_chain.userids.own_user_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(NOBODY)
