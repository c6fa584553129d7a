"""Who runs this process, by name. Touches: the user database."""

from __future__ import annotations

import os
import pwd


def own_user_name() -> str:
    """The user's name, or the number where the user database has none: in a container, or while LDAP is away."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
