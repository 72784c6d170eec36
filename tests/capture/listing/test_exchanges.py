"""The frames of an exchange come together, chosen early or late, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.capture.format.connection import ConnectionId
from natsproxy.capture.format.records import Frames, Item
from natsproxy.capture.listing.choice import Choice, listed_frames
from natsproxy.capture.listing.exchanges import Exchanges
from natsproxy.capture.listing.listing import Listed
from natsproxy.capture.read.frames import CapturedFrame, Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.rules.model.roles import ROLES
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames
from tests.kit.captures import MONO, WALL, Scribe, write

ACK = b"$JS.ACK.S.c.%d.%d.9.1795358594928748309.0"


class Talk:
    """A conversation, frame by frame; `said` names what came out by the names that it was given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scribe = Scribe()
        self.names: list[str] = []

    def add(
        self, name: str, conn: int, direction: Direction, raw: bytes, *, cause: str | None = None
    ) -> None:
        """Add a frame."""
        self.scribe.frame(len(self.names) * 1000, conn, direction, raw, cause=cause)
        self.names.append(name)

    def said(self, choice: Choice) -> list[str]:
        """Return the names of the frames that are chosen, in the order in which they come."""
        found = listed_frames(open_capture(write(self.path, self.scribe.items, per_block=3)), choice)
        return [self.names[(one.one.t - MONO) // 1000] for one in found]


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    """A request, publishes with and without JetStream, a denial and a request to nobody."""
    made = Talk(tmp_path / "x.ncap")
    made.add("info", 1, S2C, b'INFO {"server_id":"S"} \r\n')
    made.add("ask", 1, C2S, b"PUB quotes.price i.1 2\r\nq1\r\n")
    made.add("other", 1, C2S, b"PUB orders.new 2\r\no1\r\n")
    made.add("asked", 2, S2C, b"MSG quotes.price 1 i.1 2\r\nq1\r\n")
    made.add("answer", 2, C2S, b"PUB i.1 2\r\na1\r\n")
    made.add("answered", 1, S2C, b"MSG i.1 1 2\r\na1\r\n")
    made.add("copy", 3, S2C, b"MSG orders.new 4 2\r\no1\r\n")
    made.add("again", 1, C2S, b"PUB orders.new 2\r\no1\r\n")
    made.add("copy again", 3, S2C, b"MSG orders.new 4 2\r\no1\r\n")
    made.add("store", 1, C2S, b"PUB jobs.a i.2 2\r\nj1\r\n")
    made.add("stored", 1, S2C, b'MSG i.2 1 22\r\n{"stream":"S","seq":7}\r\n')
    made.add("pull", 3, C2S, b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c i.3 1\r\n1\r\n")
    made.add("job", 3, S2C, b"MSG jobs.a 5 %s 2\r\nj1\r\n" % (ACK % (1, 7)))
    made.add("nak", 3, C2S, b"PUB %s 4\r\n-NAK\r\n" % (ACK % (1, 7)))
    made.add("job again", 3, S2C, b"MSG jobs.a 5 %s 2\r\nj1\r\n" % (ACK % (2, 7)))
    made.add("ack", 3, C2S, b"PUB %s 0\r\n\r\n" % (ACK % (2, 7)))
    made.add("secret", 1, C2S, b"PUB secret.x 0\r\n\r\n", cause="deny")
    made.add("denied", 1, S2C, b"-ERR 'Permissions Violation for Publish to \"secret.x\"'\r\n")
    made.add("nobody", 1, C2S, b"PUB no.one i.4 0\r\n\r\n")
    made.add("503", 1, S2C, b"HMSG i.4 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")
    return made


def about(*subjects: bytes) -> Choice:
    """Return the choice of the exchanges of some subjects."""
    return Choice(Query(subjects=subjects), exchange=True)


JOB = ["store", "stored", "job", "nak", "job again", "ack"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (about(b"quotes.>"), ["ask", "asked", "answer", "answered"]),
        (about(b"i.1"), ["ask", "asked", "answer", "answered"]),
        (about(b"secret.>"), ["secret", "denied"]),
        (Choice(Query(ops=Op.ERR.bit), exchange=True), ["secret", "denied"]),
        (Choice(roles=(ROLES["no-responders"],), exchange=True), ["nobody", "503"]),
        (Choice(roles=(ROLES["publish-ack"],), exchange=True), JOB),
        (Choice(roles=(ROLES["redelivery"],), exchange=True), JOB),
        (Choice(roles=(ROLES["pull"],), exchange=True), ["pull", *JOB[2:]]),
        (Choice(Query(subjects=(b"quotes.>",), end=WALL), exchange=True), []),
    ],
)
def test_what_belongs_together(talk: Talk, choice: Choice, names: list[str]) -> None:
    assert talk.said(choice) == names


def test_the_second_copy_belongs_to_the_second_publish(talk: Talk) -> None:
    found = listed_frames(open_capture(write(talk.path, talk.scribe.items)), about(b"orders.>"))
    numbers = [one.exchange for one in found]
    assert numbers == [numbers[0], numbers[0], numbers[2], numbers[2]]
    assert numbers[0] != numbers[2]


def test_a_changed_publish_and_its_deliveries(tmp_path: Path) -> None:
    """Under both of its subjects."""

    def came(conn: int, direction: Direction, raw: bytes, t: int) -> Item:
        return Frames(conn, direction, raw, 1, 0, 0, MONO + t, None, None, "map")

    def went(conn: int, direction: Direction, raw: bytes, t: int) -> Item:
        return Frames(conn, direction, raw, 1, 0, None, None, 0, MONO + t, "map", 0, {"of": 0})

    items = [
        came(1, C2S, b"PUB eu.1 1\r\nx\r\n", 0),
        went(1, C2S, b"PUB region.1 1\r\nx\r\n", 1),
        came(2, S2C, b"MSG region.1 1 1\r\nx\r\n", 2),
        went(2, S2C, b"MSG eu.1 1 1\r\nx\r\n", 3),
    ]
    found = listed_frames(open_capture(write(tmp_path / "x.ncap", items)), about(b"eu.1"))
    assert [one.one.t - MONO for one in found] == [0, 1, 2, 3]


def test_waiting_frames_are_bounded() -> None:
    """The oldest are forgotten; the others come, without the reads that they came in."""

    conn = ConnectionId(b"r", 1, 1)

    def publish(n: int) -> Listed:
        raw = b"PUB a.%d i.%d 10000\r\n%s\r\n" % (n, n, b"x" * 10_000)
        (frame,) = frames(raw, C2S)
        wide = Frame(raw * 2, 0, len(raw), frame.line_end, *frame[4:])
        return Listed(CapturedFrame(conn, C2S, n, n, n, n, 0, None, 0, None, wide, raw), "", None, False)

    def answer(n: int) -> Listed:
        raw = b"MSG i.%d 1 0\r\n\r\n" % n
        (frame,) = frames(raw, S2C)
        return Listed(CapturedFrame(conn, S2C, n, n, n, n, 0, None, 0, None, frame, raw), "", None, False)

    exchanges = Exchanges(held=100_000)
    for n in range(100):
        assert list(exchanges.add(publish(n), False)) == []
    (late,) = exchanges.add(answer(1), True)
    asked, answered = exchanges.add(answer(99), True)
    assert (late.one.t, asked.one.t, answered.one.t) == (1, 99, 99)
    assert asked.one.frame is not None
    assert asked.one.frame.raw == asked.one.frame.buffer == asked.one.data
