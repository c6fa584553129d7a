"""Lines out of the bytes that one worker writes, however they are cut on the way. Pure.

Only a newline ends a line: a carriage return or U+2028 inside one stays inside. What comes out is whole lines of valid
UTF-8, each with its prefix, for whole chunks at a time: the cost of a line is that of copying it.
"""

from __future__ import annotations

import codecs

LINE_BYTES = 2 << 20
"""A line is cut there, and goes on in the next one: a worker that never ends its line must not fill the memory."""
CUT = b"<CUT>"
NUL = b"<NUL>"


def rank_prefix(rank: int, world: int) -> bytes:
    """The global rank, aligned to the right for the highest one."""
    return f"{rank:>{len(str(world - 1))}}: ".encode()


class LineSplitter:
    """The lines of one stream."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside_character = False
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that are whole now, each with its prefix and its newline."""
        return self._split(self._clean(data, final=False))

    def finish(self) -> bytes:
        """The last line when it had no newline; it gets one. The stream has ended."""
        lines = self._split(self._clean(b"", final=True))
        rest = b"".join(self._held)
        self._hold(b"")
        return lines + (self._prefixed(rest + b"\n") if rest else b"")

    def _clean(self, data: bytes, *, final: bool) -> bytes:
        if b"\0" in data:
            data = data.replace(b"\0", NUL)
        if not self._inside_character and data.isascii():
            return data
        text = self._decoder.decode(data, final)
        self._inside_character = bool(self._decoder.getstate()[0])
        return text.encode()

    def _split(self, clean: bytes) -> bytes:
        self._held.append(clean)
        self._held_bytes += len(clean)
        if self._held_bytes > LINE_BYTES:
            return self._split_bounded()
        end = clean.rfind(b"\n") + 1
        if not end:
            return b""
        self._held[-1] = clean[:end]
        whole = b"".join(self._held)
        self._hold(clean[end:])
        return self._prefixed(whole)

    def _split_bounded(self) -> bytes:
        *lines, rest = b"".join(self._held).split(b"\n")
        done: list[bytes] = []
        for line in lines:
            done += _cut(line)
        *pieces, rest = _cut(rest)
        self._hold(rest)
        done += pieces
        return self._prefixed(b"\n".join(done) + b"\n") if done else b""

    def _hold(self, rest: bytes) -> None:
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)

    def _prefixed(self, lines: bytes) -> bytes:
        if not self._prefix:
            return lines
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"


def _cut(line: bytes) -> list[bytes]:
    """The pieces of a line, none longer than the bound, cut between characters."""
    pieces: list[bytes] = []
    while len(line) > LINE_BYTES:
        end = LINE_BYTES
        while line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end] + CUT)
        line = line[end:]
    return [*pieces, line]
