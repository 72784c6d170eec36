"""Payloads of other forms than JSON: their places count as in JSON, and live values come back in the form."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard

from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.wire import encode
from natsproxy.wire.ops import S2C
from natsproxy.wire.parse import frames
from tests.replay.conversation.test_payload_codecs import descriptors
from tests.replay.kit import cassette, record_program, run_program
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play

R1, L1, L2 = (
    "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "9ac1b2d3-0000-4abc-8def-112233445566",
    "77777777-1111-4222-8333-abcdefabcdef",
)
Value = dict[str, Any]


class Form:
    """A form of payloads in a test.  option: what a user gives for it."""

    def __init__(self, option: Value, to: Callable[[Value], bytes], of: Callable[[bytes], Value]) -> None:
        self.option, self.to, self.of = option, to, of


def _json(value: Value) -> bytes:
    return json.dumps(value).encode()


def _protobuf(folder: Path) -> Form:
    option = {"match_as": f"orders.> protobuf:{descriptors(folder)}:shop.Order"}
    codec = MatchOptions(**read(option)).codec(b"orders.new")
    assert codec is not None
    assert codec.encode is not None
    return Form(option, codec.encode, codec.plain)


def _flip(body: bytes) -> bytes:
    return bytes(255 - byte for byte in body)


FORMS = {
    "msgpack": Form({"match_as": "orders.> msgpack"}, msgpack.packb, msgpack.unpackb),
    "gzip": Form(
        {"match_as": "orders.> gzip"},
        lambda value: gzip.compress(_json(value), mtime=1),
        lambda body: json.loads(gzip.decompress(body)),
    ),
    "zstd": Form(
        {"match_as": "orders.> zstd"},
        lambda value: zstandard.compress(_json(value)),
        lambda body: json.loads(zstandard.decompress(body)),
    ),
    "functions": Form(
        {"match_as": {"orders.>": (_flip, _flip)}},
        lambda value: _flip(_json(value)),
        lambda body: json.loads(_flip(body)),
    ),
}


@pytest.fixture(params=[*FORMS, "protobuf"])
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Form:
    return FORMS.get(request.param) or _protobuf(tmp_path)


def played(form: Form, options: Value, recorded: list[Value], answer: bytes = b"") -> Play:
    """Play a client that asks, and gets an answer behind its last frame."""
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB _INBOX.> 1\r\nSUB done 2\r\n")]
    lines += [(1, ">", encode.pub(b"orders.new", form.to(one), reply=b"_INBOX.x")) for one in recorded]
    if answer:
        lines.append((1, "<", answer))
    play = Play(lines, options=MatchOptions(**read({**form.option, **options})))
    play.open(1, "a")
    play.send(1, b"SUB _INBOX.> 1\r\nSUB done 2\r\n")
    return play


def ask(play: Play, form: Form, value: Value) -> bytes:
    """Send a request; return the payload of the answer."""
    got = play.send(1, encode.pub(b"orders.new", form.to(value), reply=b"_INBOX.x"))
    return next(frames(got, S2C)).body if got.startswith((b"MSG", b"HMSG")) else got


def order(identifier: str, qty: int = 3) -> Value:
    return {"id": identifier, "qty": str(qty), "parts": [{"id": "bolt"}]}


def test_identifiers_are_learned_and_come_back(form: Form) -> None:
    answer = encode.msg(b"_INBOX.x", b"1", form.to({**order(f"done-{R1}"), "qty": "17"}))
    play = played(form, {}, [order(R1)], answer)
    assert form.of(ask(play, form, order(L1))) == {**order(f"done-{L1}"), "qty": "17"}
    assert play.machine.mismatches == []


def test_an_answer_that_has_none_stays_as_it_was(form: Form) -> None:
    for body in (form.to(order("nothing to see", 123456789)), b'{"stream":"ORDERS","seq":1234}'):
        play = played(form, {}, [order(R1)], encode.msg(b"_INBOX.x", b"1", body))
        assert ask(play, form, order(L1)) == body


def test_a_change_is_named_by_its_place(form: Form) -> None:
    play = played(form, {}, [order(R1)])
    ask(play, form, order(L1, 4))
    assert '/qty: "3" recorded, "4" sent' in str(play.machine.mismatches[0])
    play = played(form, {}, [order(R1), order(R1, 5)])
    ask(play, form, order(L1))
    ask(play, form, order(L2, 5))
    assert "was recorded before" in str(play.machine.mismatches[0])


@pytest.mark.parametrize("option", ["ignore_json", "like_json", "any_json"])
def test_places_are_those_of_json(form: Form, option: str) -> None:
    play = played(form, {option: "orders.> /qty"}, [order(R1)])
    ask(play, form, order(L1, 4))
    assert play.machine.mismatches == []


def test_a_member_for_which_a_user_vouches_comes_back(form: Form) -> None:
    answer = encode.msg(b"_INBOX.x", b"1", form.to(order("x", 3)))
    play = played(form, {"any_json": "/qty"}, [order(R1)], answer)
    assert form.of(ask(play, form, order(L1, 12345))) == order("x", 12345)


@pytest.mark.parametrize("name", ["msgpack", "gzip", "zstd"])
def test_a_payload_that_cannot_be_read_is_compared_as_bytes(name: str) -> None:
    form = FORMS[name]
    play = played(form, {}, [order(R1)])
    play.send(1, encode.pub(b"orders.new", b"\xc1", reply=b"_INBOX.x"))
    assert "cannot be read as match_as says" in str(play.machine.mismatches[0])


def test_a_stored_payload_has_the_live_values(form: Form) -> None:
    def stored(identifier: str) -> bytes:
        data = base64.b64encode(form.to(order(identifier))).decode()
        message = f'{{"subject":"orders.1","data":"{data}"}}'
        kind = "io.nats.jetstream.api.v1.stream_msg_get_response"
        return f'{{"type":"{kind}","message":{message}}}'.encode()

    play = played(form, {}, [order(R1)], encode.msg(b"_INBOX.x", b"1", stored(f"a longer one {R1}")))
    found = json.loads(ask(play, form, order(L1)))["message"]["data"]
    assert form.of(base64.b64decode(found)) == order(f"a longer one {L1}")
    block = b"NATS/1.0\r\nNats-Subject: orders.1\r\n\r\n"
    answer = encode.msg(b"done", b"2", form.to(order(R1)), headers=block)
    play = played(form, {}, [order(R1)], answer)
    assert form.of(ask(play, form, order(L1))) == order(L1)


def test_values_of_messagepack_alone_come_back() -> None:
    form = FORMS["msgpack"]
    sent, got = (
        {
            "key": bytes(range(16)),
            "at": msgpack.Timestamp(1790000000, 5),
            "n": 17900000001234567890,
            5: [2.5],
        },
        {
            "key": bytes(range(99, 115)),
            "at": msgpack.Timestamp(1791111111, 7),
            "n": 12345678901234567890,
            5: [2.5],
        },
    )

    def unpack(body: bytes) -> Any:
        return msgpack.unpackb(body, strict_map_key=False)

    play = played(form, {}, [sent], encode.msg(b"_INBOX.x", b"1", msgpack.packb({"of": sent, 1: None})))  # type: ignore[list-item]
    assert unpack(ask(play, form, got)) == {"of": got, 1: None}  # type: ignore[arg-type]


def test_a_command_compares_what_it_cannot_write() -> None:
    """Its recorded answers stay as they are; publish acks do not."""
    program = "import sys; sys.stdout.buffer.write(bytes(255 - one for one in sys.stdin.buffer.read()))"
    command = f"orders.> {sys.executable} -c '{program}'"
    form = Form({"match_command": command}, FORMS["functions"].to, FORMS["functions"].of)
    secret = form.to(order(R1))
    play = played(form, {"ignore_json": "/qty"}, [order(R1)], encode.msg(b"_INBOX.x", b"1", secret))
    assert ask(play, form, order(L1, 4)) == secret
    assert play.machine.mismatches == []
    play = played(form, {}, [order(R1)], encode.msg(b"_INBOX.x", b"1", b'{"of":"%b"}' % R1.encode()))
    assert ask(play, form, order(L1)) == b'{"of":"%b"}' % L1.encode()
    ask(play, form, order("other"))
    assert '/id: "' in str(play.machine.mismatches[0])


PROGRAM = """
import asyncio, os, uuid
import msgpack, nats

