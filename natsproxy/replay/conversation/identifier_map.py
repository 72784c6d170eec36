"""The map between recorded and live values: identifiers and times that differ from run to run.

`unify` compares a recorded text with a live one, `unify_subject` does so by tokens.  Two pieces agree when
the map says so, or when both look generated (`generated_values.py`) and neither is known yet.  In the last
case that pair is learned: by the caller, when everything else of the frame agrees too.

Identifiers are one to one: a live identifier that stands for one recorded identifier stands for no other, and
one that was the same in both runs, or that the client got from us, stands for itself.  A recorded
identifier may also come back literally, where the client received it in a recorded answer.  Times are no
pairs: any live time agrees with a recorded one, and the latest is the one that `to_live` puts in.

Members of JSON for which a user vouches may be short, or numbers: their live values come back in members of
the same name alone.  Texts with any value (a token, a signature) are no pairs either: the latest live one
comes back, where the recorded one stands whole.

Where a value is ignored, its equality still counts: an identifier that the recording has twice is one in this
run, and two are two (`unify_ignored`, `unify_message_ids`).  The map remembers which frame had it first.

Tokens that are too short to be known by their looks are kept with the token before them (an inbox's tokens:
`<nuid>.<token>`), so `1` in one inbox is no other `1`.

A payload of the JetStream API may hold a stored message as base64; what is inside is translated too.

The map is bounded: the pairs used longest ago go first.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from natsproxy.printable import printable
from natsproxy.protocol.identifiers import is_generated_consumer
from natsproxy.replay.conversation.generated_values import (
    SHORTEST_WORD,
    Form,
    are_generated,
    common_form,
    decoded,
    is_identifier_like,
    is_time,
    is_word,
    replace,
    split,
    words,
)
from natsproxy.wire.frames import Frame

_RUN: Final = re.compile(rb"[0-9A-Za-z_$+/-][0-9A-Za-z_.:+$/-]{7,}")
"""A part of a text that may hold mapped values, each of them whole (but for times with blanks)."""
_MASKED: Final = re.compile(rb"[0-9A-Za-z_:+-]{13,}")
_EIGHT: Final = re.compile(rb"[0-9A-Za-z]{8}")
_IN_TEXTS: Final = re.compile(rb"(?=.*[0-9])[0-9A-Za-z_:+/-]{8,}")
"""A token that is long enough, and no word of a language, to be known in texts too."""
_DIGEST: Final = b"SHA-256="
"""The first letters of the digest of an object."""
_WILD: Final = (b"*", b">")
_CONSUMERS: Final = b".API.CONSUMER."
_LONG: Final = 16  # letters from which on a token is no other identifier's by chance
_PLACES: Final = 1000
_FIRST: Final = 20_000  # identifiers whose first frame is remembered
_SHOWN: Final = 40  # bytes of the payload of such a frame
_MESSAGE_ID: Final = b"Nats-Msg-Id\0"
"""The prefix of message ids in the map: they may be short, and equal to other texts by chance."""
_KNOWN: Final = Form.IDENTIFIER  # of pieces that are equal or known: they are not learned
_TEXT: Final = re.compile(rb"[^\s\"'\\<>]{8,}")
_WORD_OF_TEXT: Final = re.compile(rb"[0-9A-Za-z_.~+/%-]{8,}={0,2}")
_LONGEST_TOKEN: Final = 8 << 10
_TEXTS: Final = 5000
_MEMBERS: Final = 20_000
_ENTRY: Final = re.compile(r"/[0-9]+(?=/|$)")
SHORTEST: Final = 8
"""No shorter text holds an identifier, an inbox or a time."""
_LONGEST: Final = 256 << 10
_LONGEST_JSON: Final = 1 << 20
STORED: Final = b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response"'
"""The begin of an answer with a stored message."""
_BASE64: Final = re.compile(rb'("(?:data|hdrs)":")([0-9A-Za-z+/]{16,}=*)"')
_MEMBER: Final = re.compile(
    rb'("[^"\\]{0,64}")(\s*:\s*)("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)'  # name, colon, text or number
)
INBOX: Final = b"_INBOX."
LIMIT: Final = 200_000


def masked(subject: bytes) -> bytes:
    """Return `subject` with all that may be generated replaced by `*`: equal for subjects that can agree."""
    if subject.startswith(INBOX):
        return INBOX + b".".join([b"*"] * subject.count(b"."))
    if len(subject) < 13:
        return subject
    if _CONSUMERS in subject:
        subject = b".".join(b"*" if _EIGHT.fullmatch(token) else token for token in subject.split(b"."))
    return _MASKED.sub(b"*", subject)


Member = tuple[bytes, bytes]
"""The name of a JSON member and its value, both as JSON."""


class LearnedValue(NamedTuple):
    """A value that was learned: the place for people, and both values."""

    place: str
    recorded: bytes
    live: bytes

    def __str__(self) -> str:
        return printable(f"{self.place} {short(self.recorded)} -> {short(self.live)}")


class LearnedPairs:
    """The pairs that one comparison finds, until it is known whether the frames agree.

    members: live values of JSON members, by name and recorded value, both as JSON.  texts: those that may be
    any.  subject: a pattern of the frames, for people.  frame: the live one, where the two agree.  again: it
    is a repetition, so ignored values in it are no news and no contradiction.
    """

    __slots__ = ("again", "frame", "live", "members", "places", "recorded", "subject", "texts", "times")

    def __init__(self, *, again: bool = False) -> None:
        self.live: dict[bytes, bytes] = {}
        self.recorded: dict[bytes, bytes] = {}
        self.times: dict[bytes, bytes] = {}
        self.members: dict[Member, bytes] = {}
        self.texts: dict[bytes, bytes] = {}
        self.places: list[LearnedValue] = []
        self.subject = ""
        self.frame: Frame | None = None
        self.again = again

    def learn_time(self, recorded: bytes, live: bytes, place: str) -> None:
        """Note two times."""
        self.times[recorded] = live
        self.places.append(LearnedValue(place, recorded, live))

    def learn_text(self, recorded: bytes, live: bytes, place: str) -> None:
        """Note two texts whose values are free; short ones say nothing about other places."""
        if SHORTEST <= len(recorded) <= _LONGEST_TOKEN and len(live) <= _LONGEST_TOKEN:
            self.texts[recorded] = live
        if recorded != live:
            self.places.append(LearnedValue(place, recorded, live))

    def learn_member(self, name: str, recorded: Any, live: Any) -> None:
        """Note the values of a JSON member, for members of that name."""
        key, before, now = (encoded(json.dumps(one, ensure_ascii=False)) for one in (name, recorded, live))
        if max(len(before), len(now)) <= _LONGEST_TOKEN:
            self.members[key, before] = now

    def add(self, other: LearnedPairs) -> None:
        """Add the pairs of another comparison."""
        self.live |= other.live
        self.recorded |= other.recorded
        self.times |= other.times
        self.members |= other.members
        self.texts |= other.texts
        self.places += other.places

    def copy(self) -> LearnedPairs:
        """Return an independent copy."""
        made = LearnedPairs(again=self.again)
        made.add(self)
        return made


def encoded(text: str) -> bytes:
    """Return a text of JSON as bytes, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def short(identifier: bytes, prefix: bytes = b"") -> str:
    """Return an identifier as people are shown it."""
    text = identifier.removeprefix(prefix).decode(errors="replace")
    return text if len(text) <= 12 or is_time(identifier) else f"{text[:8]}..."


