"""The choices: publishes that a client library makes rarely, and what the server of the recording denied.

Each row has what must have been used, the libraries that do it (`lang` of CONNECT), the subjects and the
reason.  A subject that the block allows already is no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from natsproxy.permissions.templates import MappedPermission
from natsproxy.permissions.uses import Verb
from natsproxy.protocol.jetstream import parse_api
from natsproxy.protocol.subjects import STAR, TAIL, is_subset

_CREATE: Final = (b"CONSUMER.CREATE", b"CONSUMER.DURABLE.CREATE")
_JAVASCRIPT: Final = ("nats.js", "nats.ws")
_ANY: Final = ()


class PossibleNeed(NamedTuple):
    """A subject that a client may have to publish to, or to subscribe to, and the reason."""

    subject: bytes
    reason: str
    verb: Verb = Verb.PUBLISH
    queue: bytes = b""

    @property
    def place(self) -> MappedPermission:
        """The permission."""
        return MappedPermission(self.verb, self.subject, self.queue)


class _RarePublish(NamedTuple):
    """A rare publish.

    seen: the API verbs after which it comes.  langs: `()` for all libraries.  ordered: of consumers whose
    names are generated; None for all.  subject: `{api}` is `$JS.API` or that of a domain.
    """

    seen: tuple[bytes, ...]
    langs: tuple[str, ...]
    ordered: bool | None
    subject: str
    reason: str


_ROWS: Final = (
    _RarePublish(
        _CREATE,
        (*_JAVASCRIPT, "go"),
        True,
        "{api}.CONSUMER.DELETE.{stream}.{consumer}",
        "an ordered consumer that lost a message deletes its consumer before it makes another",
    ),
    _RarePublish(
        _CREATE,
        (*_JAVASCRIPT, "go"),
        True,
        "{api}.CONSUMER.INFO.{stream}.{consumer}",
        "after missed heartbeats the library asks whether its consumer is still there",
    ),
    _RarePublish(
        (b"CONSUMER.MSG.NEXT",),
        (*_JAVASCRIPT, "go"),
        False,
        "{api}.CONSUMER.INFO.{stream}.{consumer}",
        "after missed heartbeats the library asks whether its consumer is still there",
    ),
    _RarePublish(
        (b"CONSUMER.INFO",),
        ("python3",),
        False,
        "{api}.CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
        "a program that subscribes to a durable consumer which is gone makes it again",
    ),
    _RarePublish(
        (b"CONSUMER.MSG.NEXT",),
        _ANY,
        False,
        "$JS.ACK.{stream}.{consumer}.>",
        "no message of this consumer was acked",
    ),
)
_DENIED: Final = "the server of the recording denied it each time"
_FLOW: Final = "a consumer with flow control asks for an answer only when its client falls behind"
_ACK_WITH_PLACE: Final = (
    "the server writes acks with domain and account hash where its feature flag js_ack_fc_v2 is set"
)
_ACK_PLAIN: Final = "the server writes acks without domain and account hash unless js_ack_fc_v2 is set"


def choices(
    lines: Iterable[MappedPermission],
    langs: set[str],
    flow: Iterable[bytes],
    denied: Iterable[MappedPermission],
) -> list[PossibleNeed]:
    """Return the choices of a client, in the order of their subjects.

    flow: the templates of the API subjects with which it made consumers with flow control.  denied: what
    the server denied each time.
    """
    published = [place.subject for place in lines if place.verb == Verb.PUBLISH]
    found = [*_rare(published, langs), *_flow_control(flow), *_other_acks(published)]
    acked = {_names(subject) for subject in published if subject.startswith(b"$JS.ACK.")}
    kept: dict[bytes, PossibleNeed] = {}
    for one in found:
        of_ack = one.subject.startswith(b"$JS.ACK.") and one.reason not in (_ACK_PLAIN, _ACK_WITH_PLACE)
        if not (of_ack and _names(one.subject) in acked) and not any(
            is_subset(one.subject, subject) for subject in published
        ):
            kept.setdefault(one.subject, one)
    refused = [PossibleNeed(place.subject, _DENIED, place.verb, place.queue) for place in denied]
    return sorted([*kept.values(), *refused], key=attrgetter("place"))


def _rare(published: list[bytes], langs: set[str]) -> Iterator[PossibleNeed]:
    for subject in published:
        call = parse_api(subject)
        if call is None:
            continue
        api = b".".join(subject.split(b".")[: call.start - call.verb.count(b".") - 1]).decode()
        consumer = call.consumer or STAR
        for row in _ROWS:
            if call.verb not in row.seen or (row.langs and not langs.intersection(row.langs)):
                continue
            if row.ordered in (None, consumer == STAR):
                names = {"stream": call.stream.decode(errors="surrogateescape")}
                names["consumer"] = consumer.decode(errors="surrogateescape")
                text = row.subject.format(api=api, **names)
                yield PossibleNeed(text.encode(errors="surrogateescape"), row.reason)


def _flow_control(created: Iterable[bytes]) -> Iterator[PossibleNeed]:
    for subject in created:
        call = parse_api(subject)
        # A line may be wider than any call: a recorded client can publish to `$JS.API.>`, too.
        named = (b"", b"") if call is None else (call.stream, call.consumer)
        names = tuple(STAR if name in (b"", TAIL) else name for name in named)
        yield PossibleNeed(b"$JS.FC.%b.%b.*" % names, _FLOW)


def _names(subject: bytes) -> tuple[bytes, bytes]:
    """Return stream and consumer of the line of an ack."""
    tokens = subject.split(b".")
    return tokens[-3], tokens[-2]


def _other_acks(published: Iterable[bytes]) -> Iterator[PossibleNeed]:
    """Yield each line of an ack in the server's other form."""
    for subject in published:
        if subject.startswith(b"$JS.ACK."):
            stream, consumer = _names(subject)
            if subject.count(b".") > ack_line(stream, consumer).count(b"."):
                yield PossibleNeed(ack_line(stream, consumer), _ACK_PLAIN)
            else:
                yield PossibleNeed(b"$JS.ACK.*.*.%b.%b.>" % (stream, consumer), _ACK_WITH_PLACE)


def ack_line(stream: bytes, consumer: bytes) -> bytes:
    """Return the line of a consumer's acks."""
    return b"$JS.ACK.%b.%b.>" % (stream, consumer)
