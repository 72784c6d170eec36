"""What was one value in the recording is one in the play, and two are two, where values are ignored too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from natsproxy.replay.conversation.match_options import MatchOptions, read
from natsproxy.wire import encode
from tests.replay.kit import cassette, record_program, run_program
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play

R1, R2 = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
L1, L2 = "9ac1b2d3-0000-4abc-8def-112233445566", "77777777-1111-4222-8333-abcdefabcdef"


def header(name: str, value: str) -> bytes:
    return encode.pub(b"a", b"x", headers=f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode())


def member(name: str, value: str) -> bytes:
    return encode.pub(b"a", f'{{"{name}":"{value}","n":1}}'.encode())


def played(
    recorded: list[bytes], live: list[bytes], options: dict[str, Any] | None = None, repeat: str = ""
) -> Play:
    """Play publishes of one client, all sent with their index."""
    lines: list[Line] = [*hello(1, "a"), *((1, ">", one) for one in recorded)]
    given = read({**(options or {}), **({"repeat": repeat} if repeat else {})})
    play = Play(lines, options=MatchOptions(**given))
    play.open(1, "a")
    for one in live:
        play.send(1, one)
    return play


def told(play: Play) -> str:
    return "\n".join(map(str, play.machine.mismatches))


def number(value: str) -> bytes:
    return encode.pub(b"a", b'{"id":%d,"n":1}' % (10**17 + int(value[:8], 16)))


MSG_ID = "Nats-Msg-Id"
PLACES: list[tuple[Any, dict[str, Any]]] = [
    (lambda value: header(MSG_ID, value), {}),
    (lambda value: header(MSG_ID, value), {"learn": False}),
    (lambda value: header(MSG_ID, value), {"ignore_headers": "nats-*"}),
    (lambda value: header(MSG_ID, value), {"like_headers": "nats-*"}),
    (lambda value: header("X-Request", value), {}),
    (lambda value: header("X-Request", value), {"ignore_headers": "x-*"}),
    (lambda value: member("id", value), {}),
    (lambda value: member("id", value), {"ignore_json": "/id"}),
    (lambda value: member("id", value), {"like_json": "/id"}),
    (lambda value: member("id", value), {"ignore_bodies": "a"}),
    (number, {}),
    (number, {"ignore_json": "/id"}),
    (number, {"like_json": "/id"}),
    (number, {"ignore_bodies": "a"}),
    (lambda value: encode.pub(b"a", b"id=" + value.encode()), {"ignore_bodies": "a"}),
]
NAMES = [f"{options or 'no option'} {sent(R1).partition(b' ')[2][:60]!r}" for sent, options in PLACES]


@pytest.mark.parametrize(("sent", "options"), PLACES, ids=NAMES)
def test_one_value_is_one_and_two_are_two(sent: Any, options: dict[str, Any]) -> None:
    ones = [(R1, R1, L1, L1), (R1, R2, L1, L2), (R1, R1, R1, R1), (R1, R2, R2, R1)]
    for *recorded, first, second in ones:
        assert told(played([*map(sent, recorded)], [sent(first), sent(second)], options)) == ""
    for *recorded, first, second in [(R1, R1, L1, L2), (R1, R2, L1, L1), (R1, R1, R1, L1), (R1, R2, R1, R1)]:
        play = played([*map(sent, recorded)], [sent(first), sent(second)], options)
        assert len(play.machine.mismatches) == 1, (recorded, first, second)


@pytest.mark.parametrize("sent", [lambda value: header(MSG_ID, value)])
@pytest.mark.parametrize(
    ("recorded", "live", "plays"),
    [
        ("1 1", "1 1", True),
        ("1 1", "7 7", True),
        ("1 1", "1 7", False),
        ("1 2", "2 3", True),
        ("1 2", "7 7", False),
        ("order-17 order-17", "order-9 order-10", False),
        ("1 2 1", "2 1 2", True),
        ("1 2 1", "2 1 1", False),
    ],
)
def test_message_ids_may_be_short(sent: Any, recorded: str, live: str, plays: bool) -> None:
    play = played([*map(sent, recorded.split())], [*map(sent, live.split())])
    assert (told(play) == "") is plays


@pytest.mark.parametrize("options", [{"ignore_json": "/took"}, {"like_json": "/took"}])
@pytest.mark.parametrize(("recorded", "live"), [("12 12", "9 14"), ("9 14", "12 12")])
def test_numbers_that_are_ignored_may_repeat_by_chance(
    options: dict[str, str], recorded: str, live: str
) -> None:
    first, second = (
        [encode.pub(b"a", b'{"took":%b}' % one.encode()) for one in text.split()] for text in (recorded, live)
    )
    assert told(played(first, second, options)) == ""


@pytest.mark.parametrize("name", ["traceparent", "X-B3-TraceId", "Date"])
def test_identifiers_of_traces_may_repeat(name: str) -> None:
    ours, theirs = ([header(name, one) for one in pair] for pair in ((R1, R1), (L1, L2)))
    assert told(played(ours, theirs)) == ""
    assert told(played(ours, theirs, {"ignore_headers": name})) == ""


@pytest.mark.parametrize("place", ["header:Nats-Msg-Id", "a header:nats-msg-*"])
def test_a_place_that_is_not_learned_may_have_any_values(place: str) -> None:
    ours, theirs = ([header(MSG_ID, one) for one in pair] for pair in ((R1, R1), (L1, L2)))
    assert told(played(ours, theirs, {"learn_not": place})) == ""
    ours, theirs = ([member("id", one) for one in pair] for pair in ((R1, R1), (L1, L2)))
    assert told(played(ours, theirs, {"learn_not": "/id", "ignore_json": "/id"})) == ""


def test_a_part_that_does_not_count_may_have_any_values() -> None:
    ours, theirs = ([member("id", one) for one in pair] for pair in ((R1, R1), (L1, L2)))
    assert told(played(ours, theirs, {"match_on": "subject,headers"})) == ""
    ours, theirs = ([header(MSG_ID, one) for one in pair] for pair in ((R1, R1), (L1, L2)))
    assert told(played(ours, theirs, {"match_on": "subject,body"})) == ""


def test_a_frame_that_is_repeated_may_have_a_new_identifier() -> None:
    live = [L1, L2, L2]
    assert told(played([header(MSG_ID, R1)], [header(MSG_ID, one) for one in live], repeat="a")) == ""
    live_members = [member("id", one) for one in live]
    assert told(played([member("id", R1)], live_members, {"ignore_json": "/id"}, repeat="a")) == ""


def test_two_messages_of_which_tasks_sent_one_again_keep_their_ids() -> None:
    """They differ in their ids alone, and come in another order."""
    recorded = [header(MSG_ID, one) for one in (R1, R2, R1, R2)]
    live = [header(MSG_ID, one) for one in (L1, L2, L2, L1)]
    assert told(played(recorded, live)) == ""


def test_a_contradiction_names_the_values_and_the_publish_that_had_it_first() -> None:
    ours, theirs = (
        [header(MSG_ID, "m-1"), header(MSG_ID, "m-1")],
        [header(MSG_ID, "m-7"), header(MSG_ID, "m-8")],
    )
    (mismatch,) = played(ours, theirs).machine.mismatches
    note = "m-1 was recorded before, in PUB a 'x', where this run sent m-7"
    text = f"header Nats-Msg-Id: 'm-1' recorded, 'm-8' sent ({note})"
    assert text in str(mismatch)
    assert mismatch.summary.startswith(text)
    (mismatch,) = played([ours[0], header(MSG_ID, "m-2")], [theirs[0], theirs[0]]).machine.mismatches
    assert "'m-2' recorded, 'm-7' sent (m-7 was sent before, in PUB a 'x', where m-1 was recorded)" in str(
        mismatch
    )


PROGRAM = """
import asyncio, os, sys, uuid
import nats

async def main():
    client = await nats.connect(os.environ["NATS_URL"])
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    first = uuid.uuid4().hex
    for message_id in (first, first if sys.argv[1:] == [] else uuid.uuid4().hex):
        ack = await js.publish("orders.new", b"1", headers={"Nats-Msg-Id": message_id})
        print(ack.seq, ack.duplicate)
    await client.close()

asyncio.run(main())
"""


@pytest.mark.server
async def test_a_program_whose_deduplication_broke_fails(tmp_path: Path) -> None:
    program = tmp_path / "orders.py"
    program.write_text(PROGRAM)
    printed = await record_program(program, tmp_path / "x.ncap")
    assert printed.splitlines() == ["1 None", "1 True"]
    async with cassette(tmp_path / "x.ncap") as server:
        assert await run_program(program, server.url) == printed
        assert server.mismatches == []
    async with cassette(tmp_path / "x.ncap") as server:
        with pytest.raises(AssertionError):  # its second publish fails
            await run_program(program, server.url, "new")
        (mismatch,) = server.mismatches
        assert mismatch.difference.startswith("header Nats-Msg-Id: ")
        assert "was recorded before, in PUB orders.new '1', where this run sent" in mismatch.difference
