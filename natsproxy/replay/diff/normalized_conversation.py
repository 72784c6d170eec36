"""What of a capture counts when it is compared: frames in canonical form, answers under what they answer.

What comes by the server's clock does not count: heartbeats and flow control, and redeliveries that no nak
asked for (how many there are depends on how fast a client was); these are shown only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from natsproxy.capture.format.records import Gap
from natsproxy.protocol.jetstream import parse_ack
from natsproxy.replay.conversation.bounded import BoundedDict
from natsproxy.replay.conversation.steps import PUBLISHES, Step, walk
from natsproxy.replay.diff.normalize import Ignore, NormalizedFrame, name_given, normalize
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Op


class NormalizedStep(NamedTuple):
    """A frame that counts.

    asked: the group of the request that it answers.  after: how long after it, in ns, for its first answer.
    timed: it came by the server's clock and is shown only.
    """

    step: Step
    said: NormalizedFrame
    asked: str = ""
    after: int | None = None
    timed: bool = False


class NormalizedConversation:
    """Reads a capture.  gaps: how often it lacks what was not recorded, so far."""

    def __init__(self, path: Path | str, ignore: Ignore) -> None:
        self.gaps = 0
        self._path = path
        self._ignore = ignore
        self._requests: BoundedDict[bytes, tuple[str, int | None]] = BoundedDict()
        self._given: BoundedDict[str, None] = BoundedDict()
        self._naks: BoundedDict[tuple[bytes, bytes, int], None] = BoundedDict()

    def __iter__(self) -> Iterator[NormalizedStep]:
        """Yield the frames that count.  Raises CaptureError where it cannot be read."""
        for _, item, found in walk(self._path):
            self.gaps += isinstance(item, Gap)
            for event in found:
                if isinstance(event, Step):
                    if event.direction == S2C and (name := name_given(event.frame)):
                        self._given[name] = None
                    said = normalize(event.frame, event.direction, self._ignore, self._given)
                    if said is not None:
                        yield self._normalized(event, said)

    def _normalized(self, step: Step, said: NormalizedFrame) -> NormalizedStep:
        frame = step.frame
        sent = step.direction == C2S
        if sent and frame.op in PUBLISHES:
            if frame.reply:
                self._requests[frame.reply] = (said.group, step.t)
            if frame.body.startswith(b"-NAK"):
                self._note_nak(frame)
        elif not sent and frame.reply.startswith(b"$JS.ACK.") and self._by_clock(frame):
            return NormalizedStep(step, said, timed=True)
        answers = frame.op in PUBLISHES if sent else frame.op != Op.ERR
        asked = self._requests.get(frame.subject) if answers else None
        if asked is None:
            return NormalizedStep(step, said)
        group, since = asked
        said = said._replace(group=f"{group} (answer)")
        if sent or since is None:
            return NormalizedStep(step, said, group)
        self._requests[frame.subject] = (group, None)
        return NormalizedStep(step, said, group, step.t - since)

    def _note_nak(self, frame: Frame) -> None:
        ack = parse_ack(frame.subject)
        if ack is not None:
            self._naks[ack.stream, ack.consumer, ack.stream_seq] = None

    def _by_clock(self, frame: Frame) -> bool:
        """Tell whether a delivery is a second one that no nak asked for."""
        ack = parse_ack(frame.reply)
        return (
            ack is not None
            and ack.delivered > 1
            and (ack.stream, ack.consumer, ack.stream_seq) not in self._naks
        )
