"""The comparison of a live client frame with a recorded one.

The fields are compared in this order, and the first that differs is the one that a mismatch names: subject,
queue, reply, headers, body.  Subjects and replies agree after identifier mapping.  Header blocks agree by
meaning: status and the values of each name, in any order and spacing.  Bodies agree by bytes or, where both
are JSON, by value.  Values that look generated are learned (`identifier_map.py`), and `MatchOptions` says
where something else counts.  In JSON that NATS itself defines volatile members do not count, and in that of
the JetStream API a missing member is equal to its zero value.

A user's matchers come first: (subject pattern, function of two bodies).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from natsproxy.capture.filter.scrub import Scrubber
from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import is_api
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.difference import ABSENT, Difference
from natsproxy.replay.conversation.generated_values import are_alike, form_of
from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.json_difference import JsonComparison, counted, parse
from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions, Treatment
from natsproxy.replay.conversation.payload_codecs import Codec
from natsproxy.wire import encode
from natsproxy.wire.awaited import PULL
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op
from natsproxy.wire.parse import frames

_MESSAGE_ID: Final = b"Nats-Msg-Id"
# Members that differ from run to run: times, and names that a client makes up.
_API_VOLATILE: Final = frozenset({"expires", "opt_start_time", "pause_until"})
# A client that polls asks for as much as it lacks, and for as long as it has time.
_PULL_VOLATILE: Final = frozenset({"batch", "expires", "idle_heartbeat", "max_bytes"})
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
_ANSWER: Final = b'{"type":"io.nats.jetstream.api.v1.'
"""The begin of an answer of the JetStream API, which a comparison of two recordings meets."""
_ANSWER_VOLATILE: Final = frozenset(
    {
        "created",
        "ts",
        "time",
        "last_active",
        "first_ts",
        "last_ts",
        "timestamp",
        "mtime",
        "expires",
        "opt_start_time",
        "pause_until",
        "pause_remaining",
        "leader",
        "server_id",
        "cluster",
    }
)
_STATE_OF_CONSUMER: Final = frozenset(
    {
        "ack_floor",
        "delivered",
        "num_pending",
        "num_ack_pending",
        "num_redelivered",
        "num_waiting",
        "push_bound",
    }
)
_STATE_OF_ACCOUNT: Final = frozenset({"memory", "storage", "streams", "consumers", "total", "errors"})
_STATES: Final = {b"consumer": _STATE_OF_CONSUMER, b"account": _STATE_OF_ACCOUNT}
"""The state at the moment of an answer, which changes by itself, or by what others do."""
_NAMED_BY_LIBRARIES: Final = (b"$JS.", b"$O.", b"$SRV.")
"""Subjects with names of consumers, objects' chunks and services that are not the application's."""
_LONGEST_TEXT: Final = 256 << 10  # bytes of a payload that is no JSON, up to which values in it are learned


class Matcher:
    """Compares frames under one map of identifiers, as the options say.

    requests: the subjects of recorded requests, by that of their answers.
    """

    def __init__(
        self,
        identifiers: IdentifierMap,
        options: MatchOptions = DEFAULT,
        requests: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.identifiers = identifiers
        self.options = options
        self._by_subject = "subject" in options.match_on
        self._by_headers = "headers" in options.match_on
        self._treatment = lru_cache(options.header)  # names repeat, and are compared with many patterns
        self._all_bodies = "body" in options.match_on and not options.ignore_bodies
        self._like_subject = options.like_subject if options.like_subjects else lambda subject: None
        self._codec = lru_cache(options.codec) if options.match_as or options.match_command else None
        self._requests = {} if requests is None else requests
        self._scrubber = Scrubber(options.filters) if options.filters else None

    def codec_of(self, subject: bytes) -> Codec | None:
        """Return the codec of the payloads on a subject, or on that of the request that they answer."""
        if self._codec is None:
            return None
        found = self._codec(subject)
        if found is None and (asked := self._asked(subject)):
            found = self._codec(asked)
        return found

    def _asked(self, subject: bytes) -> bytes:
        """Return the subject of the recorded request whose answers have this live subject, "" for none."""
        return self._requests.get(self.identifiers.to_recorded(subject), b"") if self._requests else b""

    def any_subject(self, frame: Frame) -> bool:
        """Return whether a frame may agree with one on another subject."""
        return self._free_subject(frame) or self._like_subject(frame.subject) is not None

    def _free_subject(self, frame: Frame) -> bool:
        """Return whether the subject of a frame need not agree; those of SUBs and of NATS itself have to."""
        return not (self._by_subject or frame.op == Op.SUB or frame.subject.startswith(b"$"))

    def seen(self, live: Frame) -> Frame:
        """Return a live frame as a recording would show it: without filtered values."""
        # Nobody live may have sent the request: only one who answers plays.
        return live if self._scrubber is None else self._scrubber.seen(live, C2S, self._asked(live.subject))

    def counted(self, frame: Frame) -> Frame:
        """Return a publish for people: without what need not agree, and the form of what must be alike."""
        if frame.op not in (Op.PUB, Op.HPUB):
            return frame
        block = headers.parse(frame.headers)
        treated = [(name, value, self.options.header(name)) for name, value in block.pairs]
        pairs = [
            (
                name,
                value if treatment is Treatment.EXACT else form_of(value.decode("latin-1")).encode("latin-1"),
            )
            for name, value, treatment in treated
            if treatment in (Treatment.EXACT, Treatment.LIKE)
        ]
        status = headers.build(pairs, code=block.code, description=block.description)
        made = encode.pub(
            frame.subject,
            b"" if self.options.ignores_body(frame.subject) else self._counted_body(frame),
            reply=frame.reply,
            headers=status if pairs or block.code else b"",
        )
        return next(frames(made, C2S))

    def _counted_body(self, frame: Frame) -> bytes:
        volatile = _volatile(frame.subject, frame.body)
        if volatile is None and not (
            self.codec_of(frame.subject) or self.options.compares_json(frame.subject)
        ):
            return frame.body
        payload, _ = self._payload(frame.subject, frame.body)
        value = payload
        if isinstance(payload, bytes):
            value = parse(payload)
            if value is ABSENT:
                return payload
        return json.dumps(counted(value, self.options, frame.subject, volatile or frozenset())).encode()

    def agree(self, recorded: Frame, live: Frame, *, again: bool = False) -> LearnedPairs | None:
        """Return the pairs of values that two frames of one kind teach; None where they differ.

        again: the live frame repeats one that has matched.
        """
        learned = LearnedPairs(again=again)
        return learned if self.differs(recorded, live, learned) is None else None

    def differs(self, recorded: Frame, live: Frame, new: LearnedPairs) -> Difference | None:
        """Return the first difference of two frames of one kind; None when they agree.

        Pairs of values learned on the way go to `new`; they count only if the frames agree.
        """
        if not self._free_subject(recorded):
            found = self._subjects(recorded.subject, live.subject, new)
            if found is not None:
                return found
        if recorded.op == Op.SUB:
            same = recorded.queue == live.queue
            return None if same else Difference("queue", "queue", recorded.queue, live.queue)
        reply, live_reply = recorded.reply, live.reply
        if bool(reply) != bool(live_reply) or (
            reply and self.identifiers.unify_subject(reply, live_reply, new, reply=True)
        ):
            return Difference("reply", "reply", reply or ABSENT, live_reply or ABSENT)
        found = None
        if self._by_headers and (recorded.header_size or live.header_size):
            found = self._headers(recorded, live, new)
        found = found or self._bodies(recorded, live, new)
        if new.places:
            new.subject = pattern(recorded.subject, live.subject)
        if found is None:
            new.frame = live
        return found

    def _subjects(self, recorded: bytes, live: bytes, new: LearnedPairs) -> Difference | None:
        like = self._like_subject(recorded)
        if like is not None and matches(like, live):
            at = self.identifiers.pair_tokens(recorded, live, new)
        else:
            learn = recorded.startswith(_NAMED_BY_LIBRARIES) or self.options.learns(recorded)
            at = self.identifiers.unify_subject(recorded, live, new, learn=learn)
        if not at:
            return None
        note = self.identifiers.conflict(recorded, live)
        place = f"token {at} of the subject" if b"." in recorded else "subject"
        return Difference("subject", place, recorded, live, note)

    # -- headers

    def _headers(self, recorded: Frame, live: Frame, new: LearnedPairs) -> Difference | None:
        block, live_block = recorded.headers, live.headers
        if _MESSAGE_ID in block and self.options.learns_message_ids(recorded.subject):
            found = self._message_ids(block, live_block, new)
            if found is not None:
                return found
        if self.identifiers.known_agree(block, live_block, new):
            return None
        ours, theirs = headers.parse(block), headers.parse(live_block)
        if ours.code != theirs.code:
            return Difference("headers", "status", ours.code, theirs.code)
        # The order of different names means nothing; that of the values of one name may.
        a, b = _values(ours.pairs), _values(theirs.pairs)
        for name in a | b:
            found = self._header(recorded.subject, name, a.get(name, []), b.get(name, []), new)
            if found is not None:
                return found
        return None

    def _message_ids(self, block: bytes, live_block: bytes, new: LearnedPairs) -> Difference | None:
        """Return a message id that is equal to another one here and not there."""
        ours, theirs = headers.get(block, _MESSAGE_ID), headers.get(live_block, _MESSAGE_ID)
        if ours is None or theirs is None:
            return None
        note = self.identifiers.unify_message_ids(ours, theirs, new)
        return Difference("headers", "header Nats-Msg-Id", ours, theirs, note) if note else None

    def _header(
        self, subject: bytes, name: bytes, ours: list[bytes], theirs: list[bytes], new: LearnedPairs
    ) -> Difference | None:
        treatment = self._treatment(name)
        place = f"header {name.decode('latin-1')}"
        learn = self.options.learns(subject, header=name)
        if len(ours) != len(theirs):
            if treatment in (Treatment.IGNORED, Treatment.UNCHECKED):
                return None
            return Difference("headers", place, b", ".join(ours) or ABSENT, b", ".join(theirs) or ABSENT)
        for a, b in zip(ours, theirs, strict=True):
            like = treatment is Treatment.LIKE
            if treatment is Treatment.EXACT:
                agree = self.identifiers.unify(a, b, new, place, learn=learn)
            elif treatment is Treatment.ANY:
                agree = True
                if learn:
                    new.learn_text(a, b, place)
            else:  # what it carries may still come back, as a trace's identifier does
                agree = not learn or self.identifiers.unify_ignored(a, b, new, place, whole=like)
                agree = agree or treatment is Treatment.UNCHECKED
            if not agree or (like and not are_alike(a.decode("latin-1"), b.decode("latin-1"))):
                return Difference("headers", place, a, b, self.identifiers.conflict(a, b))
        return None

    # -- bodies

    def _bodies(self, recorded: Frame, live: Frame, new: LearnedPairs) -> Difference | None:
        subject = recorded.subject
        ours: Any = recorded.body
        theirs: Any = live.body
        why = ""
        if self._codec is not None:
            ours, theirs, why = self._payloads(recorded, live)
        for pattern, same in self.options.bodies:
            if matches(pattern, subject):
                if not same(recorded.body, live.body):
                    return Difference("body", "body", recorded.body, live.body)
                self._ignored_bodies(subject, ours, theirs, new)  # the function has said that they agree
                return None
        if not self._all_bodies and self.options.ignores_body(subject):
            found = self._ignored_bodies(subject, ours, theirs, new)
            return found if "body" in self.options.match_on else None
        if isinstance(ours, bytes):
            found = self._texts(subject, ours, theirs, new)
        else:
            found = self._json(subject, b"", new).differs(ours, theirs)
        return replace(found, note=why) if found is not None and why else found

    def _payloads(self, recorded: Frame, live: Frame) -> tuple[Any, Any, str]:
        """Return two payloads that can be compared, and why a codec cannot read one of them."""
        ours, why = self._payload(recorded.subject, recorded.body)
        theirs, live_why = self._payload(recorded.subject, live.body)
        if isinstance(ours, bytes) is not isinstance(theirs, bytes):
            ours, theirs = recorded.body, live.body
        return ours, theirs, why or live_why

    def _payload(self, subject: bytes, body: bytes) -> tuple[Any, str]:
        """Return a payload as bytes, JSON or text, or as a value of JSON; and why a codec cannot read it."""
        codec = self.codec_of(subject)
        if codec is None:
            return body, ""
        try:
            return codec.plain(body), ""
        except ValueError as error:
            return body, f"{body[:20]!r} cannot be read as match_as says: {error}"

    def _texts(self, subject: bytes, ours: bytes, theirs: bytes, new: LearnedPairs) -> Difference | None:
        """Compare two payloads that are JSON or text."""
        short = len(ours) <= _LONGEST_TEXT
        if ours == theirs:
            if short and not self.identifiers.same(ours, new):
                return Difference("body", "body", ours, theirs, self.identifiers.conflict(ours, theirs))
            return None
        short = short and len(theirs) <= _LONGEST_TEXT
        if short and self.identifiers.known_agree(ours, theirs, new):
            return None
        values = _values_of(subject, ours, theirs)
        if values is not None:
            return self._json(subject, ours, new).differs(*values)
        learn = self.options.learns(subject, path=())
        if short and self.identifiers.unify(ours, theirs, new, "body", learn=learn):
            return None
        return Difference("body", "body", ours, theirs, self.identifiers.conflict(ours, theirs))

    def _ignored_bodies(self, subject: bytes, ours: Any, theirs: Any, new: LearnedPairs) -> Difference | None:
        """Learn what agrees in payloads that need not agree; return an identifier that contradicts others."""
        if not isinstance(ours, bytes):
            return self._json(subject, b"", new).ignored(ours, theirs)
        values = _values_of(subject, ours, theirs)
        if values is not None:
            return self._json(subject, ours, new).ignored(*values)
        learn = self.options.learns(subject, path=())
        if not learn or max(len(ours), len(theirs)) > _LONGEST_TEXT:
            return None
        if self.identifiers.unify_ignored(ours, theirs, new, "body"):
            return None
        return Difference("body", "body", ours, theirs, self.identifiers.conflict(ours, theirs))

    def _json(self, subject: bytes, body: bytes, new: LearnedPairs) -> JsonComparison:
        volatile = _volatile(subject, body)
        return JsonComparison(
            self.identifiers,
            self.options,
            subject,
            new,
            volatile=volatile or frozenset(),
            defined=volatile is not None,
            zero_is_absent=is_api(subject),
        )


def _values_of(subject: bytes, ours: bytes, theirs: bytes) -> tuple[Any, Any] | None:
    """Return the JSON of two payloads; None where one has none."""
    empty = b"" if _volatile(subject, ours) is None else b"{}"
    a, b = parse(ours or empty), parse(theirs or empty)
    return None if a is ABSENT or b is ABSENT else (a, b)


def _values(pairs: tuple[tuple[bytes, bytes], ...]) -> dict[bytes, list[bytes]]:
    """Return the values of each name, in their order."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def pattern(recorded: bytes, live: bytes) -> str:
    """Return a pattern of two subjects that agree: what was learned in them is `*`."""
    tokens = zip(recorded.split(b"."), live.split(b"."), strict=False)
    return b".".join(a if a == b else b"*" for a, b in tokens).decode(errors="replace")


def _volatile(subject: bytes, body: bytes) -> frozenset[str] | None:
    """Return the fields that do not count in a body defined by NATS, None for an application's body."""
    if is_api(subject):
        return _PULL_VOLATILE if PULL in subject else _API_VOLATILE
    if subject.startswith(b"$O.") and b".M." in subject:
        return _OBJECT_VOLATILE
    if body.startswith(b"{") and b'"io.nats.micro.v1.' in body:
        return _SERVICE_VOLATILE
    if body.startswith(_ANSWER):
        about = body[len(_ANSWER) : len(_ANSWER) + 20].partition(b"_")[0]
        return _ANSWER_VOLATILE | _STATES.get(about, frozenset())
    return None
