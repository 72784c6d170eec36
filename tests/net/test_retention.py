"""`--record-keep`: the oldest segments of a recording are deleted, and nothing else is."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.records import Note
from natsproxy.capture.read.frames import read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.segment import CaptureFile
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import Keep, RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import MissingCapture
from natsproxy.events import Event, Notice
from natsproxy.net.proxy import Proxy
from natsproxy.net.retention import Retention
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.units import DAY, HOUR, KIB
from tests.kit.servers import NatsServer
from tests.net.test_recorder import MESSAGE, ask

MS = 1_000_000
ANYWHERE = Address()
RULE = '[[rules]]\nname = "{name}"\nkind = "deny"\nsubject = "secret"\n'


class Recorded:
    """A proxy that records, and its events."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.events: list[Event] = []
        proxy.subscribe(self.events.append)

    def notices(self, text: str) -> list[Notice]:
        """Return the notices that begin with a text."""
        return [one for one in self.events if isinstance(one, Notice) and one.text.startswith(text)]

    async def next_segment(self) -> None:
        """Begin a segment, and wait until it is there."""
        assert self.proxy.recorder is not None
        before = self.proxy.recorder.file
        self.proxy.rotate()
        await until(lambda: self.proxy.recorder.file != before)  # type: ignore[union-attr]


async def until(true: Callable[[], Any]) -> None:
    """Wait until something is so; a segment that goes while it is read is no answer."""
    with trio.fail_after(20):
        while True:
            with suppress(MissingCapture):
                if true():
                    return
            await trio.sleep(0.002)


@asynccontextmanager
async def recording(
    server: NatsServer,
    path: Path,
    keep: Keep,
    listen: Address = ANYWHERE,
    **settings: Any,
) -> AsyncIterator[Recorded]:
    """Run a proxy that records."""
    record = RecordSettings(path, keep=keep, flush=5 * MS, **settings)
    upstream = (Server(Address("127.0.0.1", server.port)),)
    async with trio.open_nursery() as nursery:
        run = Recorded(Proxy(ProxySettings(listen=(Listener(listen),), upstream=upstream, record=record)))
        await nursery.start(run.proxy.serve)
        yield run
        await run.proxy.drain(5)


def files(folder: Path) -> list[str]:
    """Return the names of the captures in a folder."""
    return sorted(one.name for one in folder.glob("*.ncap"))


def names(folder: Path) -> set[str]:
    """Return the names of all files in a folder."""
    return {one.name for one in folder.iterdir()}


