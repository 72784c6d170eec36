"""Advice: the option under which a refused frame would have been accepted.

An option is named only after it was tried on this frame, in the present state of the playback.  None is named
for the JetStream API and inboxes, whose frames client libraries make, nor for a subject with another number
of tokens, which is another subject.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from natsproxy.replay.conversation.difference import Difference
from natsproxy.replay.conversation.exchanges import Key, RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.conversation.identifier_map import INBOX, LearnedPairs
from natsproxy.replay.conversation.match_options import PARTS, MatchOptions, read
from natsproxy.replay.conversation.matching import Matcher, pattern
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.pairing import Pairing
from natsproxy.replay.server_playback.played import POLLS_OF_A_KEY
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_OF_NATS: Final = (b"$JS.", INBOX)
_HEADER: Final = "header "
_MOST: Final = 4  # places that one advice names
# More trials would hold up the other clients.
_TRIED: Final = 2000  # recorded frames
_LARGEST: Final = 64 << 10  # bytes of one


class Advice(NamedTuple):
    """An option and its value, or its values."""

    key: str
    value: str | tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The values as a tuple."""
        return (self.value,) if isinstance(self.value, str) else self.value

    def __str__(self) -> str:
        flag = self.key.replace("_", "-")
        flags = " ".join(f"--{flag} {shlex.quote(one)}" for one in self.values)
        return (
            f"accepted with {self.key}={json.dumps(self.value, ensure_ascii=False)} (marker, TOML) or "
            f"{flags} (pytest: --nats-{flag})"
        )


class Advisor:
    """Tries options.  clients: the live ones, by number.  matcher: has the options in force."""

    def __init__(self, progress: Progress, matcher: Matcher, clients: Mapping[int, Client]) -> None:
        self._progress = progress
        self._matcher = matcher
        self._clients = clients

    def advice(self, client: Client, frame: Frame, near: RecordedExchange, *, used: bool) -> Advice | None:
        """Return the narrowest option that makes a refused frame match a recorded one, None without one."""
        if client.playing is None or frame.subject.startswith(_OF_NATS):
            return None
        seen = self._matcher.seen(frame)
        found = difference_of(self._matcher, near, seen, used=used)
        if found is None and used:
            return self._repeat(client, seen, near)
        if used or max(frame.size, near.frame.size) > _LARGEST:
            return None
        proposals = self._orders(client, near) if found is None else self._proposals(near, seen, found)
        return next((one for one in proposals if self._accepts(one, client, frame)), None)

    def _accepts(self, advice: Advice, client: Client, frame: Frame) -> bool:
        options = _with(self._matcher.options, advice)
        if options == self._matcher.options:
            return False
        matcher = Matcher(self._matcher.identifiers, options)
        if self._count(key_of(frame), any_subject=matcher.any_subject(frame)) > _TRIED:
            return False
        trial = Pairing(self._progress, matcher, self._clients)
        return trial.match(client, frame, self._progress.recording.kind_of(frame)) is not None

    def _count(self, key: Key, *, any_subject: bool) -> int:
        """Count the recorded frames that a trial may look at."""
        queues = (
            queue
            for connection in self._progress.connections.values()
            for other, queue in connection.unused.by_key.items()
            if other == key or (any_subject and other[0] == key[0])
        )
        return sum(map(len, queues))

    # -- options for frames that agree

    def _repeat(self, client: Client, seen: Frame, near: RecordedExchange) -> Advice | None:
        """Return the option under which a frame that was used may come again."""
        options = self._matcher.options
        advice = Advice("repeat", pattern(near.frame.subject, seen.subject))
        may = options.allow_repeats and seen.op is not Op.SUB and near.kind is FrameKind.CHANGE
        if not may or client.playing is None or _with(options, advice) == options:
            return None
        own = (
            one
            for one in reversed(self._progress.recent)
            if one.conn == client.playing.conn and one.key == key_of(seen)
        )
        last = islice(own, POLLS_OF_A_KEY)  # more are not kept
        bare = seen._replace(reply=b"")
        known = (one.frame._replace(reply=b"") for one in last)
        agree = any(self._matcher.agree(one, bare, again=True) is not None for one in known)
        return advice if agree else None

    def _orders(self, client: Client, near: RecordedExchange) -> Iterator[Advice]:
        """Yield the options under which another client may send a frame, or this one before its turn."""
        own = client.playing is not None and near.conn == client.playing.conn
        left = self._matcher.options.match_on - {"order" if own else "client"}
        if left:
            yield Advice("match_on", ",".join(part for part in PARTS if part in left))

    # -- options for frames that differ

    def _proposals(self, near: RecordedExchange, seen: Frame, found: Difference) -> Iterator[Advice]:
        recorded, live = near.frame.subject.split(b"."), seen.subject.split(b".")
        if len(recorded) != len(live):
            return
        subject = pattern(near.frame.subject, seen.subject)
        if found.field == "subject":
            differ = [(a, b) for a, b in zip(recorded, live, strict=True) if a != b]
            if recorded[0] == live[0] and not any(one in (b"*", b">") for pair in differ for one in pair):
                yield Advice("like_subjects", subject)
        elif found.place.startswith(_HEADER):
            for key in ("like_headers", "any_headers", "ignore_headers"):
                yield from self._places(key, _HEADER, "", near, seen, found)
        elif found.place.startswith("/"):
            for key in ("like_json", "any_json", "ignore_json"):
                yield from self._places(key, "", f"{subject} ", near, seen, found)
        elif found.field == "body":
            yield Advice("ignore_bodies", subject)

    def _places(
        self, key: str, drop: str, before: str, near: RecordedExchange, seen: Frame, found: Difference
    ) -> Iterator[Advice]:
        """Yield an option with all the places in which two frames differ, if it makes them agree.

        drop: what a value leaves out of the place.  before: what it begins with.
        """
        values: list[str] = []
        left: Difference | None = found
        while left is not None and left.field == found.field and len(values) < _MOST:
            value = before + left.place.removeprefix(drop)
            if value in values:  # the option does not accept this one
                return
            values.append(value)
            options = _with(self._matcher.options, Advice(key, tuple(values)))
            left = difference_of(Matcher(self._matcher.identifiers, options), near, seen, used=False)
        if left is None:
            yield Advice(key, values[0] if len(values) == 1 else tuple(sorted(values)))


def _with(options: MatchOptions, advice: Advice) -> MatchOptions:
    """Return options with the advice added."""
    typed = read({advice.key: list(advice.values)})[advice.key]
    if isinstance(typed, tuple):
        given = getattr(options, advice.key)
        typed = (*given, *(one for one in typed if one not in given))
    return replace(options, **{advice.key: typed})


def difference_of(
    matcher: Matcher, exchange: RecordedExchange, live: Frame, *, used: bool
) -> Difference | None:
    """Return the first difference of a live frame from a recorded one; it may have been used."""
    recorded = exchange.frame
    if used and recorded.reply and live.reply:
        # Its reply subject belongs to another request by now: that is not the difference to report.
        recorded, live = recorded._replace(reply=b""), live._replace(reply=b"")
    return matcher.differs(recorded, live, LearnedPairs())
