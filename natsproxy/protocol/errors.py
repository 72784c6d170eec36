r"""The -ERR catalogue: every text that nats-server sends to a client connection, one row each.

A row has the text, says whether the server closes after it, and names the reaction of two official clients
(`go`, `py`).  Constructors make the texts byte for byte; `classify` parses one.

Quoting is Go's `%q`: `"` and `\` escaped, `\a \b \f \n \r \t \v`, other control bytes and bytes that are not
UTF-8 as `\xNN`, unprintable characters as `\uNNNN`, printable UTF-8 unchanged.  So the text is not always the
bytes of the subject: clients that compare (nats.go) compare with the quoted form.  The set of printable
characters depends on the Unicode version: a character newer than the interpreter's table is quoted `\uNNNN`
here, and the server sends it unquoted.

nats.go and nats.py lower-case the text before they compare, and an unknown text is fatal to them: an invented
-ERR makes a client give up for good.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple


class Reaction(Enum):
    """The reaction of a client to an -ERR."""

    RECONNECT = "reconnects"
    REPORT = "calls the error callback and stays connected"
    AUTH = "waits for the close and reconnects, but gives up when the same error meets it twice"
    CLOSE = "closes for good"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row of the catalogue.

    name: a short stable name (captures, Spark).  text: the exact text, or its constant start where
    subjects follow.  closes: the server closes after it.  go, py: the reaction of nats.go 1.53 and nats.py
    2.16.  sent: False for a text that the server logs but that never reaches the peer.
    """

    name: str
    text: str
    closes: bool
    go: Reaction = Reaction.CLOSE
    py: Reaction = Reaction.CLOSE
    sent: bool = True


_R, _P, _A = Reaction.RECONNECT, Reaction.REPORT, Reaction.AUTH

UNKNOWN_OP: Final = ErrorKind("unknown_op", "Unknown Protocol Operation", True)
AUTHORIZATION: Final = ErrorKind("authorization", "Authorization Violation", True, go=_A)
AUTH_TIMEOUT: Final = ErrorKind("auth_timeout", "Authentication Timeout", True)
USER_EXPIRED: Final = ErrorKind("user_expired", "User Authentication Expired", True, go=_A)
USER_REVOKED: Final = ErrorKind("user_revoked", "User Authentication Revoked", True, go=_A)
ACCOUNT_EXPIRED: Final = ErrorKind("account_expired", "Account Authentication Expired", True, go=_A)
MAX_CONNECTIONS: Final = ErrorKind("max_connections", "maximum connections exceeded", True, go=_R)
MAX_ACCOUNT_CONNECTIONS: Final = ErrorKind(
    "max_account_connections", "maximum account active connections exceeded", True, go=_R
)
# The server keeps the connection; nats.py closes it for good all the same.
MAX_SUBSCRIPTIONS: Final = ErrorKind("max_subscriptions", "maximum subscriptions exceeded", False, go=_P)
MAX_PAYLOAD: Final = ErrorKind("max_payload", "Maximum Payload Violation", True)
MAX_CONTROL_LINE: Final = ErrorKind("max_control_line", "maximum control line exceeded", True)
INVALID_PROTOCOL: Final = ErrorKind("invalid_protocol", "invalid client protocol", True)
NO_RESPONDERS_HEADERS: Final = ErrorKind(
    "no_responders_headers", "no responders requires headers support", True
)
# For pedantic clients only, and the server delivers the message nevertheless.
INVALID_PUBLISH_SUBJECT: Final = ErrorKind("invalid_publish_subject", "Invalid Publish Subject", False)
INVALID_SUBJECT: Final = ErrorKind("invalid_subject", "Invalid Subject", False)
PUBLISH_REPLY_DENIED: Final = ErrorKind(
    "publish_reply_denied", "Permissions Violation for Publish with Reply of ", False, _P, _P
)
PUBLISH_DENIED: Final = ErrorKind("publish_denied", "Permissions Violation for Publish to ", False, _P, _P)
SUBSCRIBE_DENIED: Final = ErrorKind(
    "subscribe_denied", "Permissions Violation for Subscription to ", False, _P, _P
)
TOO_MANY_TOKENS: Final = ErrorKind(
    "too_many_tokens", "Permissions Violation for Subscription to ", False, _P, _P
)
SUBSCRIPTION_REVOKED: Final = ErrorKind(
    "subscription_revoked", "Permissions Violation for Subscription to ", False, _P, _P
)
STALE: Final = ErrorKind("stale", "Stale Connection", True, _R, _R)
THROTTLED: Final = ErrorKind("throttled", "Connection throttling is active. Please try again later.", True)
ACCOUNT_REGISTRATION: Final = ErrorKind("account_registration", "Failed Account Registration", False)
ROUTE_PORT: Final = ErrorKind("route_port", "attempted to connect to route port", True)
LEAFNODE_PORT: Final = ErrorKind("leafnode_port", "attempted to connect to leaf node port", True)
GATEWAY_PORT: Final = ErrorKind("gateway_port", "attempted to connect to gateway port", True)
# Never sent: the server closes without a flush, and the peer sees a plain end of the stream.
TLS_REQUIRED: Final = ErrorKind("tls_required", "Secure Connection - TLS Required", True, sent=False)
OTHER: Final = ErrorKind("other", "", False)
"""A text that is not in the catalogue: both clients close for good."""

