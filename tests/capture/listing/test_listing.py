"""What a listing knows around a frame: its client, the request that it answers, whether it is routine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.format.records import CloseRecord, Item, Preamble
from natsproxy.capture.listing.choice import Choice, listed, listed_frames
from natsproxy.capture.listing.listing import Event, Listed
from natsproxy.capture.listing.row import iso, json_line
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.rules.model.roles import ROLES
from natsproxy.wire.ops import C2S, S2C, Op
from tests.kit.captures import MONO, WALL, Scribe, write

CONNECT = b'CONNECT {"name":"%s","verbose":false}\r\n'
INFO = b'INFO {"server_id":"S","version":"2.15.1"} \r\n'
SUBS = [[b"1", b"i.*", b"", 0, 0], [b"2"], 7, [b"1", 2, 3]]
HEADED = b"HPUB %s 36 38\r\nNATS/1.0\r\nX-Kind: new\r\nX-Kind: 2\r\n\r\nhi\r\n"


@pytest.fixture
def items() -> list[Item]:
    """Two clients, one of them connected before; requests and their answers."""
    scribe = Scribe()
    scribe.items.append(Preamble(1, MONO, {"connect": CONNECT % b"shop", "subs": SUBS}))
    scribe.frame(0, 2, S2C, INFO)
    scribe.frame(1, 2, C2S, CONNECT % b"pricing")
    scribe.frame(2, 2, C2S, b"PING\r\n")
    scribe.frame(3, 2, S2C, b"PONG\r\n")
    scribe.frame(4, 2, S2C, INFO)
    scribe.frame(5, 1, C2S, b"PUB orders.new i.1 0\r\n\r\n")
    scribe.frame(6, 1, S2C, b'MSG i.1 1 22\r\n{"stream":"S","seq":7}\r\n')
    scribe.frame(7, 1, C2S, b"PUB $JS.API.STREAM.INFO.S i.2 0\r\n\r\n")
    scribe.frame(8, 1, S2C, b'MSG i.2 1 22\r\n{"stream":"S","seq":7}\r\n')
    scribe.frame(9, 2, C2S, HEADED % b"a.b")
    scribe.frame(10, 2, S2C, b'INFO {"server_id":"S","ldm":true} \r\n')
    scribe.items.append(CloseRecord(1, MONO + 11, "client-closed", {}))
    scribe.frame(12, 1, C2S, b"PUB later 0\r\n\r\n")
    return scribe.items


def times(path: Path, items: list[Item], choice: Choice, per_block: int = 4) -> list[int]:
    """Return the times of the frames that are chosen."""
    found = listed_frames(open_capture(write(path, items, per_block=per_block)), choice)
    return [one.one.t - MONO for one in found]


def test_names_of_clients(tmp_path: Path, items: list[Item]) -> None:
    """From CONNECT, or from the preamble; a connection that has ended has none."""
    found = {
        one.one.t - MONO: one.client
        for one in listed_frames(open_capture(write(tmp_path / "x.ncap", items)), Choice())
    }
    assert (found[0], found[1], found[5], found[9], found[12]) == ("", "pricing", "shop", "pricing", "")


def test_routine_frames(tmp_path: Path, items: list[Item]) -> None:
    """Keep-alives, and an INFO that repeats the greeting; not one that announces an end."""
    found = listed_frames(open_capture(write(tmp_path / "x.ncap", items)), Choice())
    assert [one.one.t - MONO for one in found if one.routine] == [2, 3, 4]


def test_an_answer_knows_its_request(tmp_path: Path, items: list[Item]) -> None:
    rows = [
        json.loads(json_line(one))
        for one in listed_frames(open_capture(write(tmp_path / "x.ncap", items)), Choice())
    ]
    answers = {row["subject"]: row for row in rows if "request" in row}
    assert answers["i.1"]["request"] == {"subject": "orders.new", "after_ns": 1}
    assert answers["i.1"]["meaning"]["text"] == "stored S #7"
    assert set(answers) == {"i.1", "i.2"}
    assert answers["i.1"]["subscription"] == {"subject": "i.*"}


def test_headers_are_a_map(tmp_path: Path) -> None:
    """A name that comes again has a list; a block that breaks the grammar is there as text too."""
    scribe = Scribe()
    scribe.frame(0, 1, C2S, HEADED % b"a")
    scribe.frame(1, 1, C2S, b"HPUB b 14 14\r\nNATS/1.0\r\nodd\n\r\n")
    first, second = (
        json.loads(json_line(one))
        for one in listed_frames(open_capture(write(tmp_path / "x.ncap", scribe.items)), Choice())
    )
    assert first["headers"] == {"X-Kind": ["new", "2"]}
    assert "headers_raw" not in first
    assert (second["headers"], second["headers_raw"]) == ({}, "NATS/1.0\r\nodd\n")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(clients=("shop",)), [5, 6, 7, 8]),
        (Choice(clients=("pri*", "x")), [1, 2, 3, 4, 9, 10]),
        (Choice(Query(ops=Op.PUB.bit), clients=("shop",)), [5, 7]),
        (Choice(roles=(ROLES["publish-ack"],)), [6]),
        (Choice(roles=(ROLES["api"], ROLES["publish-ack"])), [6, 7]),
        (Choice(Query(subjects=(b"orders.>",)), roles=(ROLES["publish-ack"],)), [6]),
        (Choice(Query(subjects=(b"bills.>",)), roles=(ROLES["publish-ack"],)), []),
        (Choice(Query(direction=C2S), roles=(ROLES["publish-ack"],)), []),
        (Choice(roles=(ROLES["api-reply"],)), [8]),
        (Choice(headers=((b"x-kind", None),)), [9]),
        (Choice(headers=((b"X-Kind", "n?w"), (b"x-kind", "2"))), [9]),
        (Choice(headers=((b"X-Kind", "old"),)), []),
        (Choice(Query(start=WALL + 9), clients=("pricing",)), [9, 10]),
        (Choice(Query(conns=ConnectionChoice.of(1))), [5, 6, 7, 8, 12]),
    ],
)
@pytest.mark.parametrize("per_block", [1, 4, 100])
def test_choices(
    tmp_path: Path, items: list[Item], choice: Choice, expected: list[int], per_block: int
) -> None:
    """Whatever blocks the frames are in."""
    assert times(tmp_path / "x.ncap", items, choice, per_block) == expected


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (Choice(), 2),
        (Choice(Query(subjects=(b"a",))), 0),
        (Choice(clients=("shop",)), 2),
        (Choice(clients=("pricing",)), 0),
        (Choice(Query(conns=ConnectionChoice.of(2))), 0),
        (Choice(Query(end=WALL + 10)), 1),
    ],
)
def test_events_of_a_choice(tmp_path: Path, items: list[Item], choice: Choice, count: int) -> None:
    """They are there where all frames of their connection are."""
    found = listed(open_capture(write(tmp_path / "x.ncap", items)), choice)
    assert len([one for one in found if isinstance(one, Event)]) == count


def test_a_preamble_may_hold_anything(tmp_path: Path) -> None:
    """Captures are hostile input."""
    items: list[Item] = [
        Preamble(1, MONO, {"connect": raw, "open": 7}) for raw in (b"x", b"CONNECT [\r\n", 5, None)
    ]
    found = list(listed(open_capture(write(tmp_path / "x.ncap", items)), Choice()))
    assert [type(one) for one in found] == [Event] * 4
    assert not any(isinstance(one, Listed) for one in found)


@pytest.mark.parametrize("wall", [-(1 << 63), -1, 0, (1 << 63) - 1, 1 << 64])
def test_any_number_is_a_time(wall: int) -> None:
    assert iso(wall)[4] == "-"
