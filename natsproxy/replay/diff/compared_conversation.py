"""A capture as the frames that are compared, answers grouped under their requests.

Frames that the server sends by time are not compared: heartbeats and flow control, expired pulls, and
redeliveries without a nak (their number depends on how fast a client was).  The last two are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.filter.scrub import Scrubber
from natsproxy.capture.format.records import GapRecord
from natsproxy.protocol.jetstream import parse_ack, parse_api
from natsproxy.protocol.subjects import matches
from natsproxy.replay.conversation.exchanges import standalone
from natsproxy.replay.conversation.frame_kind import FrameKind, delivery_request, kind_of
from natsproxy.replay.conversation.match_options import MatchOptions
from natsproxy.replay.conversation.steps import PUBLISHES, Step, walk
from natsproxy.replay.diff.compared_frame import ComparedFrame, compared, server_chosen_name
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op


class ComparedStep(NamedTuple):
    """A frame that is compared.

    use: the effect of a client frame on the server; for a message that of the request that it answers.
    request_group: the group of that request.  after: ns since that request, for its first answer.
    timed: the server sent it by time, so it is only shown.
    """

    step: Step
    compared: ComparedFrame
    use: FrameKind
    request_group: str = ""
    after: int | None = None
    timed: bool = False

    @property
    def group(self) -> str:
        """The row."""
        return f"{self.request_group} (answer)" if self.request_group else self.compared.group


class _Request(NamedTuple):
    """A request.

    stream: the one that it names.  t: its time, None once it was answered.  waits: it is a pull that may
    expire.
    """

    group: str
    use: FrameKind
    stream: bytes
    t: int | None
    waits: bool = False


class ComparedConversation:
    """Reads a capture.  subjects: patterns to leave out.  gaps: the number of gaps in it so far.

    asked: the subjects of requests, by those of their answers.
    """

    def __init__(self, path: Path | str, options: MatchOptions, subjects: tuple[bytes, ...] = ()) -> None:
        self.gaps = 0
        self.asked: BoundedDict[bytes, bytes] = BoundedDict()
        self._path = path
        self._options = options
        self._subjects = subjects
        self._scrubber = Scrubber(options.filters) if options.filters else None
        self._requests: BoundedDict[bytes, _Request] = BoundedDict()
        self._server_names: BoundedDict[bytes, None] = BoundedDict()
        self._naks: BoundedDict[tuple[bytes, bytes, int], None] = BoundedDict()

    def __iter__(self) -> Iterator[ComparedStep]:
        """Yield the frames that are compared.  Raises CaptureError if it cannot be read."""
        for _, item, found in walk(self._path):
            self.gaps += isinstance(item, GapRecord)
            for event in found:
                if isinstance(event, Step) and not self._left_out(event.frame):
                    one = self._step(self._scrubbed(event))
                    if one is not None:
                        yield one

    def _left_out(self, frame: Frame) -> bool:
        return any(matches(pattern, frame.subject) for pattern in self._subjects) if frame.subject else False

    def _scrubbed(self, step: Step) -> Step:
        if self._scrubber is None:
            return step
        return step._replace(frame=self._scrubber.seen(step.frame, step.direction))

    def _step(self, step: Step) -> ComparedStep | None:
        # Before the frame's own group: it names the consumer itself.
        if step.frame.op == Op.MSG and (name := server_chosen_name(step.frame)):
            self._server_names[name] = None
        asked = self._requests.get(step.frame.subject) if step.direction == S2C else None
        stream = b"" if asked is None else asked.stream
        found = compared(step.frame, step.direction, self._server_names, stream)
        return None if found is None else self._asked(step, found)

    def _asked(self, step: Step, found: ComparedFrame) -> ComparedStep:
        frame, use, timed = step.frame, FrameKind.CHANGE, False
        sent = step.direction == C2S
        if sent:
            use = kind_of(frame, self._options.repeat)
            if frame.op in PUBLISHES:
                self._note_publish(step, found.group, use)
        elif frame.reply.startswith(b"$JS.ACK."):
            timed = self._by_clock(frame)
        answers = frame.op in PUBLISHES if sent else frame.op != Op.ERR
        request = self._requests.get(frame.subject) if answers else None
        if request is None or timed:
            repeated = not sent and any(matches(one, frame.subject) for one in self._options.repeat)
            return ComparedStep(step, found, FrameKind.READ if repeated else use, timed=timed)
        if found.ends_pull and request.waits:
            return ComparedStep(step, found, request.use, request.group, timed=True)
        if sent or request.t is None:
            return ComparedStep(step, found, request.use, request.group)
        self._requests[frame.subject] = request._replace(t=None)
        return ComparedStep(step, found, request.use, request.group, step.t - request.t)

    def _note_publish(self, step: Step, group: str, use: FrameKind) -> None:
        frame = step.frame
        if frame.reply:
            call = parse_api(frame.subject)
            stream = call.stream if call else b""
            pull = delivery_request(frame) if use is FrameKind.PULL else None
            waits = pull is not None and not pull.no_wait
            self._requests[frame.reply] = _Request(group, use, stream, step.t, waits)
            self.asked[frame.reply] = frame.subject
        if frame.body.startswith(b"-NAK"):
            ack = parse_ack(frame.subject)
            if ack is not None:
                self._naks[ack.stream, ack.consumer, ack.stream_seq] = None

    def _by_clock(self, frame: Frame) -> bool:
        """Return whether a message is a redelivery without a nak."""
        ack = parse_ack(frame.reply)
        return (
            ack is not None
            and ack.delivered > 1
            and (ack.stream, ack.consumer, ack.stream_seq) not in self._naks
        )


def kept(one: ComparedStep) -> ComparedStep:
    """Return a frame that keeps only its own bytes alive."""
    return one._replace(
        step=one.step._replace(frame=standalone(one.step.frame)),
        compared=one.compared._replace(frame=standalone(one.compared.frame)),
    )