class IdentifierMap:
    """The map of one playback, recorded to live, one to one.

    learned: the first value at each place, for a report (the first thousand places).
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._live: dict[bytes, bytes] = {}
        self._recorded: dict[bytes, bytes] = {}
        self._times: dict[bytes, bytes] = {}
        self._members: dict[Member, bytes] = {}
        self._first: dict[bytes, tuple[bytes, bytes]] = {}  # the live frame that had a recorded identifier
        self._texts: dict[bytes, bytes] = {}
        self._limit = limit
        self.learned: dict[str, LearnedValue] = {}

    def __len__(self) -> int:
        return len(self._live)

    def learn(self, lesson: LearnedPairs) -> None:
        """Add the pairs of a comparison whose frames agree."""
        for place, recorded, live in lesson.places if len(self.learned) < _PLACES else ():
            where = f"{lesson.subject} {place}"
            if where not in self.learned:
                where = _ENTRY.sub("/*", where)
                self.learned.setdefault(where, LearnedValue(where, recorded, live))
        if lesson.frame is not None:
            self._note_first(lesson, lesson.frame)
        if lesson.live or lesson.times or lesson.members or lesson.texts:
            self._times |= lesson.times
            self._texts |= lesson.texts
            self._members |= lesson.members
            self._live |= lesson.live
            self._recorded |= lesson.recorded
            self._bound()

    def _note_first(self, lesson: LearnedPairs, frame: Frame) -> None:
        shown = [one.recorded for one in lesson.places]
        for recorded in (*shown, *(one for one in lesson.live if one.startswith(_MESSAGE_ID))):
            if recorded in lesson.live and recorded not in self._live:
                self._first[recorded] = frame.subject, frame.body[:_SHOWN]
        while len(self._first) > _FIRST:
            del self._first[next(iter(self._first))]

    def _bound(self) -> None:
        while len(self._live) > self._limit:
            oldest = next(iter(self._live))
            self._recorded.pop(self._live.pop(oldest), None)
        while len(self._times) > self._limit:
            del self._times[next(iter(self._times))]
        while len(self._members) > _MEMBERS:
            del self._members[next(iter(self._members))]
        while len(self._texts) > _TEXTS:
            del self._texts[next(iter(self._texts))]

    def forget(self, lesson: LearnedPairs) -> None:
        """Remove pairs that turned out to be wrong."""
        for recorded, live in lesson.live.items():
            if self._live.get(recorded) == live:
                del self._live[recorded]
                self._recorded.pop(live, None)

    def known(self, recorded: bytes) -> bytes | None:
        """Return the live identifier of a recorded one."""
        live = self._live.get(recorded)
        # The order of use matters only when entries may be dropped soon; most maps never come to that.
        if live is not None and len(self._live) * 2 > self._limit:
            del self._live[recorded]  # moved to the end: it was used last
            self._live[recorded] = live
        return live

    def conflict(self, recorded: bytes, live: bytes) -> str:
        """Return a clause about the first pair in two texts that disagrees with the map, `""` without one."""
        pairs = [(recorded, live), *zip(split(recorded)[1::2], split(live)[1::2], strict=False)]
        return next(filter(None, (self._conflict(a, b) for a, b in pairs)), "")

    def _conflict(self, recorded: bytes, live: bytes, prefix: bytes = b"") -> str:
        known, stands_for = self._live.get(prefix + recorded), self._recorded.get(prefix + live)
        if known is not None and known != prefix + live and recorded != live:
            first = self._first_frame(prefix + recorded)
            return f"{short(recorded)} was recorded{first}, where this run sent {short(known, prefix)}"
        if stands_for is not None and stands_for != prefix + recorded:
            first = self._first_frame(stands_for)
            return f"{short(live)} was sent{first}, where {short(stands_for, prefix)} was recorded"
        return ""

    def _first_frame(self, recorded: bytes) -> str:
        if recorded not in self._first:
            return " before"
        subject, body = self._first[recorded]
        return f" before, in PUB {subject.decode(errors='replace')} {body.decode(errors='replace')!r}"

    # -- comparison

    def unify(
        self, recorded: bytes, live: bytes, new: LearnedPairs, place: str, *, learn: bool = True
    ) -> bool:
        """Return whether two texts agree; pairs that are learned on the way go to `new`.

        place: their place, for people.  learn: False lets only what is equal or known agree.
        """
        if recorded == live:
            return self.same(recorded, new)
        if self._texts and self._with_texts(recorded) == live:
            return True
        if is_word(recorded) and is_word(live):  # as nearly all identifiers and times in JSON and in headers
            form = _KNOWN if self.known(recorded) else common_form(recorded, live)
            if form is not None:
                return self._piece(recorded, live, new, place, form if learn else None)
        ours, theirs = split(recorded), split(live)
        if len(ours) > 1 and ours[::2] == theirs[::2]:
            pieces = list(zip(ours[1::2], theirs[1::2], strict=True))
            forms = [_KNOWN if a == b or self.known(a) else common_form(a, b) for a, b in pieces]
            if None not in forms:
                found = zip(pieces, forms, strict=True)
                return all(self._piece(a, b, new, place, form if learn else None) for (a, b), form in found)
        inside, other = decoded(recorded), decoded(live)
        if inside and other:  # the name of an object, which subjects have as base64
            agree = self.unify(inside, other, new, place, learn=learn)
            return agree and self._pair(recorded.rstrip(b"="), live.rstrip(b"="), new)
        # Words with `-`, `_`, `+` and `/` inside are generated as a whole, or not at all.
        recorded, live = (text.removeprefix(_DIGEST).rstrip(b"=") for text in (recorded, live))
        return self._piece(recorded, live, new, place, common_form(recorded, live) if learn else None)

    def unify_ignored(
        self, recorded: bytes, live: bytes, new: LearnedPairs, place: str, *, whole: bool = False
    ) -> bool:
        """Learn the pairs of two texts that need not agree, if they do; return False for a contradiction.

        That is where both look generated, and one of them stands for another value already: the recording has
        a value twice where this run has two, or the other way round.  whole: they may be a pair whatever they
        look like, since a user vouches for their place.
        """
        if len(new.live) > _PLACES:  # a copy for each value has its price
            return True
        identifiers = whole and is_identifier_like(recorded) and is_identifier_like(live)
        if recorded == live and not identifiers:
            return self.same(recorded, new) or new.again
        tried = new.copy()
        agree = self.unify(recorded, live, tried, place)
        may_pair = whole and _RUN.fullmatch(recorded) is not None
        if may_pair and (identifiers if recorded == live else not agree):
            agree = self._pair(recorded, live, tried := new.copy(), place)
        if agree:
            new.add(tried)
        return agree or new.again or not ((may_pair and identifiers) or are_generated(recorded, live))

    def unify_message_ids(self, recorded: bytes, live: bytes, new: LearnedPairs) -> str:
        """Learn the pair of two `Nats-Msg-Id`; return a clause about the contradiction, `""` without one.

        Whatever they look like: they tell the server which messages are the same.
        """
        if not new.again:
            self._pair(_MESSAGE_ID + recorded, _MESSAGE_ID + live, new)
        return "" if new.again else self._conflict(recorded, live, _MESSAGE_ID)

    def known_agree(self, recorded: bytes, live: bytes, new: LearnedPairs) -> bool:
        """Return whether two texts differ in known identifiers only; the others stand for themselves."""
        if recorded == live:
            return self.same(recorded, new)
        found = words(live)
        unknown = [word for word in found if word not in self._recorded]
        if len(unknown) == len(found) or replace(live, self._recorded) != recorded:
            return False
        return all(self._same(word, new) for word in unknown)

    def same(self, text: bytes, new: LearnedPairs) -> bool:
        """Return whether a text that both frames have agrees: no identifier in it stands for another one."""
        return all(self._same(word, new) for word in words(text)) if len(text) >= SHORTEST_WORD else True

    def _same(self, word: bytes, new: LearnedPairs) -> bool:
        if self._live.get(word) is not None or word in new.live:
            return True  # as itself, or the client got the recorded one in an answer
        return self._pair(word, word, new)

    def _piece(self, recorded: bytes, live: bytes, new: LearnedPairs, place: str, form: Form | None) -> bool:
        if recorded == live:
            return is_time(recorded) or self._same(recorded, new)
        known = self.known(recorded) or new.live.get(recorded)
        if known is not None:
            return known == live
        if form is Form.TIME:
            new.learn_time(recorded, live, place)
            return True
        return form is Form.IDENTIFIER and self._pair(recorded, live, new, place)

    def _pair(self, recorded: bytes, live: bytes, new: LearnedPairs, place: str = "") -> bool:
        """Learn a pair, unless one of the two is a part of another one."""
        known = self.known(recorded) or new.live.get(recorded)
        if known is not None:
            return live in (known, recorded)
        if (self._recorded.get(live) or new.recorded.get(live, recorded)) != recorded:
            return False
        new.live[recorded], new.recorded[live] = live, recorded
        if place and recorded != live:
            new.places.append(LearnedValue(place, recorded, live))
        return True

    def unify_subject(
        self, recorded: bytes, live: bytes, new: LearnedPairs, *, learn: bool = True, reply: bool = False
    ) -> int:
        """Return 0 if two subjects agree, else the number of the first token that does not.

        All tokens of an inbox are generated, whatever `learn` says.  reply: so is one behind an identifier.
        """
        if recorded.startswith(INBOX) and live.startswith(INBOX):
            return self._unify_inboxes(recorded, live, new)
        if recorded == live and self.same(recorded, new):
            return 0
        ours, theirs = recorded.split(b"."), live.split(b".")
        consumers = _CONSUMERS in recorded
        place = "" if recorded.startswith((b"$JS.", INBOX)) or reply else "token %d of the subject"
        for at, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a in _WILD or b in _WILD:
                agree = a == b
            elif a != b and at and self._behind_identifier(ours, theirs, at, reply):
                agree = self._pair(*_keys(ours, theirs, at), new)
            elif consumers and a != b and _EIGHT.fullmatch(a) and _EIGHT.fullmatch(b):
                agree = (is_generated_consumer(a) or is_generated_consumer(b)) and self._pair(a, b, new)
            else:
                data = a == b and len(a) < _LONG
                agree = data or self.unify(a, b, new, place and place % (at + 1), learn=learn)
            if not agree:
                return at + 1
        return 0 if len(ours) == len(theirs) else min(len(ours), len(theirs)) + 1

    def pair_tokens(self, recorded: bytes, live: bytes, new: LearnedPairs) -> int:
        """Compare subjects as `unify_subject` does, where a user allows any pair of tokens."""
        ours, theirs = recorded.split(b"."), live.split(b".")
        for at, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a == b:
                agree = len(a) < _LONG or self.same(a, new)
            else:
                known = _IN_TEXTS.fullmatch(a) and _IN_TEXTS.fullmatch(b)
                pair = (a, b) if known or not at else _keys(ours, theirs, at)
                agree = self._pair(*pair, new, f"token {at + 1} of the subject")
            if not agree:
                return at + 1
        return 0 if len(ours) == len(theirs) else min(len(ours), len(theirs)) + 1

    def _unify_inboxes(self, recorded: bytes, live: bytes, new: LearnedPairs) -> int:
        if self._live.get(recorded) == live:
            return 0
        ours, theirs = recorded.split(b"."), live.split(b".")
        for at in range(1, min(len(ours), len(theirs))):
            a, b = ours[at], theirs[at]
            if len(a) >= _LONG and self.known(a) == b:  # nearly always: a client has one inbox
                continue
            wild = a in _WILD or b in _WILD
            if not (a == b if wild else self._pair(*_keys(ours, theirs, at), new)):
                return at + 1
        if len(ours) != len(theirs):
            return min(len(ours), len(theirs)) + 1
        if ours[-1] not in _WILD:
            new.live[recorded], new.recorded[live] = live, recorded
        return 0

    def _behind_identifier(self, ours: list[bytes], theirs: list[bytes], at: int, reply: bool) -> bool:
        """Return whether a token belongs to the identifier before it: in a reply, or known as its part."""
        key = _keys(ours, theirs, at)[0]
        return key in self._live or (reply and len(ours[at - 1]) >= _LONG and ours[at - 1] != theirs[at - 1])

    # -- translation

    def to_live(self, text: bytes) -> bytes:
        """Return a recorded subject or text with the live values in it; unknown ones are kept."""
        found = self._live.get(text)
        if found is not None:
            return found
        if self._texts:
            text = self._with_texts(text)
        if not (self._live or self._times):
            return text
        return _RUN.sub(lambda run: translated(run[0], self._live, self._times), text)

    def _with_texts(self, text: bytes) -> bytes:
        texts = self._texts

        def live(found: re.Match[bytes]) -> bytes:
            name, sign, value = found[0].partition(b"=")  # `token=...`
            if found[0] in texts or value in texts:
                return texts.get(found[0]) or name + sign + texts[value]
            return _WORD_OF_TEXT.sub(lambda word: texts.get(word[0], word[0]), found[0])

        return texts.get(text) or _TEXT.sub(live, text)

    def live_members(self, text: bytes) -> bytes:
        """Return recorded JSON with the live values of the members for which a user vouches."""
        return with_members(text, self._members) if self._members else text

    def live_member(self, name: str, value: Any) -> Any:
        """Return the live value of a member for which a user vouches, any other one as it is."""
        if not self._members:
            return value
        key, before = (encoded(json.dumps(one, ensure_ascii=False)) for one in (name, value))
        found = self._members.get((key, before))
        return value if found is None else json.loads(found)

    def knows(self, live: bytes) -> bool:
        """Return whether a live text is or has in it an identifier that is known, and long enough to show."""
        return live in self._recorded or any(word in self._recorded for word in words(live))

    def to_recorded(self, text: bytes) -> bytes:
        """Return a live subject or text with the recorded values in it; unknown ones are kept."""
        found = self._recorded.get(text)
        if found is not None or not self._recorded:
            return found or text
        return _RUN.sub(lambda run: translated(run[0], self._recorded, {}), text)

    def keep_literal(self, text: bytes) -> None:
        """Map the unknown identifiers of a subject or a text to themselves.

        A client that was sent the recorded text knows them under their recorded names.
        """
        if text in self._live or text in self._recorded:
            return
        if text.startswith(INBOX):
            tokens = text.split(b".")
            found = [_keys(tokens, tokens, at)[0] for at in range(1, len(tokens))]
        else:
            found = words(text)
        for word in found:
            if word not in self._live and word not in self._recorded:
                self._live[word] = self._recorded[word] = word
        self._bound()


def _keys(ours: list[bytes], theirs: list[bytes], at: int) -> tuple[bytes, bytes]:
    """Return the keys of two tokens in the map."""
    a, b = ours[at], theirs[at]
    if len(a) >= _LONG and len(b) >= _LONG:
        return a, b
    return ours[at - 1] + b"." + a, theirs[at - 1] + b"." + b


def live_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a subject, a header block or a payload as a client is sent it; it knows the names in it then.

    Large payloads that are no JSON stay as they are.
    """

    known = identifiers.known(text)
    if known is not None:
        return known

    def translate(part: bytes) -> bytes:
        live = identifiers.live_members(identifiers.to_live(part))
        identifiers.keep_literal(live)
        return live

    return _translated(text, translate)


