"""A capture in normalized form: the frames that are compared, answers grouped under their requests.

Frames that the server's clock sends are not compared: heartbeats and flow control, and redeliveries without a
nak (their number depends on how fast a client was).  Such redeliveries are counted and shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsproxy.bounded import BoundedDict
from natsproxy.capture.format.records import GapRecord
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.replay.conversation.steps import PUBLISHES, Step, walk
from natsproxy.replay.diff.normalize import Ignore, NormalizedFrame, normalize, server_chosen_name
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op


class NormalizedStep(NamedTuple):
    """A frame that is compared.

    request_group: the group of the request that it answers.  after: ns since that request, for its first
    answer. timed: the server's clock sent it, so it is shown only.
    """

    step: Step
    normalized: NormalizedFrame
    request_group: str = ""
    after: int | None = None
    timed: bool = False


class NormalizedConversation:
    """Reads a capture.  gaps: the number of the recorder's gaps so far."""

    def __init__(self, path: Path | str, ignore: Ignore) -> None:
        self.gaps = 0
        self._path = path
        self._ignore = ignore
        self._requests: BoundedDict[bytes, tuple[str, int | None]] = BoundedDict()
        self._server_names: BoundedDict[str, None] = BoundedDict()
        self._naks: BoundedDict[tuple[bytes, bytes, int], None] = BoundedDict()

    def __iter__(self) -> Iterator[NormalizedStep]:
        """Yield the frames that are compared.  Raises CaptureError where it cannot be read."""
        for _, item, found in walk(self._path):
            self.gaps += isinstance(item, GapRecord)
            for event in found:
                if isinstance(event, Step):
                    # Before the frame is normalized: it names the consumer itself.
                    if event.direction == S2C and (name := server_chosen_name(event.frame)):
                        self._server_names[name] = None
                    normalized = normalize(event.frame, event.direction, self._ignore, self._server_names)
                    if normalized is not None:
                        yield self._normalized(event, normalized)

    def _normalized(self, step: Step, normalized: NormalizedFrame) -> NormalizedStep:
        frame = step.frame
        sent = step.direction == C2S
        if sent and frame.op in PUBLISHES:
            if frame.reply:
                self._requests[frame.reply] = (normalized.group, step.t)
            if frame.body.startswith(b"-NAK"):
                self._note_nak(frame)
        elif not sent and frame.reply.startswith(b"$JS.ACK.") and self._by_clock(frame):
            return NormalizedStep(step, normalized, timed=True)
        answers = frame.op in PUBLISHES if sent else frame.op != Op.ERR
        request_group = self._requests.get(frame.subject) if answers else None
        if request_group is None:
            return NormalizedStep(step, normalized)
        group, since = request_group
        normalized = normalized._replace(group=f"{group} (answer)")
        if sent or since is None:
            return NormalizedStep(step, normalized, group)
        self._requests[frame.subject] = (group, None)
        return NormalizedStep(step, normalized, group, step.t - since)

    def _note_nak(self, frame: Frame) -> None:
        ack = parse_ack(frame.subject)
        if ack is not None:
            self._naks[ack.stream, ack.consumer, ack.stream_seq] = None

    def _by_clock(self, frame: Frame) -> bool:
        """Tell whether a delivery is a repeated one without a nak."""
        ack = parse_ack(frame.reply)
        return (
            ack is not None
            and ack.delivered > 1
            and (ack.stream, ack.consumer, ack.stream_seq) not in self._naks
        )
