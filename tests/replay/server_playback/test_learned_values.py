"""Values that the program makes up: live ones come back, and each stands for one recorded value."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.replay.conversation.match_options import DEFAULT, MatchOptions, read
from natsproxy.wire import encode
from tests.replay.kit import cassette, nats_server, recording, run_program
from tests.replay.scripted import Line, hello
from tests.replay.server_playback.playing import Play

R1, R2 = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
L1, L2 = "9ac1b2d3-0000-4abc-8def-112233445566", "77777777-1111-4222-8333-abcdefabcdef"
STORED = '{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":{"data":"%s"}}'


def block(name: str, value: str) -> bytes:
    return f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode()


def pub(subject: str, body: str = "", reply: str = "", headers: bytes = b"") -> bytes:
    return encode.pub(subject.encode(), body.encode(), reply=reply.encode(), headers=headers)


def msg(subject: str, body: str = "", reply: str = "", headers: bytes = b"") -> bytes:
    return encode.msg(subject.encode(), b"1", body.encode(), reply=reply.encode(), headers=headers)


def conversation(sent: bytes, got: bytes, options: MatchOptions = DEFAULT) -> Play:
    """Return a play with one client, which is subscribed and has recorded `sent` and then `got`."""
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB > 1\r\n"), (1, ">", sent), (1, "<", got)]
    play = Play(lines, options=options)
    play.open(1, "a")
    play.send(1, b"SUB > 1\r\n")
    return play


@pytest.mark.parametrize(
    "answer",
    [
        lambda one: msg(f"done.{one}", "ok"),
        lambda one: msg("done", "ok", reply=f"status.order-{one}"),
        lambda one: msg("done", "ok", headers=block("X-Order", f"order {one}")),
        lambda one: msg("done", json.dumps({"order": {"id": one}, "n": 1})),
        lambda one: msg("done", f"order {one} is done"),
        lambda one: msg("done", STORED % base64.b64encode(f'{{"id":"{one}"}}'.encode()).decode()),
    ],
    ids=["subject", "reply", "headers", "json", "text", "stored message"],
)
@pytest.mark.parametrize(
    "sent",
    [
        lambda one: pub(f"orders.{one}.new", "x"),
        lambda one: pub("orders", "x", headers=block("X-Order", one)),
        lambda one: pub("orders", json.dumps({"items": [{"key": f"order-{one}"}], "qty": 2})),
        lambda one: pub("orders", f"order={one}"),
        lambda one: pub("orders", "line\n" * 30_000 + one),
        lambda one: pub("orders", json.dumps({one: "new"})),
    ],
    ids=["subject", "header", "json", "text", "a long text", "name of a member"],
)
def test_a_live_identifier_comes_back_wherever_it_was(sent: object, answer: object) -> None:
    assert callable(sent)
    assert callable(answer)
    play = conversation(sent(R1), answer(R1))
    assert play.send(1, sent(L1)) == answer(L1)
    assert not play.machine.mismatches


def test_a_live_time_comes_back() -> None:
    before, after = (
        '{"at":"2026-01-01T00:00:00.25Z","ms":1790000000123,"ts":1790000000}',
        '{"at":"%s","ms":%d,"ts":%d}',
    )
    now = after % ("2026-11-22T10:00:00Z", 1791111111000, 1791111111)
    play = conversation(pub("a", before), msg("b", before))
    assert play.send(1, pub("a", now)) == msg("b", now)


@pytest.mark.parametrize(
    ("recorded", "live", "times"),
    [
        ('{"x":1790000000.123}', '{"x":1791234567.5}', True),
        ('{"x":1790000000.123}', '{"x":1791234567}', True),
        ('{"x":1790000000}', '{"x":1791234567}', False),
        ('{"created_at":1790000000}', '{"created_at":1791234567}', True),
        ('{"createdAt":1790000000}', '{"createdAt":1791234567}', True),
        ('{"at":1790000000}', '{"at":1791234567123}', False),
        ('{"at":1790000000}', '{"at":17}', False),
        ('{"x":1790000000123}', '{"x":1791234567123}', True),
        ('{"x":1.5}', '{"x":2.5}', False),
    ],
)
def test_times_in_numbers_are_known_by_their_size_or_name(recorded: str, live: str, times: bool) -> None:
    play = conversation(pub("a", recorded), msg("b"))
    play.send(1, pub("a", live))
    assert (not play.machine.mismatches) is times


def test_a_copy_has_the_live_headers_too() -> None:
    play = conversation(
        pub("a", "x", headers=block("traceparent", "00-old")),
        msg("a", "x", headers=block("traceparent", "00-old")),
    )
    live = block("traceparent", "00-new")
    assert play.send(1, pub("a", "x", headers=live)) == msg("a", "x", headers=live)


def test_headers_of_traces_may_come_and_their_identifiers_come_back() -> None:
    ours, theirs = (f"00-{one.replace('-', '')}-{one[:8]}{one[-8:]}-01" for one in (R1, L1))
    play = conversation(
        pub("ask", headers=block("traceparent", ours)), msg("done", headers=block("traceparent", ours))
    )
    answer = play.send(1, pub("ask", headers=block("traceparent", theirs)))
    assert answer == msg("done", headers=block("traceparent", theirs))
    bare = conversation(pub("ask"), msg("done"))
    assert bare.send(1, pub("ask", headers=block("traceparent", theirs))) == msg("done")


@pytest.mark.parametrize(
    ("recorded", "live", "place"),
    [
        ('{"qty":3}', '{"qty":4}', "/qty: 3 recorded, 4 sent"),
        ('{"a":[{"b":true}]}', '{"a":[{"b":1}]}', "/a/0/b: true recorded, 1 sent"),
        ('{"a":1}', '{"a":1,"b":2}', "/b: nothing recorded, 2 sent"),
        ('{"a":1,"b":2}', '{"a":1}', "/b: 2 recorded, nothing sent"),
        ('{"a":[1]}', '{"a":[1,2]}', "/a: a list of 1 entries recorded, a list of 2 entries sent"),
        (
            '{"phone":"2125551234"}',
            '{"phone":"2125551235"}',
            '/phone: "2125551234" recorded, "2125551235" sent',
        ),
        ('{"n":1500000001}', '{"n":1500000002}', "/n: 1500000001 recorded, 1500000002 sent"),
        (f'{{"id":"{R1}"}}', '{"id":"none"}', f'/id: "{R1}" recorded, "none" sent'),
        ("plain", "other", "body: 'plain' recorded, 'other' sent"),
    ],
)
def test_data_that_differs_is_a_mismatch_that_names_its_place(recorded: str, live: str, place: str) -> None:
    play = conversation(pub("a", recorded), msg("b"))
    play.send(1, pub("a", live))
    assert place in str(play.machine.mismatches[0])


def test_another_orders_identifier_is_a_mismatch() -> None:
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", pub("new", f'{{"id":"{R1}"}}') + pub("new", f'{{"id":"{R2}"}}')),
        (1, ">", pub("paid", f'{{"id":"{R1}","sum":5}}')),
    ]
    play = Play(lines)
    play.open(1, "a")
    play.send(1, pub("new", f'{{"id":"{L1}"}}') + pub("new", f'{{"id":"{L2}"}}'))
    play.send(1, pub("paid", f'{{"id":"{L2}","sum":5}}'))
    (mismatch,) = play.machine.mismatches
    first = f"""new '{{"id":"{L1[:33]}'"""
    note = f"3f2504e0... was recorded before, in PUB {first}, where this run sent 9ac1b2d3..."
    assert f'/id: "{R1}" recorded, "{L2}" sent ({note})' in str(mismatch)


def test_a_short_value_comes_back_where_the_user_says_that_it_may_differ() -> None:
    sent, got = '{"no":"A-2026-%s","qty":1}', '{"of":"A-2026-%s"}'
    options = MatchOptions(**read({"like_json": "/no"}))
    play = conversation(pub("a", sent % 17), msg("b", got % 17), options)
    assert play.send(1, pub("a", sent % 18)) == msg("b", got % 18)


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ("19521", "891387"),
        ("3", "4.5"),
        ('"a-1"', '"a-7"'),
        ('"17 of 20"', '"8 of 20"'),
        ("1790000000", "1791111111"),
    ],
)
def test_members_for_which_a_user_vouches_come_back_under_their_name(recorded: str, live: str) -> None:
    sent, got = '{"no": %s,"qty":1}', '{"items":[{"no":%s,"n":%s},{"no" : %s}]}'
    play = conversation(
        pub("a", sent % recorded),
        msg("b", got % ((recorded,) * 3)),
        MatchOptions(**read({"like_json": "/no"})),
    )
    assert play.send(1, pub("a", sent % live)) == msg("b", got % (live, recorded, live))
    assert [str(one) for one in play.machine.identifiers.learned] == ["a /no"]


@pytest.mark.parametrize(("recorded", "live"), [("3f2a9c1b", "77aa01cd"), ("17", "42"), ("north", "up")])
def test_tokens_for_which_a_user_vouches_come_back(recorded: str, live: str) -> None:
    """The subscription has such a token too; longer ones come back in payloads as well."""

    def played(one: str, **options: str) -> tuple[Play, bytes]:
        lines: list[Line] = [*hello(1, "a"), (1, ">", encode.sub(f"finished.{recorded}".encode(), b"1"))]
        text = recorded if len(recorded) == 8 else "x"
        lines += [
            (1, ">", pub(f"inv.{recorded}.new", "{}")),
            (1, "<", msg(f"finished.{recorded}", f'{{"no":"{text}"}}')),
        ]
        play = Play(lines, options=MatchOptions(**read(options)))
        play.open(1, "a")
        return play, play.send(1, encode.sub(f"finished.{live}".encode(), b"1") + pub(f"inv.{one}.new", "{}"))

    options = {"like_subjects": ["inv.*.new", "finished.*"]}
    text = live if len(live) == 8 else "x"
    play, got = played(live, **options)  # type: ignore[arg-type]
    assert got == msg(f"finished.{live}", f'{{"no":"{text}"}}')
    assert not play.machine.mismatches
    play, _ = played(live)
    (mismatch, _) = play.machine.mismatches
    assert str(mismatch.candidates[0].accepted).startswith('accepted with like_subjects="finished.*"')
    if len(live) == 8:
        play, _ = played("0" * 8, **options)  # type: ignore[arg-type]
        assert len(play.machine.mismatches) == 1


def jwt(claims: str, signature: str) -> str:
    parts = [b'{"alg":"HS256","typ":"JWT"}', claims.encode()]
    return ".".join([*(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts), signature])


TOKENS = [
    (jwt('{"sub":"a","iat":1790000000}', "x-7_" * 11), jwt('{"sub":"ab","iat":1791111111}', "_8-y" * 11)),
    ("gAAAAABm-_a/b+c==", "gAAAAABn+/+/b9=="),
    ("https://x.io/f?a=1&sig=x%2Bz==", "https://x.io/f?a=22&sig=yy%2B"),
    ("user|2024|abc!~*", "user|2024|d"),
    ("north-north", "south"),
]


@pytest.mark.parametrize(
    "answer",
    ['{"session":"%s"}', "Bearer %s", "token=%s", '{"a":["x %s"]}', "%s"],
)
@pytest.mark.parametrize("place", ["header", "json"])
@pytest.mark.parametrize(("recorded", "live"), TOKENS)
def test_any_text_is_accepted_and_comes_back(recorded: str, live: str, place: str, answer: str) -> None:
    def sent(one: str) -> bytes:
        if place == "header":
            return pub("login", "x", headers=block("Authorization", one))
        return pub("login", json.dumps({"token": one, "n": 1}))

    options = MatchOptions(**read({"any_headers": "authorization", "any_json": "login /token"}))
    play = conversation(sent(recorded), msg("done", answer % recorded), options)
    assert play.send(1, sent(live)) == msg("done", answer % live)
    assert play.machine.mismatches == []


def test_any_text_may_be_another_one_each_time() -> None:
    """A token that is signed again differs when its second has passed."""
    options = MatchOptions(**read({"any_json": "/token"}))
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB > 1\r\n")]
    for one in ("t" * 20, "t" * 20, "u" * 20):
        lines += [
            (1, ">", pub("a", f'{{"token":"{one}"}}')),
            (1, "<", msg("b", f'{{"of":"{one}"}}')),
            (1, ">", pub("c", f"use {one}")),
        ]
    play = Play(lines, options=options)
    play.open(1, "a")
    play.send(1, b"SUB > 1\r\n")
    for one in ("x" * 20, "y" * 20, "y" * 20):
        assert play.send(1, pub("a", f'{{"token":"{one}"}}')) == msg("b", f'{{"of":"{one}"}}')
        play.send(1, pub("c", f"use {one}"))
    assert play.machine.mismatches == []


@pytest.mark.parametrize(
    ("recorded", "live"),
    [('{"t":"a"}', '{"t":1}'), ('{"t":"a"}', "{}"), ('{"t":{"a":1}}', '{"t":{"a":"b"}}')],
)
def test_any_text_is_a_text(recorded: str, live: str) -> None:
    play = conversation(pub("a", recorded), msg("b"), MatchOptions(**read({"any_json": "/t"})))
    play.send(1, pub("a", live))
    assert len(play.machine.mismatches) == 1


@pytest.mark.parametrize(("recorded", "live"), [("short", "other"), ("17", "18"), ("0.5", "7")])
def test_a_short_text_that_may_be_any_comes_back_in_members_of_its_name(recorded: str, live: str) -> None:
    before, now = (f'"{one}"' if one.isalpha() else one for one in (recorded, live))
    got = '{"a":{"token":%s,"n":%s}}'
    play = conversation(
        pub("a", f'{{"token":{before}}}'),
        msg("b", got % (before, before)),
        MatchOptions(**read({"any_json": "/token"})),
    )
    assert play.send(1, pub("a", f'{{"token":{now}}}')) == msg("b", got % (now, before))


def _always(recorded: bytes, live: bytes) -> bool:
    return True


@pytest.mark.parametrize("text", ['{"order":{"id":"%s"},"n":%d}', "order %s"])
@pytest.mark.parametrize(
    "options",
    [{"ignore_bodies": "a"}, {"match_on": "subject,headers,order"}, {"bodies": {"a": _always}}],
)
def test_a_payload_that_need_not_agree_is_learned_from(text: str, options: dict[str, object]) -> None:
    """The number differs as well, and is data."""
    recorded, live, answer = (
        text.replace("%s", one).replace("%d", n) for one, n in ((R1, "7"), (L1, "8"), (L1, "7"))
    )
    play = conversation(pub("a", recorded), msg("b", recorded), MatchOptions(**read(options)))
    assert play.send(1, pub("a", live)) == msg("b", answer)


@pytest.mark.parametrize("place", ["/order", "/order/id"])
def test_a_member_that_need_not_agree_is_learned_from(place: str) -> None:
    sent = '{"order":{"id":"%s"}}'
    play = conversation(
        pub("a", sent % R1), msg("b", sent % R1), MatchOptions(**read({"ignore_json": place}))
    )
    assert play.send(1, pub("a", sent % L1)) == msg("b", sent % L1)


@pytest.mark.parametrize(
    ("options", "learned"),
    [
        ({}, True),
        ({"learn": False}, False),
        ({"learn_not": "/id"}, False),
        ({"learn_not": "other /id"}, True),
        ({"learn_not": "/other"}, True),
        ({"learn_only": "/id"}, True),
        ({"learn_only": "header:X-Id"}, False),
    ],
)
def test_learning_is_limited_by_patterns(options: dict[str, object], learned: bool) -> None:
    body = '{"id":"%s"}'
    play = conversation(pub("a", body % R1), msg("b", body % R1), MatchOptions(**read(options)))
    answer = play.send(1, pub("a", body % L1))
    assert (answer == msg("b", body % L1)) is learned
    assert bool(play.machine.mismatches) is not learned


def test_hostile_payloads_are_compared_in_bounds() -> None:
    deep, wide = "[" * 100_000 + "]" * 100_000, json.dumps([R1] * 20_000)
    for recorded, live in (
        (deep, deep[1:-1]),
        (wide, wide.replace(R1, L1).replace(L1, L2, 1)),
        ('{"n":1}', f'{{"n":{"9" * 5000}}}'),
    ):
        play = conversation(pub("a", recorded), msg("b", recorded))
        play.send(1, pub("a", live))
        assert len(play.machine.mismatches) == 1


def test_reports_show_no_control_characters_and_no_half_letters() -> None:
    bad = "\x1b[31m"
    play = conversation(pub("a", json.dumps({bad: R1, "x": 1})), msg("b"))
    play.send(1, pub("a", json.dumps({bad: L1, "x": bad + "\ud800"})))
    text = str(play.machine.mismatches[0]) + play.machine.mismatches[0].summary
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.encode()


Step = tuple[int, int]
"""(the number of an order, a number of the step's own)."""


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[str], list[str], list[Step]]:
    """Recorded and live identifiers of some orders, and the steps after all were created."""
    count = draw(st.integers(2, 5))
    ids = draw(st.lists(st.uuids(version=4), min_size=2 * count, max_size=2 * count, unique=True))
    names = [str(one) for one in ids]
    orders = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8))
    return names[:count], names[count:], list(zip(orders, range(len(orders)), strict=True))


