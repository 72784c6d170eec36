"""The unread input of a scanner: bytes as they were received, joined only where that helps.

Unfinished input is kept in chunks until there is enough of it for another try, so the cost of a peer that
sends a byte at a time stays linear.  A large read behind an unfinished frame is not copied to be joined with
it: it stays *ahead*, and the frame takes from it the bytes that it lacks.

The scanner is a subclass and uses these fields directly, since every read goes through them.
"""

from __future__ import annotations

_LARGE = 16384  # bytes from which on a read is not copied


class Input:
    """The bytes of one direction that no segment has covered yet.

    line_limit, hold, buffer_limit: in bytes, as in `wire/scanner.py`.
    """

    def __init__(self, line_limit: int, hold: int, buffer_limit: int) -> None:
        self.hold = hold
        self.buffer_limit = buffer_limit
        self._limit = line_limit
        self._dead = False
        self._buf = b""
        self._pos = 0
        self._base = 0  # stream offset of _buf[0]
        self._chunks: list[bytes] = []
        self._chunked = 0
        self._ahead, self._ahead_at = b"", 0
        self._want = 0  # bytes from _pos on that must be there before another try
        self._want_line = False

    @property
    def offset(self) -> int:
        """The stream offset of the first byte that no segment has covered yet."""
        return self._base + self._pos

    @property
    def held(self) -> int:
        """The number of bytes held for later."""
        return len(self._buf) - self._pos + self._chunked + len(self._ahead) - self._ahead_at

    def rest(self) -> bytes:
        """Return and drop the held bytes, an incomplete frame: for EOF."""
        self._join()
        self._take_ahead(len(self._ahead))
        rest = self._buf[self._pos :]
        self._pos = len(self._buf)
        return rest

    def feed(self, data: bytes) -> None:
        """Add bytes as they were received."""
        if self._dead:
            return
        if self._pos == len(self._buf) and not self._chunks and not self._ahead:
            self._base += self._pos
            self._buf, self._pos = bytes(data), 0
            return
        self._take_ahead(len(self._ahead))  # nothing, where `next` was called until it had no more
        self._chunks.append(bytes(data))
        self._chunked += len(data)
        have = len(self._buf) - self._pos + self._chunked
        if self._want_line:
            if b"\n" in data or b"\r" in data or have > self._limit:
                self._join()
        elif have >= self._want or have > max(self.hold, self.buffer_limit):
            self._join()

    def _let_go(self) -> None:
        """Release the buffer after its last frame, so that an idle connection holds none."""
        self._base += self._pos
        self._buf, self._pos = b"", 0

    def _join(self) -> None:
        if not self._chunks:
            return
        if len(self._chunks[-1]) >= _LARGE and not self._ahead:
            self._ahead, self._ahead_at = self._chunks.pop(), 0
        if self._chunks:
            self._base += self._pos
            self._buf = b"".join((self._buf[self._pos :], *self._chunks))
            self._pos = 0
            self._chunks.clear()
        self._chunked = 0
        if self._ahead:
            self._top_up()
        self._want, self._want_line = 0, False

    def _take_ahead(self, size: int) -> None:
        """Append bytes of the read ahead to the unfinished frame."""
        if not self._ahead:
            return
        taken = self._ahead[self._ahead_at : self._ahead_at + size]
        self._base += self._pos
        self._buf, self._pos = self._buf[self._pos :] + taken, 0
        self._ahead_at += len(taken)
        if self._ahead_at >= len(self._ahead):
            self._ahead, self._ahead_at = b"", 0

    def _top_up(self) -> None:
        """Append what the unfinished frame lacks: up to its end if known, else the rest of its line."""
        lack = self._want - (len(self._buf) - self._pos)
        if lack <= 0:
            lack = self._ahead.find(b"\n", self._ahead_at) + 1 - self._ahead_at
        self._take_ahead(lack if lack > 0 else len(self._ahead))

    def _go_ahead(self) -> None:
        """Continue with the read ahead: complete the unfinished frame from it, or start at it."""
        if self._pos == len(self._buf):
            self._base += self._pos
            self._buf, self._pos = self._ahead, self._ahead_at
            self._base -= self._ahead_at
            self._ahead, self._ahead_at = b"", 0
        else:
            self._top_up()
        self._want, self._want_line = 0, False