def recorded_text(identifiers: IdentifierMap, text: bytes) -> bytes:
    """Return a live subject, header block or payload with the recorded identifiers."""
    return _translated(text, identifiers.to_recorded)


def _translated(text: bytes, translate: Callable[[bytes], bytes]) -> bytes:
    if len(text) > (_LONGEST_JSON if text[:1] in (b"{", b"[") else _LONGEST):
        return text
    if text.startswith(STORED):
        text = _BASE64.sub(lambda found: found[1] + _inside(found[2], translate) + b'"', text)
    return translate(text)


def _inside(word: bytes, translate: Callable[[bytes], bytes]) -> bytes:
    try:
        inside = base64.b64decode(word, validate=True)
    except ValueError:
        return word
    return base64.b64encode(_translated(inside, translate))


def with_members(text: bytes, members: Mapping[Member, bytes]) -> bytes:
    """Return JSON with other values in the members that `members` has."""

    def other(found: re.Match[bytes]) -> bytes:
        value = members.get((found[1], found[3]))
        return found[0] if value is None else found[1] + found[2] + value

    return _MEMBER.sub(other, text)


def translated(run: bytes, table: Mapping[bytes, bytes], times: Mapping[bytes, bytes]) -> bytes:
    """Return a part of a text, without blanks, with the values of two tables: of identifiers and of times."""
    found = table.get(run) or times.get(run)
    if found is not None:
        return found
    if b"." not in run and b"/" not in run:
        text = replace(run, table)
        return replace(text, times) if times else text
    made: list[bytes] = []
    before = b""
    for token in run.split(b"."):
        found = table.get(token)
        if found is None and before:
            found = table.get(before + b"." + token)
            found = found and found.rpartition(b".")[2]
        made.append(found or b"/".join(table.get(part) or replace(part, table) for part in token.split(b"/")))
        before = token
    text = b".".join(made)
    return replace(text, times) if times else text
