"""A launcher's own end of the presence connection: it says what it does, and notices when the host is gone.

The connection is the launcher's life for all others: its end, or silence for the liveness time, takes the seat away.
Touches: one TCP connection, a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec

from nvrx_chain.errors import NvrxError, RecordError
from nvrx_chain.launcher.sealed import SealedStream
from nvrx_chain.launcher.talk import (
    Beat,
    Bye,
    Excluded,
    GuestWord,
    Hello,
    HostWord,
    Refused,
    Welcome,
    parse_host_word,
)
from nvrx_chain.launcher.wire import BadLine

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
BEATS_PER_LIVENESS = 5
AGAIN_SECONDS = 1.0
LAST_WORD_SECONDS = 2.0


class HostSilent(NvrxError):
    """The coordinator is gone, or said nothing for the liveness time."""


class Guest:
    """The connection of one launcher. `post` is called in another thread: for what the host says, once for its end."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        hello: Hello,
        post: Callable[[Welcome | Refused | Excluded | HostSilent], None],
        *,
        liveness_seconds: float,
        connect_seconds: float,
    ) -> None:
        self._address = address
        self._secret = secret
        self._hello = hello
        self._post = post
        self._liveness = liveness_seconds
        self._connect_seconds = connect_seconds
        self._loop = asyncio.new_event_loop()
        self._stream: SealedStream | None = None
        self._early: list[GuestWord] | None = []
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        """Connect, in a thread of its own."""
        self._thread.start()

    def say(self, word: GuestWord) -> None:
        """Tell the coordinator. What is said after the connection ended is lost, as its end is news enough."""
        with contextlib.suppress(RuntimeError):  # the loop has ended with the connection
            self._loop.call_soon_threadsafe(self._send, word)

    def leave(self) -> None:
        """Say goodbye and end the connection; waits until that is with the kernel, for a moment at most."""
        self._leaving = True
        self.say(Bye())
        self._thread.join(LAST_WORD_SECONDS)

    def _send(self, word: GuestWord) -> None:
        if self._early is not None and not isinstance(word, Bye):
            # Not taken in yet: an order to end the job must not get lost on the way in.
            self._early.append(word)
            return
        if self._stream is None:
            return
        self._stream.send(msgspec.json.encode(word))
        if isinstance(word, Bye):
            self._stream.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        try:
            why = await self._converse()
        except (BadLine, RecordError, OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"it said nothing for {self._liveness:g} s"
        if not self._leaving:
            self._post(HostSilent("talking to the rendezvous host", hint=why))

    async def _converse(self) -> str:
        deadline = time.monotonic() + self._connect_seconds
        while True:
            self._stream = await self._connect(deadline)
            self._stream.send(msgspec.json.encode(self._hello))
            beating = asyncio.ensure_future(self._beat(self._stream))
            try:
                refused = await self._listen(self._stream)
            finally:
                beating.cancel()
                self._stream.close()
            if refused is None:
                return "it closed the connection"
            if not refused.again or time.monotonic() > deadline:
                self._leaving = True
                self._post(refused)
                return refused.why
            await asyncio.sleep(AGAIN_SECONDS)

    async def _connect(self, deadline: float) -> SealedStream:
        while True:
            try:
                return await SealedStream.open(*self._address, self._secret, within_seconds=CONNECT_SECONDS)
            except (OSError, asyncio.TimeoutError):
                # Also a crowd that all come at once, of which the host takes in some at a time.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.05, 0.3))

    async def _listen(self, stream: SealedStream) -> Refused | None:
        while (line := await stream.receive(self._liveness)) is not None:
            word: HostWord = parse_host_word(line)
            if isinstance(word, Refused):
                return word
            if isinstance(word, Welcome):
                self._flush_early()
            if isinstance(word, Welcome | Excluded):
                self._post(word)
        return None

    def _flush_early(self) -> None:
        early, self._early = self._early, None
        for word in early or ():
            self._send(word)

    async def _beat(self, stream: SealedStream) -> None:
        while True:
            await asyncio.sleep(self._liveness / BEATS_PER_LIVENESS)
            stream.send(msgspec.json.encode(Beat()))
