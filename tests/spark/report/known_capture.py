"""A capture for the report: a bit of everything, with answers that are known, and names that are hostile.

The expected values of the report stand beside the frames that make them, as constants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from natsproxy.capture.format.records import CloseRecord, FiringRecord, Frames, GapRecord, OpenRecord
from natsproxy.wire.ops import C2S, S2C, Op
from tests.kit.captures import MONO, Scribe, write

MS = 1_000_000
SECOND = 1_000 * MS
EVIL = "</script><img/src=x/onerror=document.title='owned'>"
"""A legal NATS subject: it has no space in it."""
REQUESTS = 60
"""To `svc.<letter>`, the n-th is answered after n ms, of which the responder needs n - 1."""
UNANSWERED = 3
NAKS, REDELIVERED, ACKS, IGNORED = 2, 2, 6, 1
DENIED = 4
DROPPED = 5
EVENTS = 200
"""Published to `EVIL`, each delivered to one client."""
SPAN = 70 * SECOND
CLIENT, SERVICE, VICTIM = 1, 2, 3
ENDS = {"client-closed": 2, "rule": 1}
API_ERROR = "stream not found"


class Conversation(Scribe):
    """The capture, part by part."""

    def greet(self) -> None:
        """Three clients connect."""
        for conn, name in ((CLIENT, "client"), (SERVICE, "service"), (VICTIM, EVIL)):
            self.items.append(OpenRecord(conn, MONO, {"client": f"10.0.0.{conn}:1"}))
            self.frame(0, conn, C2S, b'CONNECT {"name":"%s","lang":"go","version":"1"}\r\n' % name.encode())
        self.frame(MS, SERVICE, C2S, b"SUB svc.* 1\r\n")

    def ask(self) -> None:
        """Requests: answered one each second, unanswered, met by nobody."""
        for number in range(1, REQUESTS + 1):
            t, reply = number * SECOND, b"_INBOX.x.%d" % number
            subject = b"svc.a" if number % 3 else b"svc.b"
            self.frame(t, CLIENT, C2S, b"PUB %s %s 1\r\nq\r\n" % (subject, reply))
            self.frame(t + MS // 2, SERVICE, S2C, b"MSG %s 1 %s 1\r\nq\r\n" % (subject, reply))
            self.frame(t + number * MS - MS // 2, SERVICE, C2S, b"PUB %s 1\r\na\r\n" % reply)
            self.frame(t + number * MS, CLIENT, S2C, b"MSG %s 9 1\r\na\r\n" % reply)
        for number in range(UNANSWERED):
            self.frame(62 * SECOND, CLIENT, C2S, b"PUB svc.a _INBOX.y.%d 1\r\nq\r\n" % number)
        self.frame(63 * SECOND, CLIENT, C2S, b"PUB nobody _INBOX.x.z 0\r\n\r\n")
        none = b"NATS/1.0 503\r\n\r\n"
        self.frame(63 * SECOND + MS, CLIENT, S2C, b"HMSG _INBOX.x.z 9 16 16\r\n%s\r\n" % none)

    def deliver(self) -> None:
        """JetStream: deliveries that are acknowledged, refused, made again, ignored; a call that fails."""
        for number in range(ACKS + NAKS + REDELIVERED):
            t, again = (30 + number) * SECOND, number >= ACKS + NAKS
            ack = b"$JS.ACK.S.C.%d.%d.%d.1767225600000000000.0" % (1 + again, number, number)
            self.frame(t, CLIENT, S2C, b"MSG s.a 8 %s 0\r\n\r\n" % ack)
            answer = b"-NAK" if ACKS <= number < ACKS + NAKS else b"+ACK"
            self.frame(t + 2 * MS, CLIENT, C2S, b"PUB %s 4\r\n%s\r\n" % (ack, answer))
        self.frame(44 * SECOND, CLIENT, S2C, b"MSG s.a 8 $JS.ACK.S.C.1.99.99.1767225600000000000.0 0\r\n\r\n")
        body = b'{"type":"x","error":{"code":404,"err_code":10059,"description":"%s"}}' % API_ERROR.encode()
        self.frame(45 * SECOND, CLIENT, C2S, b"PUB $JS.API.STREAM.INFO.NONE _INBOX.x.api 0\r\n\r\n")
        self.frame(45 * SECOND + MS, CLIENT, S2C, b"MSG _INBOX.x.api 9 %d\r\n%s\r\n" % (len(body), body))

    def spread(self) -> None:
        """Events on a hostile subject, and dropped ones."""
        for number in range(EVENTS):
            t = 10 * SECOND + number * 100 * MS
            self.frame(t, VICTIM, C2S, b"PUB %s 3\r\n%03d\r\n" % (EVIL.encode(), number))
            self.frame(t + MS, CLIENT, S2C, b"MSG %s 7 3\r\n%03d\r\n" % (EVIL.encode(), number))
        for number in range(DROPPED):
            self.frame((20 + number) * SECOND, VICTIM, C2S, b"PUB lost 1\r\nx\r\n", cause="lossy")
            self.fire(20 + number, VICTIM, "lossy", "drop", "lost")

    def deny(self) -> None:
        """Publishes that a rule answers with an error; the last ends the connection."""
        refusal = b"-ERR 'Permissions Violation for Publish to \"%s\"'\r\n" % EVIL.encode()
        for number in range(DENIED):
            t = (50 + number) * SECOND
            self.frame(t, VICTIM, C2S, b"PUB %s 1\r\nx\r\n" % EVIL.encode(), cause=EVIL)
            self.fire(50 + number, VICTIM, EVIL, "error", EVIL)
            made = (VICTIM, S2C, refusal, 1, 1 << Op.ERR, None, None, number, MONO + t + MS, "rule")
            self.items.append(Frames(*made))

    def fire(self, second: int, conn: int, rule: str, kind: str, subject: str) -> None:
        """Add a firing."""
        info: dict[str, Any] = {"rule": rule, "kind": kind, "action": kind, "subject": subject, "delay": 0}
        info |= {"direction": "c2s", "m": second, "ordinal": 1_000_000}
        self.items.append(FiringRecord(conn, MONO + second * SECOND, info))

    def leave(self) -> None:
        """A gap, and the ends of connections."""
        self.items.append(GapRecord(None, MONO + 65 * SECOND, {"reason": EVIL, "frames": 3, "bytes": 99}))
        for conn in (CLIENT, SERVICE):
            self.items.append(CloseRecord(conn, MONO + SPAN, "client-closed", {"c2s_frames": 5}))
        self.items.append(CloseRecord(VICTIM, MONO + 54 * SECOND, "rule", {"detail": EVIL, "c2s_frames": 5}))
        self.frame(SPAN, CLIENT, C2S, b"PING\r\n")


def make(path: Path) -> Path:
    """Write the capture."""
    conversation = Conversation()
    for part in (
        conversation.greet,
        conversation.ask,
        conversation.deliver,
        conversation.spread,
        conversation.deny,
        conversation.leave,
    ):
        part()
    return write(path, conversation.items, per_block=100)


def make_wide(path: Path, many: int) -> Path:
    """Write a capture with that many of everything, each with a long name of its own; 400 at most."""
    conversation, long = Conversation(), "x" * 500
    for number in range(many):
        first, second = (chr(97 + part) for part in divmod(number, 20))
        name, t = f"n{first}.p{second}.{long}", number * SECOND
        raw, reply = name.encode(), b"_INBOX.x.%d" % number
        ack = b"$JS.ACK.%s%d.C%d.1.1.1.1767225600000000000.0" % (long.encode(), number, number)
        conversation.items.append(OpenRecord(number, MONO + t, {"client": f"10.0.0.1:{number}"}))
        conversation.frame(t, number, C2S, b"PUB %s %s 0\r\n\r\n" % (raw, reply))
        conversation.frame(t + number * MS, number, S2C, b"MSG %s 9 0\r\n\r\n" % reply)
        conversation.frame(t, number, S2C, b"MSG s.a 8 %s 0\r\n\r\n" % ack)
        conversation.frame(t + MS, number, S2C, b"-ERR 'Something %s'\r\n" % raw)
        conversation.fire(number, number, name, "drop", name)
        conversation.items.append(GapRecord(number, MONO + t, {"reason": name, "frames": 1, "bytes": 1}))
        conversation.items.append(CloseRecord(number, MONO + t + SECOND, "client-closed", {}))
    return write(path, conversation.items)