CATALOGUE: Final[tuple[ErrorKind, ...]] = (
    UNKNOWN_OP,
    AUTHORIZATION,
    AUTH_TIMEOUT,
    USER_EXPIRED,
    USER_REVOKED,
    ACCOUNT_EXPIRED,
    MAX_CONNECTIONS,
    MAX_ACCOUNT_CONNECTIONS,
    MAX_SUBSCRIPTIONS,
    MAX_PAYLOAD,
    MAX_CONTROL_LINE,
    INVALID_PROTOCOL,
    NO_RESPONDERS_HEADERS,
    INVALID_PUBLISH_SUBJECT,
    INVALID_SUBJECT,
    PUBLISH_DENIED,
    PUBLISH_REPLY_DENIED,
    SUBSCRIBE_DENIED,
    TOO_MANY_TOKENS,
    SUBSCRIPTION_REVOKED,
    STALE,
    THROTTLED,
    ACCOUNT_REGISTRATION,
    ROUTE_PORT,
    LEAFNODE_PORT,
    GATEWAY_PORT,
    TLS_REQUIRED,
)

# The three permission texts go on with a subject: `_PERMISSION` reads those.  A played capture adds a reason.
_FIXED: Final = {kind.text.lower(): kind for kind in CATALOGUE if not kind.text.startswith("Permissions")}
_STRING: Final = r'"((?:[^"\\]|\\.)*)"'
_PERMISSION: Final = re.compile(
    rf"permissions violation for (publish to|publish with reply of|subscription to) {_STRING}"
    rf"(?: using queue {_STRING})?(?: \(sid {_STRING}\))?(, too many tokens)?(?:: .*)?",
    re.IGNORECASE | re.DOTALL,
)


class ServerError(NamedTuple):
    """The parts of an -ERR text.

    subject, queue, sid: the bytes that the text quotes, unquoted; `b""` where it names none.
    """

    kind: ErrorKind
    subject: bytes = b""
    queue: bytes = b""
    sid: bytes = b""


def err_frame(text: str) -> bytes:
    """Return the `-ERR` frame of a text, in single quotes and with CRLF, as the server sends it."""
    return b"-ERR '" + text.encode("utf-8", "surrogateescape") + b"'\r\n"


def err_text(args: bytes) -> str:
    """Return the text of an -ERR's arguments: blanks and single quotes around it removed, as nats.go does."""
    return args.strip(b" \t\r\n").strip(b"'").decode("utf-8", "surrogateescape")


