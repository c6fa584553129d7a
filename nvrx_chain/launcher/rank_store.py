"""The store in which the ranks of one round meet, in the launcher of group rank 0. Touches: a TCP port.

New for every round: keys of the round before would send ranks to ports that nobody listens on any more, and a store in
rank 0 itself is found by the others only after their first try was refused.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from nvrx_chain.errors import NvrxError

ANSWER_SECONDS = 30.0


class FreePort:
    """A port for a store that rank 0 hosts itself. Another program may take it in between: the round then fails."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("", 0))
            self.port = int(probe.getsockname()[1])


class RankStore:
    """Serves until it is let go."""

    def __init__(self) -> None:
        """Listen on a free port of every interface. Raises NvrxError."""
        try:
            self._store = TCPStore(
                "localhost", 0, None, True, wait_for_workers=False, timeout=timedelta(seconds=ANSWER_SECONDS)
            )
        except RuntimeError as error:
            raise NvrxError("starting the store of the ranks", hint=str(error).splitlines()[0]) from error

    @property
    def port(self) -> int:
        return int(self._store.port)