def used(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(one.stat().st_size for one in folder.iterdir())


def segments(folder: Path) -> dict[bytes, list[int]]:
    """Return the segments of each recorder in a folder."""
    found: dict[bytes, list[int]] = {}
    for segment in open_capture(folder).segments():
        found.setdefault(segment.recorder, []).append(segment.number)
    return found


@pytest.mark.server
async def test_as_many_segments_as_are_kept(nats_server: NatsServer, tmp_path: Path) -> None:
    """The oldest go, the newest stay, and the log counts what is gone."""
    async with recording(nats_server, tmp_path, Keep(count=3)) as run:
        for _ in range(6):
            await run.next_segment()
        recorder = run.proxy.recorder
        assert recorder is not None
        await until(lambda: recorder.expired[0] == 4)
        assert segments(tmp_path) == {recorder.id: [4, 5, 6]}
        said = run.notices("old segments of the capture are deleted")
        assert sum(int(str(one.data["segments"])) for one in said) == 4
        assert sum(int(str(one.data["bytes"])) for one in said) == recorder.expired[1] > 0
    assert segments(tmp_path) == {recorder.id: [4, 5, 6]}


@pytest.mark.server
async def test_a_size_is_never_exceeded_by_more_than_an_index(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Room is made before a block is written."""
    keep, most = 400 * KIB, 0
    async with recording(nats_server, tmp_path / "x.ncap", Keep(size=keep), rotate_size=100 * KIB) as run:
        (address,) = run.proxy.listen
        stream = await trio.open_tcp_stream(address.host, address.port)
        assert await ask(stream, b'CONNECT {"verbose":false}\r\n')
        for _ in range(120):
            assert await ask(stream, MESSAGE)
            await until(lambda: not run.proxy.recorder.waiting)  # type: ignore[union-attr]
            most = max(most, used(tmp_path))
        await stream.aclose()
    assert keep // 2 < most < keep + 20 * KIB
    assert run.proxy.recorder is None
    assert "x.ncap" not in files(tmp_path)
    assert run.notices("old segments")


@pytest.mark.server
async def test_a_segment_that_is_too_old_goes_while_nothing_is_written(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """No traffic and no new segment are needed."""
    async with recording(nats_server, tmp_path, Keep(age=200 * MS)) as run:
        await run.next_segment()
        recorder = run.proxy.recorder
        assert recorder is not None
        await until(lambda: segments(tmp_path) == {recorder.id: [1]})


@pytest.mark.server
async def test_a_later_run_goes_on_with_the_segments_of_an_earlier_one(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Where host and listening address are the same; one that a crash left without an index counts too."""
    path = tmp_path / "traffic.ncap"
    async with recording(nats_server, path, Keep(count=9)) as run:
        (address,) = run.proxy.listen
        await run.next_segment()
        await run.next_segment()
    first, _, third = files(tmp_path)
    assert first == path.name
    newest = tmp_path / third
    os.truncate(newest, newest.stat().st_size - 5)  # its footer
    async with recording(nats_server, path, Keep(count=2), address) as run:
        await until(lambda: len(files(tmp_path)) == 2)
        assert files(tmp_path)[0] == third
        assert files(tmp_path)[1] > third
        await run.next_segment()
        await until(lambda: len(files(tmp_path)) == 2)
        assert not newest.exists()


@pytest.mark.server
async def test_the_segments_of_others_stay(nats_server: NatsServer, tmp_path: Path) -> None:
    """Other recorders, with limits or without, copies under other names, and what is no capture."""
    writer = CaptureWriter(tmp_path, SegmentInfo(b"o" * 16, b"b" * 16, 1, 1))
    writer.open_segment()
    writer.open_segment()
    writer.close()
    (tmp_path / "notes.ncap").write_bytes(b"not a capture")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty.ncap").touch()
    before = names(tmp_path)
    async with (
        recording(nats_server, tmp_path, Keep(count=9)) as one,
        recording(nats_server, tmp_path, Keep(count=1)) as two,
    ):
        for _ in range(3):
            await one.next_segment()
            await two.next_segment()
        assert one.proxy.recorder is not None
        assert two.proxy.recorder is not None
        kept = {one.proxy.recorder.id: [0, 1, 2, 3], two.proxy.recorder.id: [3]}
        await until(lambda: two.proxy.recorder and two.proxy.recorder.expired[0] == 3)
        theirs = {f"{recorder.hex()}-{number}" for recorder, numbers in kept.items() for number in numbers}
        assert {name.removesuffix(".ncap").partition("-")[2] for name in names(tmp_path) - before} == theirs


@pytest.mark.server
async def test_no_traffic_waits_for_a_slow_deletion(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it records meanwhile is written afterwards."""
    unlink, begun, may_go = Path.unlink, threading.Event(), threading.Event()

    def slow(path: Path, missing_ok: bool = False) -> None:
        begun.set()
        assert may_go.wait(60)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", slow)
    async with recording(nats_server, tmp_path, Keep(count=1)) as run:
        (address,) = run.proxy.listen
        stream = await trio.open_tcp_stream(address.host, address.port)
        assert await ask(stream, b'CONNECT {"verbose":false}\r\n')
        run.proxy.rotate()
        await until(begun.is_set)
        for _ in range(3):
            assert await ask(stream, b"PUB slow 1\r\nx\r\n")
        assert len(files(tmp_path)) == 2
        may_go.set()
        await stream.aclose()
    frames = [one.head for one in read_frames(open_capture(tmp_path))]
    assert sum(frame is not None and frame.subject == b"slow" for frame in frames) == 3


OWNER = "host 127.0.0.1:4222"


def written(folder: Path, owner: str, wall: int = 1, *, close: bool = True) -> CaptureWriter:
    """Write one segment of a recording with limits."""
    settings = {"keep": {"owner": owner}}
    info = SegmentInfo(os.urandom(16), bytes(16), wall, 1, settings=settings)
    writer = CaptureWriter(folder, info)
    writer.open_segment()
    if close:
        writer.close()
    return writer


def test_the_oldest_goes_first_and_an_open_one_never(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another process may write to the same folder under the same owner: its lock says so."""
    retention = Retention(RecordSettings(tmp_path, keep=Keep(size=1)), OWNER)
    newer, older = written(tmp_path, OWNER, 2).file, written(tmp_path, OWNER, 1).file
    busy, other = written(tmp_path, OWNER, 0, close=False), written(tmp_path, "host 127.0.0.1:4223").file
    assert None not in (newer, older, busy.file, other)
    link = tmp_path / "link.ncap"
    elsewhere = written(tmp_path_factory.mktemp("elsewhere"), OWNER).file
    assert elsewhere is not None
    link.symlink_to(elsewhere)
    retention.look(tmp_path / "current.ncap")
    expired = retention.make_room(0)
    assert expired is not None
    assert (expired.segments, expired.last) == (2, str(newer))
    assert {*tmp_path.iterdir()} == {busy.file, other, link}
    busy.close()
    retention.look(tmp_path / "current.ncap")
    assert retention.make_room(0)
    assert {*tmp_path.iterdir()} == {other, link}
    assert retention.make_room(1 << 40) is None


def test_a_file_that_took_the_place_of_a_segment_stays(tmp_path: Path) -> None:
    """And so does the current one; a folder that is gone is no segment's end."""
    retention = Retention(RecordSettings(tmp_path, keep=Keep(count=1)), OWNER)
    first, second, current = (written(tmp_path, OWNER, wall).file for wall in range(3))
    assert first is not None
    assert second is not None
    assert current is not None
    retention.look(current)
    second.rename(tmp_path / "kept.saved")
    second.write_text("something else")
    first.unlink()
    assert retention.make_room(0) is None
    assert {*tmp_path.iterdir()} == {second, current, tmp_path / "kept.saved"}


def test_what_cannot_be_deleted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one goes."""
    retention = Retention(RecordSettings(tmp_path, keep=Keep(count=1)), OWNER)
    first = written(tmp_path, OWNER, 1).file
    written(tmp_path, OWNER, 2)
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == first:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    retention.look(tmp_path / "current.ncap")
    expired = retention.make_room(0)
    assert expired is not None
    assert (expired.segments, expired.failure) == (1, f"cannot delete {first}: Operation not permitted")


def aged(folder: Path, *ages: int) -> list[Path]:
    """Write finished segments, each in a run of its own, by the times since they were last written."""
    now, paths = time.time_ns(), list[Path]()
    for wall, age in enumerate(ages):
        file = written(folder, OWNER, wall).file
        assert file is not None
        os.utime(file, ns=(now, now - age))
        paths.append(file)
    return paths


def looked(folder: Path, keep: Keep) -> Retention:
    """Return a retention that has looked for the segments of earlier runs."""
    retention = Retention(RecordSettings(folder, keep=keep), OWNER)
    retention.look(folder / "current.ncap")
    return retention


def test_an_age_is_that_of_the_last_write(tmp_path: Path) -> None:
    old, *young = aged(tmp_path, DAY - HOUR, DAY // 2, 0)
    retention = looked(tmp_path, Keep(age=DAY))
    assert retention.make_room(0) is None
    due = retention.due()
    assert due is not None
    assert 3500 < due <= 3600
    now = time.time_ns()
    os.utime(old, ns=(now, now - DAY - HOUR))
    os.utime(young[0], ns=(now, now - DAY // 2 + HOUR // 2))
    retention = looked(tmp_path, Keep(age=DAY))
    assert retention.due() == pytest.approx(1800, abs=100)  # what is between two files counts as half a day
    os.utime(young[0], ns=(now, now - DAY // 2 - HOUR))
    os.utime(young[1], ns=(now, now - HOUR))
    retention = looked(tmp_path, Keep(age=DAY))
    assert retention.due() == 0
    assert retention.make_room(0)
    assert {*tmp_path.iterdir()} == {*young}


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR, 365 * DAY])
def test_a_clock_that_is_set_ages_nothing(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of this run go by a clock that nobody sets, and the oldest of them is the first one."""
    retention = looked(tmp_path, Keep(age=HOUR, count=3))
    writer = CaptureWriter(tmp_path, SegmentInfo(bytes(16), bytes(16), time.time_ns(), 1))
    made: list[Path] = []
    real = time.time_ns

    def stepped() -> int:
        return real() + (step if len(made) > 1 else 0)

    monkeypatch.setattr(time, "time_ns", stepped)
    for _ in range(5):
        info = SegmentInfo(bytes(16), bytes(16), time.time_ns(), 1, settings={"keep": {"owner": OWNER}})
        made.append(writer.open_segment(info))
        os.utime(made[-1], ns=(time.time_ns(), time.time_ns()))
        retention.look(made[-1])
        retention.make_room(0)
    writer.close()
    assert sorted(tmp_path.iterdir()) == made[2:]


@pytest.mark.parametrize("step", [30 * HOUR, 365 * DAY])
def test_a_clock_that_was_set_before_ages_earlier_runs_by_no_more_than_half(
    step: int, tmp_path: Path
) -> None:
    """Between two runs, or within one; what it says of shorter times counts."""
    before = aged(tmp_path, step + 9 * HOUR, step + 4 * HOUR, 3 * HOUR)
    retention = looked(tmp_path, Keep(age=DAY))
    due = retention.due()
    assert retention.make_room(0) is None
    assert due == pytest.approx((24 - 3 - 12 - 5) * 3600, abs=100)
    assert {*tmp_path.iterdir()} == {*before}


@pytest.mark.server
async def test_a_running_recording_outlives_a_step_of_the_clock(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All segments stay; those of the time before the step have not become an hour old."""
    real = time.time_ns
    async with recording(nats_server, tmp_path, Keep(age=HOUR)) as run:
        for number in range(6):
            if number == 3:
                monkeypatch.setattr(time, "time_ns", lambda: real() + 2 * HOUR)
            await run.next_segment()
        assert run.proxy.recorder is not None
        assert segments(tmp_path) == {run.proxy.recorder.id: [*range(7)]}
        assert run.proxy.recorder.expired == (0, 0)


def test_a_writer_holds_a_lock_until_it_closes(tmp_path: Path) -> None:
    writer = written(tmp_path, OWNER, close=False)
    assert writer.file is not None
    with writer.file.open("rb") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer.close()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.server
async def test_a_segment_begins_with_the_rules_in_force(nats_server: NatsServer, tmp_path: Path) -> None:
    """The record of the change is in an earlier segment, which may be deleted."""
    async with recording(nats_server, tmp_path, Keep(count=9)) as run:
        run.proxy.swap(RuleChain(load(RULE.format(name="one"), KINDS, source="x"), seed=1))
        await run.next_segment()
        run.proxy.swap(RuleChain((), seed=1))
        await run.next_segment()
    rules = [segment.rules for segment in open_capture(tmp_path).segments()]
    assert rules[0] is None
    assert '"one"' in (rules[1] or "")
    assert rules[2] is None
    notes = [item for _, item in open_capture(tmp_path).items() if isinstance(item, Note)]
    assert ['"one"' in note.info["rules"] for note in notes] == [True, False]
    with CaptureFile(tmp_path / files(tmp_path)[0]) as file:
        assert file.segment.settings["keep"]["count"] == 9
