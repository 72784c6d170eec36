"""What a cassette passes on reaches a real server, and its answer comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.replay.kit import cassette, nats_server
from tests.replay.scripted import hello, write


@pytest.mark.server
async def test_unrecorded_input_is_answered_by_the_real_server(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    async with (
        nats_server(tmp_path / "s") as server,
        cassette(capture, unrecorded="pass", upstream=server) as played,
        await trio.open_tcp_stream("127.0.0.1", played.address.port) as stream,
    ):
        await stream.send_all(
            b'CONNECT {"verbose":false,"name":"a","headers":true}\r\nSUB x 4\r\nPUB x 2\r\nhi\r\n'
        )
        said = b""
        with trio.fail_after(5):
            while b"MSG" not in said or not said.endswith(b"hi\r\n"):
                said += await stream.receive_some()
        assert b"MSG x 4 2\r\nhi\r\n" in said
        assert played.mismatches == []
