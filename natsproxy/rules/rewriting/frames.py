"""The rewriter: what rewriting does to frames, in both directions.

Theory
1. `rewriting.py` says where a subject goes; here are the places of a frame that hold one: subject and reply
   of the control line, headers (`Nats-Subject` of a 503 on its way back; on the way out what is traced to, an
   expected sequence is of, or a schedule publishes to), the texts of `-ERR`, and JetStream API bodies.
2. Bytes that name no subject are kept: where the subject alone changes, all behind it is copied as it stood.
3. Most frames are plain, and go the short way (`shuttle.py`).  This is the long one, which knows all cases.
4. A `RewriteTrace` stands for one frame: it counts, throws dice and notes what moved (`turn.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from natsproxy.protocol import errors
from natsproxy.protocol.headers import get as get_header
from natsproxy.protocol.headers import set_header, span, trace_span
from natsproxy.protocol.jetstream import is_api
from natsproxy.rules.interface import Decision, View
from natsproxy.rules.model.roles import MSGS, PUBS, History
from natsproxy.rules.rewriting.jetstream_api import translate_api_subject, translate_body
from natsproxy.rules.rewriting.subjects import Moved, Refused, SubjectRewriter
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op
from natsproxy.wire.parse import frames as parse_frames

if TYPE_CHECKING:
    from natsproxy.rules.engine.decision_builder import DecisionBuilder
    from natsproxy.rules.rewriting.trace import RewriteTrace

SAID: Final = b"Nats-Subject"
NAMING: Final[tuple[Callable[[bytes], tuple[int, int] | None], ...]] = (
    trace_span,
    lambda block: span(block, b"Nats-Expected-Last-Subject-Sequence-Subject"),
    lambda block: span(block, b"Nats-Schedule-Target"),
    lambda block: span(block, b"Nats-Schedule-Source"),
)
"""Where the headers of a publish name subjects."""


class FrameRewriter(SubjectRewriter):
    """All rewrite rules of a plan, applied to frames."""

    def answers(self, subject: bytes) -> bool:
        """Tell whether the answer to a PUB of this subject is an API body that must be translated."""
        return self.jetstream and is_api(subject)

    # -- to the server

    def forward(self, frame: Frame, builder: DecisionBuilder | None, trace: RewriteTrace) -> Decision | None:
        """Return the decision on a c2s frame that the other rules let go on."""
        current = frame if builder is None else builder.frame
        if current.op == Op.SUB:
            return self._forward_sub(current, builder, trace)
        decision = builder.decision() if builder is not None else None
        if not PUBS >> current.op & 1:
            return decision
        raw = self._publication(current, trace)
        if raw is None:
            return decision
        if decision is None or builder is None:
            return Decision(out=(raw,) if raw else (), ok=not raw, cause="rewrite")
        rest = tuple(self._again(extra, trace) for extra in builder.extra)
        decision.out = (raw, *rest) * builder.copies if raw else ()
        decision.ok = not raw
        return decision

    def _again(self, raw: bytes, trace: RewriteTrace) -> bytes:
        found = self._publication(next(parse_frames(raw, C2S)), trace)
        return raw if found is None else found

    def _publication(self, frame: Frame, trace: RewriteTrace) -> bytes | None:
        """Return the bytes that go on for a PUB, None for its own, `b""` for none."""
        moved = self.publish(frame.subject, trace.draw)
        subject, reply = frame.subject, frame.reply
        if moved is not None and moved.subject != subject:
            trace.moved(moved.by, subject, moved.subject)
            if not moved.subject:
                return b""
            subject = moved.subject
        if self.replies and reply:
            reply = self._there(reply, trace)
        if self.answers(frame.subject):
            return self._api_call(frame, subject, reply, trace)
        headers = self._naming(frame, trace)
        if headers != frame.headers:
            return reheadered(frame, subject, reply, headers)
        if subject == frame.subject and reply == frame.reply:
            return None
        return encode.with_line(frame, subject=subject, reply=reply)

    def _there(self, subject: bytes, trace: RewriteTrace) -> bytes:
        """Return the server's form of a subject, noted."""
        found = self.subscribe(subject)
        if not isinstance(found, Moved) or found.subject == subject:
            return subject
        trace.moved(found.by, subject, found.subject)
        return found.subject

    def _naming(self, frame: Frame, trace: RewriteTrace) -> bytes:
        """Return the headers of a publish, the subjects that they name translated."""
        headers = frame.headers
        if b"Nats-" not in headers or len(headers) < frame.header_size:
            return headers
        for where in NAMING:
            # In place: what the server reads is what is translated, whatever else there is of that name.
            found = where(headers)
            if found is not None and found[0] < found[1]:
                start, stop = found
                headers = headers[:start] + self._there(headers[start:stop], trace) + headers[stop:]
        return headers

    def _api_call(self, frame: Frame, subject: bytes, reply: bytes, trace: RewriteTrace) -> bytes | None:
        def there(inner: bytes) -> bytes:
            return self._there(inner, trace)

        moved = relined(frame, translate_api_subject(subject, there), reply)
        if not frame.missing and (body := translate_body(frame.body, there)) != frame.body:
            return encode.with_payload(moved, body=body)
        return None if moved is frame else moved.raw

    def _forward_sub(
        self, frame: Frame, builder: DecisionBuilder | None, trace: RewriteTrace
    ) -> Decision | None:
        found = self.subscribe(frame.subject)
        if found is None or (isinstance(found, Moved) and found.subject == frame.subject):
            return builder.decision() if builder is not None else None
        decision = Decision() if builder is None else builder.decision()
        decision.cause = "rewrite"
        if isinstance(found, Refused):
            trace.moved(found.by, frame.subject, b"", "deny")
            decision.out = ()
            decision.answer += errors.err_frame(errors.subscribe_denied(frame.subject, frame.queue))
            decision.cause = found.by.name
            return decision
        trace.moved(found.by, frame.subject, found.subject)
        raw = encode.with_line(frame, subject=found.subject)
        decision.out = (raw,) * (builder.copies if builder is not None else 1)
        decision.upstream_subject = found.subject
        return decision

    # -- to the client

    def back(self, frame: Frame, view: View, history: History, trace: RewriteTrace) -> Frame:
        """Return an s2c frame in the client's subjects; the same object where nothing changes."""
        if frame.op == Op.ERR:
            return self._error_back(frame, trace)
        if not MSGS >> frame.op & 1:
            return frame
        subject = self._here(frame.subject, trace, asked_for(view, frame.sid))
        reply = self._here(frame.reply, trace) if self.replies and frame.reply else frame.reply
        result = relined(frame, subject, reply)
        return result if frame.missing else self._payload_back(result, history, trace)

    def _here(self, subject: bytes, trace: RewriteTrace, subscribed: bytes = b"") -> bytes:
        """Return the client's form of a subject, noted."""
        found = self.undone(subject, subscribed)
        if found is None:
            return subject
        trace.moved(found.by, subject, found.subject)
        return found.subject

    def _payload_back(self, frame: Frame, history: History, trace: RewriteTrace) -> Frame:
        headers, body = frame.headers, frame.body
        if headers and (named := get_header(headers, SAID)) is not None:
            told = self._here(named, trace)
            headers = headers if told == named else set_header(headers, SAID, told)
        if self.jetstream and any(
            isinstance(waiter, FrameRewriter) for waiter in history.waiting(frame.subject)
        ):
            body = translate_body(body, lambda inner: self._here(inner, trace))
        if headers == frame.headers and body == frame.body:
            return frame
        return next(parse_frames(encode.with_payload(frame, headers=headers, body=body), S2C))

    def _error_back(self, frame: Frame, trace: RewriteTrace) -> Frame:
        text = errors.err_text(frame.args)
        named = errors.classify(text).subject
        told = self._here(named, trace) if named else named
        if told == named:
            return frame
        raw = errors.err_frame(text.replace(errors.quote(named), errors.quote(told), 1))
        return next(parse_frames(raw, S2C))


def asked_for(view: View, sid: bytes) -> bytes:
    """Return the subject of the rewritten SUB behind a sid, `b""` where it was not rewritten."""
    sub = view.subs.get(sid)
    return sub.subject if sub is not None and sub.upstream != sub.subject else b""


def relined(frame: Frame, subject: bytes, reply: bytes) -> Frame:
    """Return a message frame with another subject and reply, all else (a missing part included) as it was."""
    if subject == frame.subject and reply == frame.reply:
        return frame
    line = encode.message_line(frame.op, subject, frame.sid, reply, frame.header_size, frame.size)
    buffer = line + frame.buffer[frame.line_end : frame.end]
    return frame._replace(
        buffer=buffer, start=0, end=len(buffer), line_end=len(line), subject=subject, reply=reply
    )


def reheadered(frame: Frame, subject: bytes, reply: bytes, headers: bytes) -> bytes:
    """Return a message frame with another head, its sizes mended; a missing part of its body may follow."""
    size = frame.size + len(headers) - frame.header_size
    line = encode.message_line(frame.op, subject, frame.sid, reply, len(headers), size)
    return line + headers + frame.buffer[frame.line_end + frame.header_size : frame.end]
