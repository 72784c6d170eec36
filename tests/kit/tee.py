"""A plain TCP relay that keeps every byte of both directions, to check the proxy against."""

from __future__ import annotations

import trio


class Tee:
    """Relays one address to another.

    conns: the bytes from the client and from the server of each connection, in order of accepting.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self.conns: list[tuple[bytearray, bytearray]] = []

    async def serve(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until cancelled; `task_status` gets the port."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(trio.serve_listeners, self._relay, listeners)
            self.port = listeners[0].socket.getsockname()[1]
            task_status.started(self.port)

    async def _relay(self, client: trio.SocketStream) -> None:
        kept = (bytearray(), bytearray())
        self.conns.append(kept)
        server = await trio.open_tcp_stream(*self._target)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._copy, client, server, kept[0])
            nursery.start_soon(self._copy, server, client, kept[1])

    async def _copy(self, source: trio.SocketStream, target: trio.SocketStream, kept: bytearray) -> None:
        try:
            while data := await source.receive_some(65536):
                kept += data
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await target.aclose()
