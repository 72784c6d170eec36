"""Runs of a capture: connections of equal numbers, segments under any names, recorders at the same time."""

from __future__ import annotations

import io
import itertools
import random
from pathlib import Path

import pytest

from natsproxy.capture.export.pcapng import pcapng
from natsproxy.capture.format.connection import ConnectionChoice, ConnectionId
from natsproxy.capture.format.records import CloseRecord, Frames, Item, OpenRecord, Preamble
from natsproxy.capture.listing.choice import Choice, listed
from natsproxy.capture.listing.listing import Listed
from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import CaptureReader, Follower, last_moment, open_capture
from natsproxy.capture.read.runs import CaptureRun, by_time
from natsproxy.capture.text.writer import write_text
from natsproxy.errors import CaptureError
from natsproxy.replay.conversation.steps import Began, Ended, Step, events
from natsproxy.units import SECOND
from natsproxy.wire.ops import C2S
from tests.kit.restarts import WALL, write_run

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HOUR = 3600 * SECOND


def publish(body: str, t: int, conn: int = 1) -> Frames:
    data = b"PUB s %d\r\n%b\r\n" % (len(body), body.encode())
    return Frames(conn, C2S, data, 1, 1, 0, t, 0, t)


def connection(*frames: Frames) -> list[Item]:
    """Frames between the opening and the end of their connection."""
    conn = frames[0].conn
    info = {"client": f"10.0.0.{conn}:40000", "upstream": "10.0.1.1:4222"}
    return [
        OpenRecord(conn, frames[0].t, info),
        *frames,
        CloseRecord(conn, frames[-1].t, "client-closed", {}),
    ]


def bodies(path: Path, query: Query | None = None) -> list[tuple[str, str]]:
    """Return the label of the connection and the payload of each publish, as they are read."""
    found = read_frames(open_capture(path), query)
    return [(str(one.conn), one.frame.body.decode()) for one in found if one.frame is not None]


RESTARTED = [("1", "c"), ("2:1", "a1"), ("2:1", "a2"), ("2:1", "a3"), ("3:1", "b")]
"""The publishes of `restarted`."""


