"""The frame rewriter: it rewrites the subjects in frames, in both directions.

Theory
1. `subjects.py` maps subjects; this module finds the places of a frame that hold one: subject and reply of
   the control line, headers (`Nats-Subject` of a 503 on its way back; on the way out the subjects that a
   trace, an expected sequence or a schedule names), the texts of `-ERR`, and JetStream API bodies.
2. Bytes that name no subject are kept: where the subject alone changes, all bytes behind it are copied.
3. Most frames are plain and have a static decision (`engine/static_decisions.py`).  This is the general path,
   which handles all cases.
4. A `RewriteTrace` belongs to one frame.  A rule that rewrites counts a frame once, however many of its
   subjects the rule changes and random numbers it draws; the draws of one frame differ by their number.  A
   frame is one firing, by the rule that changed a subject first; its detail names the subjects before and
   after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from natsproxy.events import Firing
from natsproxy.protocol import errors
from natsproxy.protocol.headers import get as get_header
from natsproxy.protocol.headers import set_header, span, trace_span
from natsproxy.protocol.jetstream import is_api
from natsproxy.rules.interface import View
from natsproxy.rules.model.roles import MSGS, PUBS, TRANSLATION, OpenRequests
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.rule_state import RuleState, subject_text
from natsproxy.rules.rewriting.jetstream_api import translate_api_subject, translate_body
from natsproxy.rules.rewriting.subjects import Refused, Rewritten, SubjectRewriter
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames as parse_frames

NATS_SUBJECT: Final = b"Nats-Subject"
SUBJECT_HEADERS: Final[tuple[Callable[[bytes], tuple[int, int] | None], ...]] = (
    trace_span,
    lambda block: span(block, b"Nats-Expected-Last-Subject-Sequence-Subject"),
    lambda block: span(block, b"Nats-Schedule-Target"),
    lambda block: span(block, b"Nats-Schedule-Source"),
)
"""Functions that find the subjects in the headers of a publish."""
NAMED_CHANGES: Final = 4
"""Changed subjects that a firing names at most."""


class RewriteTrace:
    """The trace of one frame.  subject: the client's form, for the firing."""

    __slots__ = (
        "_changes",
        "_direction",
        "_drawn",
        "_label",
        "_matches",
        "_now",
        "_op",
        "_states",
        "subject",
    )

    def __init__(
        self, states: Mapping[Rule, RuleState], direction: Direction, frame: Frame, now: int
    ) -> None:
        self.subject = frame.subject
        self._op = frame.op
        self._states = states
        self._direction = direction
        self._now = now
        self._matches: dict[Rule, int] = {}
        self._drawn = 0
        self._changes: list[tuple[Rule, bytes, bytes]] = []
        self._label = ""

    def draw(self, rule: Rule) -> float:
        """Return the next random number of a rule for this frame, in (0, 1)."""
        self._drawn += 1
        return self._states[rule].random(self._direction).draw(self._match(rule), self._drawn)

    def _match(self, rule: Rule) -> int:
        m = self._matches.get(rule)
        if m is None:
            # Counted at the first use: a rule that only examined the frame has no match.
            m = self._matches[rule] = self._states[rule].count(self._direction)
        return m

    def add(self, rule: Rule, before: bytes, after: bytes, label: str = "") -> None:
        """Add a subject that a rule changed; after: `b""` where the frame is dropped."""
        self._changes.append((rule, before, after))
        self._label = label

    def firings(self) -> tuple[Firing, ...]:
        """Return the one firing of this frame, or none where no subject changed."""
        if not self._changes:
            return ()
        rule = self._changes[0][0]
        changes = dict.fromkeys(
            f"{subject_text(before)} -> {subject_text(after) or 'nothing'}"
            for _, before, after in self._changes[:NAMED_CHANGES]
        )
        firing = self._states[rule].firing(
            self._direction,
            self._now,
            self._match(rule),
            subject_text(self.subject),
            0,
            self._label,
            ", ".join(changes),
            op=self._op.label,
        )
        return (firing,)


