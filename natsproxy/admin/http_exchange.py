"""One request and its answer, between h11's events and the messages of ASGI."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import h11
import trio

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
_READ: Final = 64 * 1024  # bytes
_BODY: Final = 30.0  # seconds for the whole body of a request
_WRITE: Final = 30.0  # seconds for a client to take one piece of its answer
_LINGER: Final = 1.0  # seconds for the rest of an unread body
_STATUSES: Final = frozenset(HTTPStatus)
_LEFT: Final = {"type": "http.disconnect"}


class HttpLost(Exception):
    """The client is gone or too slow: no answer can be sent."""


class HttpExchange:
    """A request and its answer.  most_body: bytes of the request's body.  left: the client is gone.

    answers: counts them by status.
    """

    def __init__(
        self, connection: h11.Connection, stream: Stream, most_body: int, answers: Counter[int]
    ) -> None:
        self._answers = answers
        self._connection = connection
        self._stream = stream
        self._room = most_body
        self._started: float | None = None  # when the body was first asked for
        self.left = self._complete = self._bare = False
        self._ahead = 0  # bytes received after the request

    async def head(self) -> h11.Request | None:
        """Return the next request, None where the client closes the connection.

        Raises h11.RemoteProtocolError for invalid HTTP.
        """
        while True:
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                self._connection.receive_data(bytes(await self._stream.receive_some(_READ)))
            elif isinstance(event, h11.Request):
                self._bare = event.method == b"HEAD"
                return event
            else:  # the end of the connection
                return None

    def scope(self, request: h11.Request, *, secured: bool) -> MutableMapping[str, Any]:
        """Return the request as ASGI describes it."""
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode("ascii"),
            "scheme": "https" if secured else "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": None,
            "server": None,
        }

    # -- called by the application

    async def receive(self) -> MutableMapping[str, Any]:
        """Return a piece of the body; after its end, wait until the client disconnects."""
        if self._complete or self.left:
            return await self._until_left()
        if self._started is None:
            self._started = trio.current_time()
            if self._connection.they_are_waiting_for_100_continue:
                await self._write(
                    self._connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                )
        try:
            with trio.fail_at(self._started + _BODY):
                event = await self._next()
        except (h11.RemoteProtocolError, trio.TooSlowError, trio.BrokenResourceError) as error:
            raise HttpLost("the body did not come") from error
        if isinstance(event, h11.Data):
            self._room -= len(event.data)
            if self._room < 0:
                await self.refuse(413, "the request is too large")
                raise HttpLost("the request is too large")
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            self._complete = True
            return {"type": "http.request", "body": b"", "more_body": False}
        self.left = True
        return _LEFT

    async def _next(self) -> Any:
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(bytes(await self._stream.receive_some(_READ)))
        return event

    async def _until_left(self) -> MutableMapping[str, Any]:
        while not self.left:
            if self._ahead > _READ:  # pipelined requests are not read ahead further
                await trio.sleep_forever()
            try:
                data = bytes(await self._stream.receive_some(_READ))
            except trio.BrokenResourceError:
                data = b""
            if self._connection.their_state is not h11.CLOSED:
                self._connection.receive_data(data)
            self._ahead += len(data)
            self.left = not data
        return _LEFT

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send the head of the answer, or a piece of its body.  Raises HttpLost."""
        if self.left:
            raise HttpLost("the client has gone")
        if message["type"] == "http.response.start":
            self._answers[message["status"]] += 1
            await self._write(self._connection.send(_head(message["status"], message["headers"])))
            return
        body = message.get("body", b"")
        parts = [self._connection.send(h11.Data(data=body))] if body and not self._bare else []
        if not message.get("more_body", False):
            parts.append(self._connection.send(h11.EndOfMessage()))
        await self._write(b"".join(part for part in parts if part))

    async def _write(self, data: bytes | None) -> None:
        if not data:
            return
        try:
            with trio.fail_after(_WRITE):
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise HttpLost("the client takes no answer") from error

    # -- ends

    async def refuse(self, status: int, text: str) -> None:
        """Answer with a status and a line of text, where no answer has begun."""
        if self._connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise HttpLost(text)
        self._answers[status] += 1
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        parts = [self._connection.send(_head(status, headers))]
        if not self._bare:
            parts.append(self._connection.send(h11.Data(data=body)))
        parts.append(self._connection.send(h11.EndOfMessage()))
        await self._write(b"".join(part for part in parts if part))
        self.left = True  # tells the application that no more can be sent

    async def finish(self) -> bool:
        """Read what is left of a small body; return whether another request may come."""
        while self._connection.our_state is h11.DONE and self._connection.their_state is h11.SEND_BODY:
            if (await self.receive())["type"] == "http.disconnect":
                return False
        both = self._connection.our_state, self._connection.their_state
        return both == (h11.DONE, h11.DONE) and not self.left

    async def linger(self) -> None:
        """Close a connection whose request is still coming; at once, a reset would lose the answer."""
        if self.left or self._connection.their_state is not h11.SEND_BODY:
            return
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()
        with trio.move_on_after(_LINGER):
            while await self._stream.receive_some(_READ):
                pass


def _head(status: int, headers: Any) -> h11.Response:
    phrase = HTTPStatus(status).phrase if status in _STATUSES else ""
    return h11.Response(status_code=status, headers=headers, reason=phrase)