def sent(kind: int, name: str, n: int) -> bytes:
    """Return a frame that names an order in one of several places."""
    return [
        pub(f"orders.{name}", f"{n}"),
        pub("orders", f"{n}", headers=block("X-Order", name)),
        pub("orders", json.dumps({"n": n, "of": {"id": name}})),
        pub("orders", f"{n} for order-{name}"),
    ][kind % 4]


def got(kind: int, name: str, n: int) -> bytes:
    """Return an answer likewise."""
    return [
        msg(f"done.{name}", f"{n}"),
        msg("done", f"{n}", headers=block("X-Order", name)),
        msg("done", json.dumps({"n": n, "key": f"order-{name}"})),
    ][kind % 3]


def run(
    recorded: list[str], live: list[str], steps: list[Step], shift: int, wrong: int | None = None
) -> Play:
    """Record the steps, play them with other identifiers; step `wrong` names the next order."""
    every = [(order, -1 - order) for order in range(len(recorded))] + steps
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"SUB > 1\r\n")]
    for order, n in every:
        lines += [(1, ">", sent(n + shift, recorded[order], n)), (1, "<", got(n, recorded[order], n))]
    play = Play(lines)
    play.open(1, "a")
    play.send(1, b"SUB > 1\r\n")
    for order, n in every:
        name = live[(order + (n == wrong)) % len(live)]
        answer = play.send(1, sent(n + shift, name, n))
        if wrong is None:
            assert answer == got(n, name, n)
    return play


