"""The map between recorded and live identifiers.

Inboxes, nuids and generated names differ from run to run.  They are whole tokens of subjects, replies, header
values and JSON strings of the JetStream API, and they map as whole tokens; application payloads are never
touched.

`unify` compares a recorded subject with a live one.  Two tokens agree when they are equal, when the map says
so, or when both look like identifiers and neither is known yet.  In the last case that pair is learned: by
the caller, when everything else of the frame agrees too.  A recorded identifier may also come back literally,
where the client received it in a recorded answer.

The map is bounded: the pairs used longest ago go first.
"""

from __future__ import annotations

import re
from typing import Final

from natsproxy.protocol.identifiers import EXTENDED

Pairs = dict[bytes, bytes]

_IDENTIFIER: Final = re.compile(
    EXTENDED + rb"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|[0-9a-f]{32}"
)
_IN_TEXT: Final = re.compile(rb"[0-9A-Za-z_-]{22,}")
_WILD: Final = (b"*", b">")
INBOX: Final = b"_INBOX."
LIMIT: Final = 200_000


def is_identifier(token: bytes) -> bool:
    """Tell whether a token looks generated: a nuid, as it is or as clients extend it, or a UUID."""
    return _IDENTIFIER.fullmatch(token) is not None


def masked(subject: bytes) -> bytes:
    """Return `subject` with its identifiers replaced by `*`: equal for subjects that can be unified."""
    if len(subject) < 22 and not subject.startswith(INBOX):
        return subject
    tokens = subject.split(b".")
    inbox = subject.startswith(INBOX)
    return b".".join(b"*" if (inbox and i) or is_identifier(t) else t for i, t in enumerate(tokens))


class IdentifierMap:
    """The map of one playback, recorded to live, one to one."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._live: Pairs = {}
        self._recorded: Pairs = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._live)

    def learn(self, pairs: Pairs) -> None:
        """Add pairs that `unify` found."""
        for recorded, live in pairs.items():
            self._live[recorded] = live
            self._recorded[live] = recorded
        while len(self._live) > self._limit:
            oldest = next(iter(self._live))
            self._recorded.pop(self._live.pop(oldest), None)

    def forget(self, pairs: Pairs) -> None:
        """Remove pairs that turned out to be wrong."""
        for recorded, live in pairs.items():
            if self._live.get(recorded) == live:
                del self._live[recorded]
                self._recorded.pop(live, None)

    def _known(self, token: bytes) -> bytes | None:
        live = self._live.get(token)
        # The order of use matters only when entries may be dropped soon; most maps never come to that.
        if live is not None and len(self._live) * 2 > self._limit:
            del self._live[token]  # moved to the end: it was used last
            self._live[token] = live
        return live

    def unify(self, recorded: bytes, live: bytes, new: Pairs, *, strict: bool = False) -> bool:
        """Tell whether two subjects agree; pairs learned on the way go to `new`.

        strict: learn nothing; only tokens that are equal or known agree.
        """
        ours, theirs = recorded.split(b"."), live.split(b".")
        if len(ours) != len(theirs):
            return False
        inbox = recorded.startswith(INBOX) and live.startswith(INBOX)
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            known = self._known(a) or new.get(a)
            if known is not None:
                if b not in (known, a):  # `a` itself: the client got it in a recorded answer
                    return False
                continue
            if a == b:
                continue
            # One to one: a live identifier that stands for another recorded one cannot stand for this.
            if strict or a in _WILD or b in _WILD or self._recorded.get(b, a) != a:
                return False
            if not ((inbox and index) or (is_identifier(a) and is_identifier(b))):
                return False
            new[a] = b
        return True

    def to_live(self, subject: bytes) -> bytes:
        """Return a recorded subject with its live identifiers; unknown ones are kept."""
        if not self._live or (len(subject) < 22 and not subject.startswith(INBOX)):
            return subject
        return b".".join(self._known(token) or token for token in subject.split(b"."))

    def to_recorded(self, subject: bytes) -> bytes:
        """Return a live subject with its recorded identifiers; unknown ones are kept."""
        if not self._recorded:
            return subject
        return b".".join(self._recorded.get(token, token) for token in subject.split(b"."))

    def keep_literal(self, subject: bytes) -> None:
        """Map the unknown identifiers of a subject to themselves.

        A client that was sent the recorded subject knows them under their recorded names.
        """
        inbox = subject.startswith(INBOX)
        tokens = subject.split(b".")
        self.learn(
            {
                token: token
                for index, token in enumerate(tokens)
                if token not in self._live
                and token not in self._recorded
                and ((inbox and index) or is_identifier(token))
            }
        )

    def text_to_live(self, text: bytes) -> bytes:
        """Return JSON text of the JetStream API with its known identifiers mapped."""
        return _IN_TEXT.sub(lambda found: self._known(found[0]) or found[0], text)

    def text_to_recorded(self, text: bytes) -> bytes:
        """Return live JSON text of the JetStream API with the recorded identifiers."""
        return _IN_TEXT.sub(lambda found: self._recorded.get(found[0], found[0]), text)
