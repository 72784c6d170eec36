"""A streamed answer, which closes its source when the client disconnects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send


class Streamed(StreamingResponse):
    """An answer whose pieces come from an async generator.

    starlette leaves the generator to the garbage collector, which trio reports as a bug.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[str | bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a HEAD gets only the headers, and runs no generator."""
        if scope["method"] == "HEAD":
            await Response(status_code=self.status_code, headers=self.headers)(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send the pieces; close the generator at the end, even on an error."""
        async with aclosing(self._pieces):
            await super().stream_response(send)