def classify(text: str) -> ServerError:
    """Return the catalogue row of a text, in any letter case, and the names that the text quotes."""
    kind = _FIXED.get(text.lower())
    if kind is not None:
        return ServerError(kind)
    found = _PERMISSION.fullmatch(text)
    if found is None:
        return ServerError(OTHER)
    verb, subject, queue, sid, tokens = found.groups()
    kind = {"publish to": PUBLISH_DENIED, "publish with reply of": PUBLISH_REPLY_DENIED}.get(verb.lower())
    if kind is None:
        kind = TOO_MANY_TOKENS if tokens else SUBSCRIPTION_REVOKED if sid is not None else SUBSCRIBE_DENIED
    return ServerError(kind, unquote(subject), unquote(queue or ""), unquote(sid or ""))


def subject_of(text: str) -> bytes:
    """Return the subject that an -ERR is about; of a text outside the catalogue, its first quoted part."""
    found = classify(text)
    if found.kind is not OTHER:
        return found.subject
    quoted = re.search(_STRING, text)
    return unquote(quoted[1]) if quoted else b""


def publish_denied(subject: bytes) -> str:
    """Return the text for a PUB that permissions refuse; `subject` is the one after the server's mapping."""
    return PUBLISH_DENIED.text + quote(subject)


def publish_reply_denied(reply: bytes) -> str:
    """Return the text for a PUB whose reply subject is a reserved one."""
    return PUBLISH_REPLY_DENIED.text + quote(reply)


def subscribe_denied(subject: bytes, queue: bytes = b"") -> str:
    """Return the text for a SUB that permissions refuse."""
    return SUBSCRIBE_DENIED.text + quote(subject) + (f" using queue {quote(queue)}" if queue else "")


def too_many_tokens(subject: bytes) -> str:
    """Return the text for a SUB with more tokens than `max_sub_tokens`."""
    return f"{TOO_MANY_TOKENS.text}{quote(subject)}, too many tokens"


def subscription_revoked(subject: bytes, sid: bytes, queue: bytes = b"") -> str:
    """Return the text for a live subscription that new permissions took away (queue form: since 2.14.4)."""
    return f"{subscribe_denied(subject, queue)} (sid {quote(sid)})"


_SHORT: Final = {
    7: "\\a",
    8: "\\b",
    12: "\\f",
    10: "\\n",
    13: "\\r",
    9: "\\t",
    11: "\\v",
    34: '\\"',
    92: "\\\\",
}
_UNSHORT: Final = {escape[1]: code for code, escape in _SHORT.items()}
_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


def quote(raw: bytes) -> str:
    r"""Return `raw` as Go's `%q` writes a string: `b'a"\xff'` becomes `"a\"\xff"`."""
    if _PLAIN.fullmatch(raw):
        return f'"{raw.decode("ascii")}"'
    return '"' + "".join(_quote_char(char) for char in raw.decode("utf-8", "surrogateescape")) + '"'


def _quote_char(char: str) -> str:
    code = ord(char)
    if code in _SHORT:
        return _SHORT[code]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as "surrogateescape" decodes it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if code == 0x20 or unicodedata.category(char)[0] in "LMNPS":
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unquote(text: str) -> bytes:
    """Undo `quote` on the text between the double quotes."""
    return _ESCAPE.sub(_unescape, text).encode("utf-8", "surrogateescape")


def _unescape(found: re.Match[str]) -> str:
    byte, short, long, char = found.groups()
    if byte is not None:
        code = int(byte, 16)
        return chr(code) if code < 0x80 else chr(0xDC00 + code)
    if char is not None:
        return chr(_UNSHORT[char]) if char in _UNSHORT else char
    code = int(short or long, 16)
    # Half a surrogate pair, or a number beyond Unicode: Go reads U+FFFD, and Python could not encode it.
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"
