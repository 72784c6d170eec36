"""JetStream over the client protocol: the meaning of the subjects, bodies and statuses of its frames.

Each function looks at one frame alone.  A meaning that needs history (a publish ack is a body on the reply
inbox of an earlier PUB) belongs to the session.  There is one table each for API subjects, ack payloads and
statuses.  Names follow nats-server 2.15; an unknown API verb is None rather than an error, since each
version adds some.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from natsproxy.protocol import gojson

_API: Final[dict[bytes, tuple[str, ...]]] = {
    b"INFO": (),
    b"STREAM.CREATE": ("stream",),
    b"STREAM.UPDATE": ("stream",),
    b"STREAM.NAMES": (),
    b"STREAM.LIST": (),
    b"STREAM.INFO": ("stream",),
    b"STREAM.DELETE": ("stream",),
    b"STREAM.PURGE": ("stream",),
    b"STREAM.SNAPSHOT": ("stream",),
    b"STREAM.RESTORE": ("stream",),
    b"STREAM.MSG.GET": ("stream",),
    b"STREAM.MSG.DELETE": ("stream",),
    b"STREAM.PEER.REMOVE": ("stream",),
    b"STREAM.PEER.EVACUATE": ("stream",),
    b"STREAM.LEADER.STEPDOWN": ("stream",),
    b"STREAM.CANCEL_MOVE": ("stream",),
    b"DIRECT.GET": ("stream", "filter"),
    b"CONSUMER.CREATE": ("stream", "consumer", "filter"),
    b"CONSUMER.DURABLE.CREATE": ("stream", "consumer"),
    b"CONSUMER.NAMES": ("stream",),
    b"CONSUMER.LIST": ("stream",),
    b"CONSUMER.INFO": ("stream", "consumer"),
    b"CONSUMER.DELETE": ("stream", "consumer"),
    b"CONSUMER.PAUSE": ("stream", "consumer"),
    b"CONSUMER.UNPIN": ("stream", "consumer"),
    b"CONSUMER.RESET": ("stream", "consumer"),
    b"CONSUMER.MSG.NEXT": ("stream", "consumer"),
    b"CONSUMER.LEADER.STEPDOWN": ("stream", "consumer"),
    b"META.LEADER.STEPDOWN": (),
    b"META.RESCUE": (),
    b"SERVER.REMOVE": (),
    b"SERVER.EVACUATE": (),
    b"ACCOUNT.PURGE": ("account",),
    b"ACCOUNT.STREAM.MOVE": ("account", "stream"),
    b"ACCOUNT.STREAM.CANCEL_MOVE": ("account", "stream"),
}
ACK_PREFIX: Final = b"$JS.ACK."
"""The prefix of the reply subject of a message that needs an ack."""
_LONGEST_VERB: Final = max(verb.count(b".") + 1 for verb in _API)
_OPTIONAL: Final = {b"DIRECT.GET": 1, b"CONSUMER.CREATE": 1}
"""The number of required names, for verbs whose last names are optional.

`CONSUMER.CREATE.<stream>` is the form before 2.9, `DIRECT.GET.<stream>.<subject>` gets the last message.
"""


class ApiForm(NamedTuple):
    """The form of the calls of one verb.  names: that may come after it.  required: how many of them must."""

    verb: bytes
    names: tuple[str, ...]
    required: int


API_FORMS: Final = tuple(
    ApiForm(verb, names, _OPTIONAL.get(verb, len(names))) for verb, names in _API.items()
)
"""The forms of all calls; a last name "filter" takes all tokens that are left."""
API_VERBS: Final = tuple(verb.decode() for verb in _API)
"""The verbs of the API, as in its subjects: "STREAM.CREATE" and so on."""


def api_patterns(verb: str) -> tuple[bytes, ...]:
    """Return the subject patterns of all calls of a verb, in every domain; verb: one of `API_VERBS`."""
    raw = verb.encode()
    ends = [raw] if len(_API[raw]) == _OPTIONAL.get(raw, 0) else []
    ends += [raw + b".>"] if _API[raw] else []
    return tuple(prefix + end for prefix in (b"$JS.API.", b"$JS.*.API.") for end in ends)


class ApiCall(NamedTuple):
    """The parts of an API subject.

    verb: "STREAM.CREATE" and so on.  filter: the last tokens of CONSUMER.CREATE and DIRECT.GET subjects.
    domain: of `$JS.<domain>.API.`.  start: the index of the token at which the names begin.
    """

    verb: bytes
    stream: bytes = b""
    consumer: bytes = b""
    filter: bytes = b""
    account: bytes = b""
    domain: bytes = b""
    start: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of the names behind its verb, in their order; optional ones may be missing."""
        return _API[self.verb]


def is_api(subject: bytes) -> bool:
    """Tell whether a subject is one of the JetStream API: `$JS.API.>` or `$JS.<domain>.API.>`."""
    return subject.startswith(b"$JS.") and api_verb_at(subject.split(b".", 3)) is not None


