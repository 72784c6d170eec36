"""The new episodes of a playback: unrecorded client frames, and the real server's answers to them.

Additions use the identifiers of the recording, so that the next playback plays them as a part of it: live
inboxes, names and ids are mapped back, sids are those of the recorded connection, and new subscriptions get
unused ones.  Each addition is placed after the recorded frame that happened last.  A client that plays no
recorded connection is added as a connection, from its CONNECT on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.errors import CaptureError
from natsproxy.protocol.jetstream import api_error
from natsproxy.replay.conversation.identifier_map import IdentifierMap, recorded_text
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.progress import ConnectionProgress, Progress
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op

_LACKING: Final = (10059, 10014)
"""Error codes of JetStream: stream not found, consumer not found."""
LIMIT: Final = 256 << 20
_OVERHEAD: Final = 128
_FAR: Final = 1_000_000  # above the sids of any subscriptions that were not read yet


class Addition(NamedTuple):
    """A frame to add; with empty data, the end of a connection that was added.

    conn: the number of the recorded connection; negative for an added one.  after: seq of the recorded frame
    that it follows, -1 for the beginning.  delay: ns after that frame.
    """

    conn: int
    direction: Direction
    data: bytes
    after: int
    delay: int


def _lacking(answer: Frame) -> str:
    """Return the text of an answer that a stream, consumer or responder is missing; "" for any other."""
    if answer.no_responders:
        return "'no responders'"
    error = api_error(answer.body)
    return repr(error.description) if error is not None and error.err_code in _LACKING else ""


class NewEpisodes:
    """Collects the additions of one playback; they are kept in memory, up to `limit` bytes."""

    def __init__(self, progress: Progress, identifiers: IdentifierMap, *, limit: int = LIMIT) -> None:
        self.additions: list[Addition] = []
        self.lacking = ""  # the first answer that something of the recording is missing
        self._progress = progress
        self._identifiers = identifiers
        self._limit = limit
        self._size = 0
        self._new: set[int] = set()
        self._sids: set[tuple[int, bytes]] = set()
        self._top_sids: dict[ConnectionId, int] = {}

    def sent(self, client: Client, frame: Frame, now: int) -> None:
        """Add a client frame that was passed to the real server."""
        self._begin(client, now)
        if frame.op == Op.SUB:
            sid = frame.sid if client.playing is None else self._free_sid(client.playing)
            client.sids[frame.sid] = sid
            self._sids.add((client.id, frame.sid))
            data = encode.sub(self._map(frame.subject), sid, frame.queue)
        elif client.playing is None:
            data = frame.raw
        else:
            data = encode.pub(
                self._map(frame.subject),
                self._map(frame.body),
                reply=self._map(frame.reply),
                headers=self._map(frame.headers),
            )
        self._add(client, C2S, data, now)

    def unsubscribed(self, client: Client, frame: Frame, now: int) -> None:
        """Add an UNSUB if its subscription was added."""
        if (client.id, frame.sid) in self._sids:
            limit = int(frame.args) if frame.args.isdigit() else 0
            self._add(client, C2S, encode.unsub(client.sids[frame.sid], limit), now)

    def answered(self, client: Client, frame: Frame, now: int) -> None:
        """Add a frame that the real server sent to a client."""
        self._begin(client, now)
        if frame.op not in (Op.MSG, Op.HMSG):
            self._add(client, S2C, frame.raw, now)
            return
        self.lacking = self.lacking or _lacking(frame)
        sid = client.sids.get(frame.sid, frame.sid)
        subject, reply = self._map(frame.subject), self._map(frame.reply)
        body, block = self._map(frame.body), self._map(frame.headers)
        self._add(client, S2C, encode.msg(subject, sid, body, reply=reply, headers=block), now)

    def ended(self, client: Client, now: int) -> None:
        """Add the end of a connection that was added."""
        if client.id in self._new:
            self._add(client, C2S, b"", now)

    def _begin(self, client: Client, now: int) -> None:
        if client.playing is not None:
            self._progress.reach(client.playing.recorded.first_seq, now)
        elif client.id not in self._new:
            self._new.add(client.id)
            self._add(client, S2C, encode.info(self._progress.recording.info or b"{}"), now)
            if client.connect_frame is not None:
                self._add(client, C2S, client.connect_frame.raw, now)

    def _free_sid(self, connection: ConnectionProgress) -> bytes:
        top = max(connection.recorded.top_sid, self._top_sids.get(connection.conn, 0))
        self._top_sids[connection.conn] = top = top + (1 if self._progress.recording.whole else _FAR)
        return b"%d" % top

    def _map(self, text: bytes) -> bytes:
        return recorded_text(self._identifiers, text)

    def _add(self, client: Client, direction: Direction, data: bytes, now: int) -> None:
        self._size += len(data) + _OVERHEAD
        if self._size > self._limit:
            raise CaptureError(
                f"more than {self._limit >> 20} MiB of new frames for one cassette: record it anew (mode all)"
            )
        after, since = self._progress.reached
        if not since:
            self._progress.reached, since = (after, now), now
        conn = client.playing.conn.number if client.playing is not None else -client.id
        self.additions.append(Addition(conn, direction, data, after, max(0, now - since)))
