"""Cassettes as texts: short, whole, and easy to write by hand."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest

from natsproxy.capture.format.records import Flags
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.statements import FIRST_LINE
from natsproxy.capture.text.writer import write_text
from natsproxy.replay.conversation.steps import Step, events
from natsproxy.testing import NatsServer, cassette
from natsproxy.wire.ops import Op
from tests.kit.documents import ROOT
from tests.kit.node import has_node, node_path
from tests.replay.kit import LIMIT

RECORDINGS = sorted((ROOT / "recordings").glob("*-v1.1.ncap"))
GUIDE = (ROOT / "deploy" / "cassettes.md").read_text()
EXAMPLES = [block for block in GUIDE.split("```\n") if block.startswith(FIRST_LINE)]
LIVE = (Op.PING, Op.PONG, Op.OK, Op.INFO)
ASK = """
import { connect } from "@nats-io/transport-node";
const nc = await connect({ servers: process.env.NATS_URL });
const answer = await nc.request("quotes.price", JSON.stringify({ id: crypto.randomUUID(), qty: 3 }));
console.log(answer.json().price);
await nc.close();
"""


def text_of(path: Path, *, brief: bool = True) -> str:
    out = io.BytesIO()
    write_text(open_capture(path), out, brief=brief)
    return out.getvalue().decode()


def size(text: str) -> int:
    """Return the number of lines, but for pauses, of which a slow machine makes more."""
    return sum(not line.startswith("@") for line in text.splitlines())


async def _ask(url: str, more: dict[str, Any]) -> Any:
    client = await nats.connect(url)
    answer = await client.request("quotes.price", json.dumps({**more, "qty": 3}).encode(), timeout=LIMIT)
    await client.close()
    return json.loads(answer.data)


async def _prices(server: NatsServer) -> Any:
    service = await nats.connect(server.url, name="prices")

    async def price(msg: Any) -> None:
        await msg.respond(json.dumps({"id": json.loads(msg.data)["id"], "price": 12.6}).encode())

    await service.subscribe("quotes.price", cb=price)
    await service.flush()
    return service


@pytest.mark.server
def test_one_request_of_nats_py_is_a_short_text(tmp_path: Path) -> None:
    path = tmp_path / "x.nats.txt"

    async def record() -> None:
        with NatsServer() as server:
            service = await _prices(server)
            async with cassette(path, upstream=server.url, mode="all") as tape:
                await _ask(tape.url, {"id": str(uuid.uuid4())})
            await service.close()

    async def play() -> None:
        async with cassette(path) as tape:
            asked = {"id": str(uuid.uuid4())}
            assert await _ask(tape.url, asked) == {**asked, "price": 12.6}

    asyncio.run(record())
    asyncio.run(play())
    text = path.read_text()
    assert size(text) <= 16, text
    assert text.count("INFO") == 1
    assert text_of(path) == text_of(path, brief=False) == text


@pytest.mark.long
@pytest.mark.server
@pytest.mark.skipif(not has_node(), reason="there is no Node.js with npm")
def test_one_request_of_nats_js_is_a_short_text(tmp_path: Path) -> None:
    program, path = tmp_path / "ask.mjs", tmp_path / "x.nats.txt"
    program.write_text(ASK)
    (tmp_path / "node_modules").symlink_to(node_path())

    async def run(*options: str) -> str:
        command = [sys.executable, "-m", "natsproxy", "cassette", "run", *options, str(path)]
        process = await asyncio.create_subprocess_exec(
            *command, "--", "node", str(program), stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await asyncio.wait_for(process.communicate(), LIMIT)
        return printed.decode()

    async def main() -> None:
        with NatsServer() as server:
            service = await _prices(server)
            assert await run("--mode", "all", "--upstream", server.url) == "12.6\n"
            await service.close()
        assert await run() == "12.6\n"

    asyncio.run(main())
    assert size(path.read_text()) <= 16, path.read_text()
    assert text_of(path) == path.read_text()


@pytest.mark.parametrize("example", EXAMPLES, ids=["recorded", "by hand"])
def test_the_examples_of_the_guide_play(example: str, tmp_path: Path) -> None:
    path = tmp_path / "x.nats.txt"
    path.write_text(example)
    asked = {"id": str(uuid.uuid4())} if "-id>" in example else {}

    async def play() -> None:
        async with cassette(path) as tape:
            assert await _ask(tape.url, asked) == {**asked, "price": 12.6}
            assert tape.mismatches() == []

    asyncio.run(play())
    assert size(example) <= 16


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_short_text_holds_what_clients_sent_and_received(path: Path, tmp_path: Path) -> None:
    text = tmp_path / "x.nats.txt"
    text.write_text(text_of(path))

    def told(capture: Path) -> list[Any]:
        steps = [one for one in events(capture) if isinstance(one, Step) and one.frame.op not in LIVE]
        return [(step.conn.number, step.direction, _fields(step.frame)) for step in steps]

    assert told(text) == told(path)
    assert text_of(text) == text_of(text, brief=False) == text.read_text()
    assert size(text.read_text()) < size(text_of(path, brief=False))


def _fields(frame: Any) -> Any:
    return frame.op, frame.subject, frame.queue, frame.sid, frame.reply, frame.args, frame.headers, frame.body


def test_a_payload_that_was_withheld_stays_marked(tmp_path: Path) -> None:
    text = tmp_path / "x.nats.txt"
    text.write_text(f"{FIRST_LINE}\na > raw\n  * flags: PAYLOAD\n  \\ PUB x 5\\r\\n\n")
    assert str(Flags.PAYLOAD.name) in text_of(text)