def api_verb_at(tokens: list[bytes]) -> int | None:
    """Return the index of the first token of an API subject's verb; None for any other subject."""
    if tokens[0] != b"$JS":
        return None
    return next((at + 1 for at in (1, 2) if tokens[at : at + 1] == [b"API"]), None)


def api_verb(subject: bytes) -> bytes:
    """Return the verb of an API subject: a known one, else its first two words; `b""` for other subjects."""
    tokens = subject.split(b".")
    at = api_verb_at(tokens)
    if at is None:
        return b""
    verbs = (b".".join(tokens[at : at + length]) for length in range(_LONGEST_VERB, 0, -1))
    return next((verb for verb in verbs if verb in _API), b".".join(tokens[at : at + 2]))


def parse_api(subject: bytes) -> ApiCall | None:
    """Parse an API subject; None for any other."""
    if not subject.startswith(b"$JS."):
        return None
    tokens = subject.split(b".")
    if tokens[1] == b"API":
        return _parse_verb(tokens, 2, b"")
    if len(tokens) > 3 and tokens[2] == b"API":
        return _parse_verb(tokens, 3, tokens[1])
    return None


def _parse_verb(tokens: list[bytes], at: int, domain: bytes) -> ApiCall | None:
    # The longest verb first: CONSUMER.DURABLE.CREATE before any shorter one that begins alike.
    for length in range(min(_LONGEST_VERB, len(tokens) - at), 0, -1):
        verb = b".".join(tokens[at : at + length])
        names = _API.get(verb)
        if names is None:
            continue
        start = at + length
        given = tokens[start:]
        found = dict(zip(names, given, strict=False))
        if names[-1:] == ("filter",):  # a filter is a subject: it takes all tokens that are left
            found["filter"] = b".".join(given[len(names) - 1 :])
            whole = len(given) >= _OPTIONAL[verb]
        else:
            whole = len(given) == len(names)
        if whole:
            return ApiCall(verb, domain=domain, start=start, **found)
    return None


class AckSubject(NamedTuple):
    """The reply subject of a delivered message (`$JS.ACK...`), v1 with 9 tokens or v2 with 11 and more.

    delivered: 1 at the first delivery.  timestamp: the time of storage, ns since 1970 by the server's clock.
    pending: matching messages not yet delivered then.  domain, account: v2 only (`b""` for `_`).
    """

    stream: bytes
    consumer: bytes
    delivered: int
    stream_seq: int
    consumer_seq: int
    timestamp: int
    pending: int
    domain: bytes = b""
    account: bytes = b""


def parse_ack(subject: bytes) -> AckSubject | None:
    """Parse an ack subject; None for any other subject, and for one with an invalid number."""
    if not subject.startswith(ACK_PREFIX):
        return None
    tokens = subject.split(b".")
    at = ack_names_at(len(tokens))
    # Below 20 digits: any client may publish to $JS.ACK, and Python's integers have no bound.
    if at is None or not all(token.isdigit() and len(token) < 20 for token in tokens[at + 2 : at + 7]):
        return None
    delivered, stream_seq, consumer_seq, timestamp, pending = (
        int(token) for token in tokens[at + 2 : at + 7]
    )
    ack = AckSubject(tokens[at], tokens[at + 1], delivered, stream_seq, consumer_seq, timestamp, pending)
    if at == 2:
        return ack
    return ack._replace(domain=b"" if tokens[2] == b"_" else tokens[2], account=tokens[3])


def keeps_delivery(subject: bytes) -> bool:
    """Tell whether JetStream waits for a publish on this subject: an ack, or a flow-control answer."""
    if not subject.startswith(b"$JS."):
        return False
    flow = subject.startswith(b"$JS.FC.") and flow_names_at(subject.count(b".") + 1) is not None
    return flow or parse_ack(subject) is not None


def ack_names_at(count: int) -> int | None:
    """Return the index of the stream's token in an ack subject of `count` tokens; the consumer is next."""
    return 2 if count == 9 else 4 if count >= 11 else None


def flow_names_at(count: int) -> int | None:
    """Return the same for the subject of an answer to flow control, with and without domain and account."""
    return {5: 2, 7: 4, 8: 4}.get(count)


class AckKind(Enum):
    """The request in a payload on an ack subject."""

    ACK = "ack"
    NAK = "nak"
    PROGRESS = "wpi"
    TERM = "term"
    NEXT = "next"
    NONE = "none"
    """Not an ack; the server answers it all the same."""


_ACK_EXACT: Final = {
    b"": AckKind.ACK,
    b"+ACK": AckKind.ACK,
    b"+OK": AckKind.ACK,
    b"+WPI": AckKind.PROGRESS,
}
# These may have arguments: a delay after -NAK, a reason after +TERM, a pull request after +NXT.
_ACK_PREFIX: Final = {b"-NAK": AckKind.NAK, b"+NXT": AckKind.NEXT, b"+TER": AckKind.TERM}


