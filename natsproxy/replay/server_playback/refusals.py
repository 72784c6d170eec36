"""Error replies to client frames that were never recorded.

An `-ERR` that no server sends ends the connection in most client libraries, and the application never sees
the reason.  So the reply depends on the frame, and is one that the application sees:

- JetStream API request, publish to a stream: an API error, whose description every library puts into its
  exception;
- pull, direct get: status 400 with a description, which no library takes for the normal end of a pull;
- any other request: the `-ERR` of a denied publish with the reason appended, which libraries log or hand to
  the error callback; then a 503, which ends the request at once (and cannot carry a reason);
- publish without a reply subject, subscription: that `-ERR` alone; a publish that answers a request of
  another client also ends that request with a 503.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from natsproxy.protocol import headers
from natsproxy.protocol.jetstream import parse_api
from natsproxy.replay.conversation.identifier_map import INBOX
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.actions import Action, SendToClient
from natsproxy.replay.server_playback.advice import Advisor
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.mismatch import Mismatch, mismatch_of
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

REASON: Final = b"not in the capture"
_MISMATCHES: Final = 1000
_UNSAFE: Final = re.compile(r"[^ !#-&(-~]")
_LONGEST: Final = 150  # letters of a difference
_MARK: Final = b"Natsproxy-Mismatch"
_NO_JSON: Final = (b"CONSUMER.MSG.NEXT", b"DIRECT.GET")
"""API calls whose answers are messages and statuses, not JSON."""


class Refusals(EffectSource):
    """Refuses unrecorded frames, and keeps the first thousand mismatches: a client may retry for hours.

    clients: the live ones, by number.
    """

    def __init__(self, progress: Progress, matcher: Matcher, clients: Mapping[int, Client]) -> None:
        self.mismatches: list[Mismatch] = []
        self._progress = progress
        self._matcher = matcher
        self._clients = clients
        self._advisor = Advisor(progress, matcher, clients)

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Refuse an unrecorded frame; the reason names the difference from the nearest recorded one."""
        client, frame = sent.client, sent.frame
        mismatch = mismatch_of(client, frame, self._progress, self._matcher, self._advisor)
        self.note(mismatch)
        reason = REASON
        if mismatch.difference:  # quotes would end the text of an -ERR, other characters confuse parsers
            reason += b": " + _UNSAFE.sub("", mismatch.difference)[:_LONGEST].encode()
        data = _reply(frame, _inbox_of(client, frame.reply), reason, acked=mismatch.acked)
        return [SendToClient(client.id, data), *self._to_requesters(frame, reason)]

    def note(self, mismatch: Mismatch) -> None:
        """Add a mismatch, up to the limit."""
        if len(self.mismatches) < _MISMATCHES:
            self.mismatches.append(mismatch)

    def _to_requesters(self, frame: Frame, reason: bytes) -> list[Action]:
        """End the requests that wait for this answer, which will not come."""
        if frame.op == Op.SUB or not frame.subject.startswith(INBOX):
            return []
        inboxes = [(one.id, _inbox_of(one, frame.subject)) for one in self._clients.values()]
        return [
            SendToClient(client_id, _status(frame, frame.subject, sid, b"503", reason))
            for client_id, sid in inboxes
            if sid is not None
        ]


def _inbox_of(client: Client, subject: bytes) -> bytes | None:
    """Return the sid on which a client can get a status, None if it has none or takes no headers."""
    return client.listening_sid(subject) if subject and client.connect.headers else None


def _reply(frame: Frame, sid: bytes | None, reason: bytes, *, acked: bool) -> bytes:
    publish = frame.op != Op.SUB
    action = b"Publish" if publish else b"Subscription"
    error = encode.err(b'Permissions Violation for %b to "%b": %b' % (action, frame.subject, reason))
    if not publish or sid is None:
        return error
    call = parse_api(frame.subject)
    if call is None and not acked:
        return error + _status(frame, frame.reply, sid, b"503", reason)
    if call is not None and call.verb in _NO_JSON:
        return _status(frame, frame.reply, sid, b"400", reason)
    text = f"natsproxy: {frame.subject.decode('utf-8', 'replace')} is {reason.decode()}"
    body = json.dumps({"error": {"code": 500, "description": text}}, separators=(",", ":")).encode()
    return encode.msg(frame.reply, sid, body, headers=headers.build([(_MARK, REASON)]))


def _status(frame: Frame, inbox: bytes, sid: bytes, code: bytes, reason: bytes) -> bytes:
    pairs = [(b"Nats-Subject", frame.subject), (_MARK, REASON)]
    block = headers.build(pairs, code=code, description=b"natsproxy: " + reason)
    return encode.msg(inbox, sid, headers=block)
