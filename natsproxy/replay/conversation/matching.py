"""The comparison of a live client frame with a recorded one.

The fields are compared in this order, and the first that differs is the one that a mismatch names: subject,
queue, reply, headers, body.  Subjects and replies agree after identifier mapping.  Header blocks agree by
meaning: status and the values of each name, in any order and spacing.  Bodies agree by bytes, except where
NATS itself defines them: there JSON agrees by value, identifiers map and volatile fields do not count.

A user's matchers come first: (subject pattern, function of two bodies).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import is_api
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.identifier_map import IdentifierMap, Pairs
from natsproxy.replay.conversation.match_options import DEFAULT, BodyMatcher, MatchOptions
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

# Members that differ from run to run: times, and names that a client makes up.
_API_VOLATILE: Final = frozenset({"expires", "opt_start_time", "pause_until"})
_OBJECT_VOLATILE: Final = frozenset({"mtime", "nuid"})
_SERVICE_VOLATILE: Final = frozenset(
    {
        "id",
        "started",
        "processing_time",
        "average_processing_time",
        "last_error",
    }
)


class Matcher:
    """Compares frames under one identifier map."""

    def __init__(self, identifiers: IdentifierMap, options: MatchOptions = DEFAULT) -> None:
        self.identifiers = identifiers
        self.options = options

    def differs(self, recorded: Frame, live: Frame, new: Pairs, *, strict: bool = False) -> str:
        """Return the first field in which two frames of one op differ, `""` when they agree.

        Pairs of identifiers learned on the way go to `new`.  strict: the subject may teach no identifier.
        """
        unify = self.identifiers.unify
        if not unify(recorded.subject, live.subject, new, strict=strict):
            return "subject"
        if recorded.op == Op.SUB:
            return "" if recorded.queue == live.queue else "queue"
        if bool(recorded.reply) != bool(live.reply):
            return "reply"
        if recorded.reply and not unify(recorded.reply, live.reply, new):
            return "reply"
        if not self._same_headers(recorded.headers, live.headers, new):
            return "headers"
        return "" if self._same_body(recorded, live, new) else "body"

    def _same_headers(self, recorded: bytes, live: bytes, new: Pairs) -> bool:
        if recorded == live:
            return True
        ours, theirs = headers.parse(recorded), headers.parse(live)
        if ours.code != theirs.code:
            return False
        # The order of different names means nothing; that of the values of one name may.
        names = {name for name, _ in ours.pairs}
        if names != {name for name, _ in theirs.pairs}:
            return False
        return all(
            len(ours.all(name)) == len(theirs.all(name))
            and all(
                self.identifiers.unify(a, b, new)
                for a, b in zip(ours.all(name), theirs.all(name), strict=True)
            )
            for name in names
        )

    def _same_body(self, recorded: Frame, live: Frame, new: Pairs) -> bool:
        ours, theirs = recorded.body, live.body
        for pattern, same in self.options.bodies:
            if matches(pattern, recorded.subject):
                return same(ours, theirs)
        if ours == theirs:
            return True
        volatile = _volatile(recorded.subject, ours)
        if volatile is None:
            return False
        try:
            return self._same_value(json.loads(ours or b"{}"), json.loads(theirs or b"{}"), volatile, new)
        except ValueError:
            return False

    def _same_value(self, ours: Any, theirs: Any, volatile: frozenset[str], new: Pairs) -> bool:
        if isinstance(ours, dict) and isinstance(theirs, dict):
            keys = (ours.keys() | theirs.keys()) - volatile
            return all(
                key in ours and key in theirs and self._same_value(ours[key], theirs[key], volatile, new)
                for key in sorted(keys)
            )
        if isinstance(ours, list) and isinstance(theirs, list):
            return len(ours) == len(theirs) and all(
                self._same_value(a, b, volatile, new) for a, b in zip(ours, theirs, strict=True)
            )
        if isinstance(ours, str) and isinstance(theirs, str):
            return self.identifiers.unify(ours.encode(), theirs.encode(), new)
        return bool(ours == theirs)


def _volatile(subject: bytes, body: bytes) -> frozenset[str] | None:
    """Return the fields that do not count in a body defined by NATS, None for an application's body."""
    if is_api(subject):
        return _API_VOLATILE
    if subject.startswith(b"$O.") and b".M." in subject:
        return _OBJECT_VOLATILE
    if body.startswith(b"{") and b'"io.nats.micro.v1.' in body:
        return _SERVICE_VOLATILE
    return None


def ignoring_json(pointers: Sequence[str]) -> BodyMatcher:
    """Return a body matcher that compares JSON by value without the members at `pointers` (`/ts`, `/a/b`)."""
    paths = [pointer.strip("/").split("/") for pointer in pointers]

    def same(ours: bytes, theirs: bytes) -> bool:
        if ours == theirs:
            return True
        try:
            return bool(_without(json.loads(ours), paths) == _without(json.loads(theirs), paths))
        except ValueError:
            return False

    return same


def _without(value: Any, paths: Sequence[Sequence[str]]) -> Any:
    for path in paths:
        at = value
        for key in path[:-1]:
            at = at.get(key) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at.pop(path[-1], None)
    return value