async def main():
    client = await nats.connect(os.environ["NATS_URL"])

    async def answer(msg):
        order = msgpack.unpackb(msg.data)
        await msg.respond(msgpack.packb({"accepted": order["id"], "token": order["token"]}))

    await client.subscribe("orders.new", cb=answer)
    ours = {"id": str(uuid.uuid4()), "token": "ey" + uuid.uuid4().hex[: 9 + os.getpid() % 5], "qty": 3}
    found = msgpack.unpackb((await client.request("orders.new", msgpack.packb(ours))).data)
    print(found == {"accepted": ours["id"], "token": ours["token"]})
    await client.close()

asyncio.run(main())
"""


@pytest.mark.server
async def test_a_program_that_speaks_messagepack_plays(tmp_path: Path) -> None:
    program = tmp_path / "orders.py"
    program.write_text(PROGRAM)
    assert await record_program(program, tmp_path / "x.ncap") == "True\n"
    options = read({"match_as": "orders.> msgpack", "any_json": "orders.> /token"})
    async with cassette(tmp_path / "x.ncap", options=options) as server:
        assert await run_program(program, server.url) == "True\n"
        assert server.mismatches == []
    async with cassette(tmp_path / "x.ncap") as server:
        with pytest.raises(AssertionError):
            await run_program(program, server.url)