@pytest.fixture
def restarted(tmp_path: Path) -> Path:
    """The runs C, A and B, one connection each; names, ids and monotonic clocks have another order."""
    folder = tmp_path / "restarted"
    folder.mkdir()
    write_run(folder / "x-1.ncap", C, connection(publish("c", 1)), mono=10**15)
    a = connection(publish("a1", 1), publish("a2", 2), publish("a3", 3))
    for number, (name, items) in enumerate({"x-14": a[:2], "x-2": a[2:3], "x-13": a[3:]}.items()):
        write_run(folder / f"{name}.ncap", A, items, start=HOUR, mono=70, segment=number)
    write_run(folder / "x-0.ncap", B, connection(publish("b", 1)), start=2 * HOUR)
    return folder


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Two recorders that recorded at the same time, in blocks of two items, and one after them."""
    folder = tmp_path / "beside"
    folder.mkdir()
    for name, recorder, first in (("y", A, 0), ("x", B, 1)):
        frames = [publish(f"{name}{n}", n) for n in range(first, 20, 2)]
        write_run(folder / f"{name}.ncap", recorder, connection(*frames), mono=len(name) << 40, per_block=2)
    write_run(folder / "w.ncap", C, connection(publish("w", 1)), start=HOUR)
    return folder


def test_a_name_is_a_number_and_of_later_runs_that_of_the_run_too() -> None:
    assert [str(ConnectionId(A, run, -3)) for run in (1, 2, 13)] == ["-3", "2:-3", "13:-3"]


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        ([], "11 12 21 22"),
        (["1"], "11 21"),
        (["1:1"], "11"),
        ([" 2:1 ", "1:2"], "12 21"),
        (["2", "2:1"], "12 21 22"),
        (["3"], ""),
    ],
)
def test_a_choice_is_of_all_runs_or_of_one(texts: list[str], chosen: str) -> None:
    choice = ConnectionChoice.parse(texts)
    every = [ConnectionId(A, run, number) for run in (1, 2) for number in (1, 2)]
    found = [conn for conn in every if not choice or conn in choice]
    assert " ".join(f"{conn.run}{conn.number}" for conn in found) == chosen
    assert choice.without(every) == (["3"] if "3" in texts else [])


@pytest.mark.parametrize("text", ["", "x", "1:", ":1", "0:1", "1:2:3", "1 2", "1.5", "²", "9" * 30])
def test_other_choices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give NUMBER, or RUN:NUMBER"):
        ConnectionChoice.parse([text])


def test_restarts_are_read_by_time_whatever_the_names(restarted: Path) -> None:
    assert bodies(restarted) == RESTARTED
    assert bodies(restarted / "x-*.ncap") == RESTARTED
    paths = sorted(restarted.iterdir())
    for order in itertools.permutations(paths):
        found = [one.data for one in read_frames(CaptureReader(list(order)))]
        assert [data.split(b"\r\n")[1].decode() for data in found] == [body for _, body in RESTARTED]
    assert last_moment(open_capture(restarted)) == WALL + 2 * HOUR + 1


def test_recorders_at_the_same_time_are_merged(beside: Path) -> None:
    found = bodies(beside)
    assert [body for _, body in found] == [f"{'yx'[n % 2]}{n}" for n in range(20)] + ["w"]
    assert [label for label, _ in found] == ["1", "2:1"] * 10 + ["3:1"]
    lines = [one for one in listed(open_capture(beside), Choice()) if isinstance(one, Listed)]
    assert [str(line.one.conn) for line in lines] == [label for label, _ in found]


def test_the_order_of_a_run_stays_where_its_clock_was_set_back(tmp_path: Path) -> None:
    write_run(tmp_path / "a.ncap", A, [publish("1", 5), publish("2", 3), publish("3", 9)])
    write_run(tmp_path / "b.ncap", B, [publish("x", 4)], start=0)
    found = bodies(tmp_path)
    assert [body for label, body in found if body in "123"] == ["1", "2", "3"]
    assert len(found) == 4


def test_runs_that_follow_each_other_are_open_one_at_a_time() -> None:
    opened: list[int] = []

    def read(run: CaptureRun) -> list[tuple[int, str]]:
        opened.append(run.number)
        return [(run.start + n, f"{run.number}.{n}") for n in range(3)]

    runs = [CaptureRun(number, 10 * number, ()) for number in (1, 2, 3)]
    found = by_time(runs, lambda run: iter(read(run)), lambda one: one[0])
    for number in (1, 2, 3):
        assert [next(found)[1] for _ in range(3)] == [f"{number}.{n}" for n in range(3)]
        assert opened == list(range(1, number + 1))
    assert list(found) == []


def test_merging_is_sorting_of_runs_that_are_sorted() -> None:
    dice = random.Random(7)
    for _ in range(200):
        times = [sorted(dice.choices(range(30), k=dice.randrange(12))) for _ in range(dice.randrange(1, 6))]
        by_start = sorted((one for one in times if one), key=lambda one: one[0])
        runs = [CaptureRun(number, one[0] - dice.randrange(3), ()) for number, one in enumerate(by_start)]
        runs.sort(key=lambda run: run.start)
        sources = [iter(one) for one in by_start]
        found = by_time(runs, lambda run, of=sources: of[run.number], lambda t: t)  # type: ignore[misc]
        assert list(found) == sorted(itertools.chain(*times))


def test_a_choice_prunes_blocks_of_its_runs_only(restarted: Path) -> None:
    def chosen(*texts: str) -> list[tuple[str, str]]:
        return bodies(restarted, Query(conns=ConnectionChoice.parse(texts)))

    assert chosen("1") == RESTARTED
    assert chosen("1:1") == RESTARTED[:1]
    assert chosen("2:1", "3:1") == RESTARTED[1:]
    assert chosen("2") == []


def test_a_conversation_has_a_connection_for_each_run(restarted: Path) -> None:
    found = list(events(restarted))
    assert [event.conn.run for event in found if isinstance(event, Began)] == [1, 2, 3]
    assert [event.conn.run for event in found if isinstance(event, Ended)] == [1, 2, 3]
    steps = [event for event in found if isinstance(event, Step)]
    assert [(str(step.conn), step.frame.body.decode()) for step in steps] == RESTARTED
    assert [step.seq for step in steps] == list(range(5))
    assert [step.t for step in steps] == sorted(step.t for step in steps)


def test_connections_end_with_their_run_where_another_one_follows(tmp_path: Path) -> None:
    """The proxy was killed, so that nothing tells of their end; or the next recorder goes on with them."""
    late = Preamble(5, 0, {"connect": b"CONNECT {}\r\n", "subs": []})
    write_run(tmp_path / "a.ncap", A, [OpenRecord(5, 0, {}), publish("1", 1, 5)])
    write_run(tmp_path / "b.ncap", B, [late, publish("2", 1, 5), OpenRecord(6, 2, {})], start=SECOND)
    write_run(tmp_path / "c.ncap", C, [OpenRecord(5, 0, {}), publish("3", 1, 5)], start=2 * SECOND)
    kinds = [
        (type(event).__name__, str(event.conn)) for event in events(tmp_path) if not isinstance(event, Step)
    ]
    assert kinds == [
        *(("Began", "5"), ("Ended", "5")),
        *(("Began", "2:5"), ("Began", "2:6"), ("Ended", "2:5"), ("Ended", "2:6")),
        *(("Began", "3:5"), ("Ended", "3:5")),
    ]
    one = list(events(tmp_path / "a.ncap"))
    assert not any(isinstance(event, Ended) for event in one)  # it may be still open


def test_a_follower_reads_by_time_and_numbers_new_runs(restarted: Path) -> None:
    follower = Follower(restarted, pytest.fail)

    def poll() -> list[tuple[str, str]]:
        found = [(ref.connection(item), item) for ref, item in follower.poll() if isinstance(item, Frames)]
        return [(str(conn), bytes(item.data).split(b"\r\n")[1].decode()) for conn, item in found]

    assert poll() == RESTARTED
    write_run(restarted / "a-0.ncap", b"d" * 16, connection(publish("d", 1)), start=3 * HOUR)
    assert poll() == [("4:1", "d")]
    assert poll() == []


def test_segments_that_have_not_begun_or_are_none_come_last(restarted: Path) -> None:
    (restarted / "a-0.ncap").touch()
    told: list[str] = []
    reader = open_capture(restarted, told.append)
    assert len(list(read_frames(reader))) == 5
    assert told == [f"{restarted / 'a-0.ncap'}: it has no header yet, so it is not read"]
    (restarted / "a-0.ncap").write_text("nothing of that kind")
    found = read_frames(CaptureReader(sorted(restarted.iterdir(), reverse=True)))
    assert len(list(itertools.islice(found, 5))) == 5
    with pytest.raises(CaptureError, match=r"a-0.ncap: this is not a natsproxy capture"):
        next(found)


def test_packets_of_recorders_at_the_same_time_are_sorted(beside: Path) -> None:
    """Their monotonic clocks do not compare, and both have a client at one address."""
    out = io.BytesIO()
    assert pcapng(open_capture(beside), out, Query()) == 21
    raw = out.getvalue()
    places = [raw.index(f"\r\n{'yx'[n % 2]}{n}\r\n".encode()) for n in range(20)]
    assert places == sorted(places)


def test_a_text_of_recorders_at_the_same_time_reads_alike(beside: Path, tmp_path: Path) -> None:
    def text(path: Path) -> bytes:
        out = io.BytesIO()
        write_text(open_capture(path), out)
        return out.getvalue()

    path = tmp_path / "beside.nats.txt"
    path.write_bytes(text(beside))
    numbers = {"1": "1", "2:1": "2", "3:1": "3"}
    assert bodies(path) == [(numbers[label], body) for label, body in bodies(beside)]
    assert text(path) == path.read_bytes()
    walls = [one.wall for one in read_frames(open_capture(path))]
    assert walls == [one.wall for one in read_frames(open_capture(beside))]
    for recorder in (A, B, C):
        assert recorder.hex().encode() in path.read_bytes()
