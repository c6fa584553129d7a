"""What a wrapper writes down when its launcher has ended: the no-restart verdict first, then how it ended.

The verdict is a file because the code itself does not survive srun's kill-on-bad-exit. Touches: control/, and the
rendezvous port by one connection.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from nvrx_chain.clock import Clock, format_time
from nvrx_chain.errors import ExitCode, NvrxError
from nvrx_chain.generation.board import Board
from nvrx_chain.records import control
from nvrx_chain.records.files import encode_record, write_atomic, write_first

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
WRITE_TRIES = 5
WRITE_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """Writes for one node. `rendezvous` is the host and port whose silence tells a lost host from a failed launcher."""

    board: Board
    clock: Clock
    node: str
    no_restart_exit_code: int
    rendezvous: tuple[str, int]

    def write(self, started_at: str, code: int, *, asked_to_stop: bool) -> None:
        """Write what `code` means. To be called when no process of the launcher is left."""
        directory, stamp = self.board.directory, self.board.identity.stamp()
        if code == self.no_restart_exit_code:
            verdict = control.NoRestart(
                node=self.node,
                exit_code=code,
                cause=f"the launcher on {self.node} exited with {code}",
                written_at=format_time(self.clock.now()),
                **stamp,
            )
            self._insist(lambda: write_first(directory.no_restart, encode_record(verdict)))
        lost = code == ExitCode.HOST_LOST or (code != 0 and not asked_to_stop and not self._host_answers())
        record = control.LauncherExit(
            node=self.node,
            exit_code=code,
            asked_to_stop=asked_to_stop,
            rendezvous_lost=lost,
            started_at=started_at,
            ended_at=format_time(self.clock.now()),
            **stamp,
        )
        path = directory.launcher_exit(self.board.identity.array_task_id, self.node)
        self._insist(lambda: write_atomic(path, encode_record(record)))

    def _insist(self, write: Callable[[], object]) -> None:
        """Try a few times; a file that cannot be written must not change the exit code, the only other witness."""
        never = threading.Event()
        for _ in range(WRITE_TRIES):
            try:
                write()
                return
            except NvrxError as error:
                log.error("%s", error)
            self.clock.wait(never, WRITE_AGAIN_SECONDS)

    def _host_answers(self) -> bool:
        try:
            with socket.create_connection(self.rendezvous, timeout=PROBE_SECONDS):
                return True
        except OSError:
            return False
