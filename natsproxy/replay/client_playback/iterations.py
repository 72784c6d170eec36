"""Iterations: the same conversation repeated under other names.

Inboxes and nuids of one iteration must not meet those of the one before: consumers, pull requests and
duplicate windows of it may live on in the server.  So each iteration renames them, as whole tokens: in
subjects, replies and header values, and in the JSON that NATS defines (the JetStream API, metadata of
objects).  Application payloads stay as they are.

A new name has the length and the alphabet of the old one and is a hash of it and of the iteration's number:
all connections and directions agree, and nothing has to be remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from natsproxy.protocol.identifiers import split_nuid
from natsproxy.protocol.jetstream import is_api
from natsproxy.replay.client_playback.batches import Batch, PlainBatch, subjects_of
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.replay.conversation.steps import Step
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op
from natsproxy.wire.parse import frames

_ALPHABET: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WORD: Final = re.compile(rb"[0-9A-Za-z_]{22,}")
_LONG: Final = 16  # shorter names could collide after the hash
_MESSAGES: Final = (Op.PUB, Op.HPUB, Op.MSG, Op.HMSG)


class Iteration:
    """The names of one iteration; number 0 keeps the recorded names."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._nuid = lru_cache(maxsize=10_000)(self._renamed)

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """Yield a conversation under the names of this iteration."""
        if not self._number:
            yield from source
            return
        for batch in source:
            if isinstance(batch, Step):
                yield batch._replace(frame=self.frame(batch.frame, batch.direction))
            # Only a batch with a name in its subjects is taken apart; most have none.
            elif isinstance(batch, PlainBatch) and self._named(batch):
                for n, frame in enumerate(frames(batch.data, C2S)):
                    yield Step(batch.seq + n, batch.conn, batch.t, C2S, self.frame(frame, C2S))
            else:
                yield batch

    def _named(self, plain: PlainBatch) -> bool:
        return any(self.subject(subject) != subject for subject in subjects_of(plain.data))

    def frame(self, frame: Frame, direction: Direction) -> Frame:
        """Return a frame under the names of this iteration."""
        subject, reply = self.subject(frame.subject), self.subject(frame.reply)
        if frame.op == Op.SUB:
            data = encode.sub(subject, frame.sid, frame.queue)
        elif frame.op in _MESSAGES:
            headers = _WORD.sub(self._word, frame.headers)
            body = _WORD.sub(self._word, frame.body) if _is_defined_by_nats(frame) else frame.body
            parts = {"sid": frame.sid, "reply": reply, "headers": headers, "body": body}
            data = encode.message(frame.op, subject, **parts)
        else:
            return frame
        (renamed,) = frames(data, direction)
        return renamed

    def subject(self, subject: bytes) -> bytes:
        """Return a subject, or a pattern, under the names of this iteration."""
        if len(subject) < 22 and not subject.startswith(INBOX):
            return subject
        inbox = subject.startswith(INBOX)
        return b".".join(
            self._inbox(token) if inbox and index else self._token(token)
            for index, token in enumerate(subject.split(b"."))
        )

    def _inbox(self, token: bytes) -> bytes:
        """Return a renamed token behind `_INBOX.`; short tokens there number the requests and stay."""
        return self._nuid(token) if len(token) >= _LONG else token

    def _token(self, token: bytes) -> bytes:
        found = split_nuid(token)
        if found is None:
            return token
        before, nuid, behind = found
        return before + self._nuid(nuid) + behind

    def _word(self, found: re.Match[bytes]) -> bytes:
        return self._token(found[0])

    def _renamed(self, name: bytes) -> bytes:
        digest = blake2b(b"%d " % self._number + name).digest()
        letters = (_ALPHABET[digest[n % len(digest)] % len(_ALPHABET)] for n in range(len(name)))
        return bytes(letters)


def _is_defined_by_nats(frame: Frame) -> bool:
    """Return whether NATS itself defines a body."""
    if is_api(frame.subject) or frame.body.startswith((b'{"type":"io.nats.', b'{"type": "io.nats.')):
        return True
    return frame.subject.startswith(b"$O.") and b".M." in frame.subject