class RewrittenFrame(NamedTuple):
    """The rewriting of one c2s frame.

    out: the frames that go on in its place; `()` for none.  upstream_subject: the subject of a SUB for the
    server.  answer: frames for the client (a refused SUB).  cause: for records, `""` for the last rule's.
    """

    out: tuple[bytes, ...]
    upstream_subject: bytes | None = None
    answer: bytes = b""
    cause: str = ""


class FrameRewriter(SubjectRewriter):
    """All rewrite rules of an index, applied to frames."""

    def translates_answer(self, subject: bytes) -> bool:
        """Tell whether the answer to a PUB of this subject has an API body to translate."""
        return self.jetstream and is_api(subject)

    # -- to the server

    def forward(self, frame: Frame, extra: tuple[bytes, ...], trace: RewriteTrace) -> RewrittenFrame | None:
        """Return the rewriting of a c2s frame that the other rules pass on, None if it is unchanged.

        extra: the frames that follow it where a rule replaced one frame by several.
        """
        if frame.op == Op.SUB:
            return self._forward_sub(frame, trace)
        if not PUBS >> frame.op & 1:
            return None
        raw = self._publication(frame, trace)
        if raw is None:
            return None
        rest = [self._forward_extra(one, trace) for one in extra]
        return RewrittenFrame((raw, *rest) if raw else ())

    def _forward_extra(self, raw: bytes, trace: RewriteTrace) -> bytes:
        found = self._publication(next(parse_frames(raw, C2S)), trace)
        return raw if found is None else found

    def _publication(self, frame: Frame, trace: RewriteTrace) -> bytes | None:
        """Return the rewritten bytes of a PUB, None if unchanged, `b""` if it is dropped."""
        target = self.publish(frame.subject, trace.draw)
        subject, reply = frame.subject, frame.reply
        if target is not None and target.subject != subject:
            trace.add(target.rule, subject, target.subject)
            if not target.subject:
                return b""
            subject = target.subject
        if self.replies and reply:
            reply = self._to_server(reply, trace)
        if self.translates_answer(frame.subject):
            return self._api_call(frame, subject, reply, trace)
        headers = self._headers_to_server(frame, trace)
        if headers != frame.headers:
            return with_headers(frame, subject, reply, headers)
        if subject == frame.subject and reply == frame.reply:
            return None
        return encode.with_line(frame, subject=subject, reply=reply)

    def _to_server(self, subject: bytes, trace: RewriteTrace) -> bytes:
        """Return the server's form of a subject, and add the change to the trace."""
        found = self.subscribe(subject)
        if not isinstance(found, Rewritten) or found.subject == subject:
            return subject
        trace.add(found.rule, subject, found.subject)
        return found.subject

    def _headers_to_server(self, frame: Frame, trace: RewriteTrace) -> bytes:
        """Return the headers of a publish with the subjects that they name rewritten."""
        headers = frame.headers
        if b"Nats-" not in headers or len(headers) < frame.header_size:
            return headers
        for find in SUBJECT_HEADERS:
            # In place: of several headers of one name, the server reads the one that `find` finds.
            found = find(headers)
            if found is not None and found[0] < found[1]:
                start, stop = found
                headers = headers[:start] + self._to_server(headers[start:stop], trace) + headers[stop:]
        return headers

    def _api_call(self, frame: Frame, subject: bytes, reply: bytes, trace: RewriteTrace) -> bytes | None:
        def translate(inner: bytes) -> bytes:
            return self._to_server(inner, trace)

        result = with_subjects(frame, translate_api_subject(subject, translate), reply)
        if not frame.missing and (body := translate_body(frame.body, translate)) != frame.body:
            return encode.with_payload(result, body=body)
        return None if result is frame else result.raw

    def _forward_sub(self, frame: Frame, trace: RewriteTrace) -> RewrittenFrame | None:
        found = self.subscribe(frame.subject)
        if isinstance(found, Refused):
            trace.add(found.rule, frame.subject, b"", "deny")
            answer = errors.err_frame(errors.subscribe_denied(frame.subject, frame.queue))
            return RewrittenFrame((), answer=answer, cause=found.rule.name)
        if found is None or found.subject == frame.subject:
            return None
        trace.add(found.rule, frame.subject, found.subject)
        raw = encode.with_line(frame, subject=found.subject)
        return RewrittenFrame((raw,), found.subject, cause="rewrite")

    # -- to the client

    def restore(self, frame: Frame, view: View, requests: OpenRequests, trace: RewriteTrace) -> Frame:
        """Return an s2c frame in the client's subjects; the same object where nothing changes."""
        if frame.op == Op.ERR:
            return self._restore_error(frame, trace)
        if not MSGS >> frame.op & 1:
            return frame
        subject = self._to_client(frame.subject, trace, rewritten_subscription(view, frame.sid))
        reply = self._to_client(frame.reply, trace) if self.replies and frame.reply else frame.reply
        result = with_subjects(frame, subject, reply)
        return result if frame.missing else self._restore_payload(result, requests, trace)

    def _to_client(self, subject: bytes, trace: RewriteTrace, subscribed: bytes = b"") -> bytes:
        """Return the client's form of a subject, and add the change to the trace."""
        found = self.undo(subject, subscribed)
        if found is None:
            return subject
        trace.add(found.rule, subject, found.subject)
        return found.subject

    def _restore_payload(self, frame: Frame, requests: OpenRequests, trace: RewriteTrace) -> Frame:
        headers, body = frame.headers, frame.body
        if headers and (named := get_header(headers, NATS_SUBJECT)) is not None:
            restored = self._to_client(named, trace)
            headers = headers if restored == named else set_header(headers, NATS_SUBJECT, restored)
        if self.jetstream and TRANSLATION in requests.waiters(frame.subject):
            body = translate_body(body, lambda inner: self._to_client(inner, trace))
        if headers == frame.headers and body == frame.body:
            return frame
        return next(parse_frames(encode.with_payload(frame, headers=headers, body=body), S2C))

    def _restore_error(self, frame: Frame, trace: RewriteTrace) -> Frame:
        text = errors.err_text(frame.args)
        named = errors.classify(text).subject
        restored = self._to_client(named, trace) if named else named
        if restored == named:
            return frame
        raw = errors.err_frame(text.replace(errors.quote(named), errors.quote(restored), 1))
        return next(parse_frames(raw, S2C))


def rewritten_subscription(view: View, sid: bytes) -> bytes:
    """Return the subject of the rewritten SUB behind a sid, `b""` where it was not rewritten."""
    sub = view.subs.get(sid)
    return sub.subject if sub is not None and sub.upstream != sub.subject else b""


def with_subjects(frame: Frame, subject: bytes, reply: bytes) -> Frame:
    """Return a message frame with another subject and reply, all else as it was, a missing part included."""
    if subject == frame.subject and reply == frame.reply:
        return frame
    line = encode.message_line(frame.op, subject, frame.sid, reply, frame.header_size, frame.size)
    buffer = line + frame.buffer[frame.line_end : frame.end]
    return frame._replace(
        buffer=buffer, start=0, end=len(buffer), line_end=len(line), subject=subject, reply=reply
    )


def with_headers(frame: Frame, subject: bytes, reply: bytes, headers: bytes) -> bytes:
    """Return a message frame with other headers and its sizes adapted, without a missing part of its body."""
    size = frame.size + len(headers) - frame.header_size
    line = encode.message_line(frame.op, subject, frame.sid, reply, len(headers), size)
    return line + headers + frame.buffer[frame.line_end + frame.header_size : frame.end]
