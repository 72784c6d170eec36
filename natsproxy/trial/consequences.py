"""The later frames that a verdict makes impossible: answers to what never came, messages nobody asked for.

Theory
1. The messages on a subscription that was refused would not come.
2. A message that does not arrive is never answered.  Inboxes are unique, so its reply subject finds the
   answers on all connections; what is kept from one receiver is unanswered on its connection only, since
   others may have got it.
3. A pull that does not arrive delivers nothing: the messages on the subscription that its reply subject
   belongs to come by the last pull.
4. After the end of its connection no frame comes.
"""

from __future__ import annotations

from typing import Final

from natsproxy.bounded import BoundedDict
from natsproxy.protocol.jetstream import parse_api
from natsproxy.protocol.subjects import matches
from natsproxy.rules.model.selector import MESSAGES
from natsproxy.trial.bound import BoundRules
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction

_PULL: Final = b"CONSUMER.MSG.NEXT"
_Stopped = BoundedDict[bytes, str]
"""Reply subjects, each with the rule that stopped a message."""


class Requests:
    """The reply subjects of a recording, on all connections.

    asked: those of requests that arrive.  unsent: those of requests that do not, each with the rule that
    stopped it.  unanswered: those whose answer does not arrive, likewise.
    """

    def __init__(self) -> None:
        self.asked: BoundedDict[bytes, None] = BoundedDict()
        self.unsent: _Stopped = BoundedDict()
        self.unanswered: _Stopped = BoundedDict()


class Consequences:
    """The consequences on one connection.  requests: those of all.  ended: the rule that ended it, or ""."""

    def __init__(self, bound: BoundRules, requests: Requests) -> None:
        self.ended = ""
        self._bound = bound
        self._requests = requests
        self._unreceived: _Stopped = BoundedDict()  # requests to this client
        self._pulls: dict[bytes, str] = {}  # by sid: the rule that stopped the last pull

    def of(self, direction: Direction, frame: Frame) -> str | None:
        """Return the rule because of which a frame would not come, None if it would."""
        if self.ended:
            return self.ended
        if not frame.subject or not MESSAGES >> frame.op & 1:
            return None
        unsent = self._requests.unsent
        found = unsent.get(frame.subject)
        if direction == C2S:
            return self._unreceived.get(frame.subject) if found is None else found
        if found is None:
            found = self._requests.unanswered.get(frame.subject) or unsent.get(frame.reply)
        return found or self._bound.refused.get(frame.sid) or self._pulled(frame)

    def _pulled(self, frame: Frame) -> str | None:
        by = self._pulls.get(frame.sid)
        sub = self._bound.view.subs.get(frame.sid)
        return by if by and sub is not None and not matches(sub.subject, frame.subject) else None

    def stopped(self, direction: Direction, frame: Frame, rule: str) -> None:
        """Take note of a message that does not arrive, or would not come."""
        if direction == S2C:
            if frame.reply:
                self._unreceived[frame.reply] = rule
            return
        if frame.subject in self._requests.asked:
            self._requests.unanswered[frame.subject] = rule
        if frame.reply:
            self._requests.unsent[frame.reply] = rule
            self._pull(frame, rule)

    def passed(self, direction: Direction, frame: Frame) -> None:
        """Take note of a message that arrives."""
        if direction == S2C:
            self._unreceived.pop(frame.reply, None)
            return
        self._requests.unanswered.pop(frame.subject, None)
        if frame.reply:
            self._requests.asked[frame.reply] = None
            self._requests.unsent.pop(frame.reply, None)
            self._requests.unanswered.pop(frame.reply, None)
            self._pull(frame, "")

    def _pull(self, frame: Frame, rule: str) -> None:
        call = parse_api(frame.subject)
        if call is not None and call.verb == _PULL:
            for sid, sub in self._bound.view.subs.items():
                if matches(sub.subject, frame.reply):
                    self._pulls[sid] = rule