def ack_kind(body: bytes) -> AckKind:
    """Return the request in an ack payload.  body: the payload without its header block."""
    kind = _ACK_EXACT.get(body)
    if kind is None:
        kind = _ACK_PREFIX.get(body[:4], AckKind.NONE)
        if kind is AckKind.TERM and not body.startswith(b"+TERM"):
            return AckKind.NONE
    return kind


class StatusKind(Enum):
    """The meaning of a status line in a header block."""

    HEARTBEAT = "heartbeat"
    FLOW_CONTROL = "flow_control"
    END = "end_of_batch"
    BAD_REQUEST = "bad_request"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    CONFLICT = "conflict"
    API_LEVEL = "api_level"
    TOO_LARGE = "too_large"
    PIN = "pin"
    TOO_MANY = "too_many"
    SERVER_ERROR = "server_error"
    NO_RESPONDERS = "no_responders"
    OTHER = "other"


_STATUS: Final = {
    b"204": StatusKind.END,
    b"400": StatusKind.BAD_REQUEST,
    b"404": StatusKind.NOT_FOUND,
    b"408": StatusKind.TIMEOUT,
    b"409": StatusKind.CONFLICT,
    b"412": StatusKind.API_LEVEL,
    b"413": StatusKind.TOO_LARGE,
    b"423": StatusKind.PIN,
    b"429": StatusKind.TOO_MANY,
    b"500": StatusKind.SERVER_ERROR,
    b"503": StatusKind.NO_RESPONDERS,
}


def status_kind(code: bytes, description: bytes = b"") -> StatusKind:
    """Return the meaning of a status; the description tells the two kinds of 100 apart, as in clients."""
    if code == b"100":
        if description.startswith(b"Idle"):
            return StatusKind.HEARTBEAT
        if description.startswith(b"Flow"):
            return StatusKind.FLOW_CONTROL
    return _STATUS.get(code, StatusKind.OTHER)


class JetStreamError(NamedTuple):
    """The error of an API response or a publish ack.  err_code: the server's own number, 0 without one."""

    code: int
    err_code: int
    description: str


def api_error(body: bytes) -> JetStreamError | None:
    """Return the error in a JSON body, None without one and for a body that is not a JSON object."""
    return _error(members(body)) if b'"error"' in body else None  # most bodies need no parser


def members(body: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; none for any other body."""
    try:
        read = gojson.loads(body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def asks_flow_control(call: ApiCall, body: bytes) -> bool:
    """Tell whether a call of the API makes a consumer with flow control."""
    if b'"flow_control"' not in body or not call.verb.startswith(b"CONSUMER."):
        return False
    config = members(body).get("config")
    return isinstance(config, dict) and config.get("flow_control") is True


def _error(read: dict[str, Any]) -> JetStreamError | None:
    error = read.get("error")
    if not isinstance(error, dict):
        return None
    code, err_code, text = error.get("code", 0), error.get("err_code", 0), error.get("description", "")
    if type(code) is not int or type(err_code) is not int:
        return None
    return JetStreamError(code, err_code, str(text))


class PublishAck(NamedTuple):
    """JetStream's answer to a publish.  seq: 0 where it was not stored, and `error` says why.

    batch, messages: the name of an atomic batch and its size, `""` and 0 for a single message.
    """

    stream: str
    seq: int
    duplicate: bool = False
    domain: str = ""
    batch: str = ""
    messages: int = 0
    error: JetStreamError | None = None


def publish_ack(body: bytes) -> PublishAck | None:
    """Return the publish ack in a body, an object with `stream` and `seq` or an error; None for others."""
    if not body.startswith(b"{"):
        return None
    read = members(body)
    error = _error(read)
    if error is None and not {"stream", "seq"} <= read.keys():
        return None
    return PublishAck(
        _text(read, "stream"),
        number(read, "seq"),
        read.get("duplicate") is True,
        _text(read, "domain"),
        _text(read, "batch"),
        number(read, "count"),
        error,
    )


class PullRequest(NamedTuple):
    """The body of a CONSUMER.MSG.NEXT or a `+NXT`.  expires, heartbeat: in ns, 0 for none."""

    batch: int = 1
    expires: int = 0
    heartbeat: int = 0
    no_wait: bool = False


def pull_request(body: bytes) -> PullRequest:
    """Return the request in the body of a pull: JSON, or a number of messages; anything else is for one."""
    given = members(body)
    if not given:
        return PullRequest(int(body) if body.isdigit() and len(body) < 10 else 1)
    return PullRequest(
        number(given, "batch") or 1,
        number(given, "expires"),
        number(given, "idle_heartbeat"),
        given.get("no_wait") is True,
    )


def number(given: dict[str, Any], name: str) -> int:
    """Return a member that is a non-negative integer; 0 for anything else."""
    value = given.get(name)
    return max(0, value) if type(value) is int else 0


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""