@given(programs(), st.integers(0, 3))
def test_every_answer_names_the_live_orders(
    program: tuple[list[str], list[str], list[Step]], shift: int
) -> None:
    recorded, live, steps = program
    play = run(recorded, live, steps, shift)
    assert play.machine.done
    assert not play.machine.mismatches
    known = play.machine.identifiers
    assert len({known.to_live(one.encode()) for one in recorded}) == len(recorded)
    assert [known.to_recorded(one.encode()).decode() for one in live] == recorded


@given(programs(), st.integers(0, 3), st.data())
def test_a_swapped_order_never_passes(
    program: tuple[list[str], list[str], list[Step]], shift: int, data: st.DataObject
) -> None:
    recorded, live, steps = program
    wrong = data.draw(st.integers(0, len(steps) - 1))
    assert len(run(recorded, live, steps, shift, wrong).machine.mismatches) == 1


def test_uuids_of_tests_are_uuids() -> None:
    assert [str(UUID(one)) for one in (R1, R2, L1, L2)] == [R1, R2, L1, L2]


PROGRAM = """
import asyncio, base64, json, os, time, uuid
import nats

def part(value):
    return base64.urlsafe_b64encode(value).decode().rstrip("=")

async def answer(msg):
    body = json.loads(msg.data)
    same = msg.headers["Authorization"] == "Bearer " + body["token"]
    await msg.respond(json.dumps({"session": body["token"], "same": same}).encode())

async def main():
    if os.environ["SERVICE"]:  # its service is there while it is recorded
        service = await nats.connect(os.environ["SERVICE"])
        await service.subscribe("login", cb=answer)
        await service.flush()
    client = await nats.connect(os.environ["NATS_URL"])
    claims = json.dumps({"iat": time.time_ns(), "jti": str(uuid.uuid4())}).encode()
    token = ".".join(map(part, (b'{"alg":"HS256"}', claims, os.urandom(32))))
    body, headers = json.dumps({"token": token}).encode(), {"Authorization": f"Bearer {token}"}
    got = json.loads((await client.request("login", body, headers=headers)).data)
    print(got["session"] == token, got["same"])

asyncio.run(main())
"""


@pytest.mark.server
async def test_a_program_with_a_token_plays(tmp_path: Path) -> None:
    program, path = tmp_path / "login.py", tmp_path / "x.ncap"
    program.write_text(PROGRAM)
    async with nats_server() as server, recording(path, server) as url:
        assert await run_program(program, url, env={"SERVICE": f"nats://{server}"}) == "True True\n"
    options = read({"any_json": "login /token", "any_headers": "Authorization"})
    for _ in range(3):
        async with cassette(path, options=options) as player:
            assert await run_program(program, player.url, env={"SERVICE": ""}) == "True True\n"
            assert player.mismatches == []
