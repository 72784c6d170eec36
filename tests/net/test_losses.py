"""Nothing is lost without a word: whatever fails, and however the recording ends.

Frames in the capture + frames in its gap records = frames given.  What has no gap record is said by the
recorder, and by a capture that is not closed.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from natsproxy.capture.format.records import Frames, GapRecord, Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.read.recover import verify
from natsproxy.capture.write import writer as writing
from natsproxy.capture.write.builder import BlockBuilder, SealedBlock
from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.config.recording import RecordSettings
from natsproxy.errors import CaptureError
from natsproxy.events import Event, Notice, RecordingResumed
from natsproxy.net import writer_thread
from natsproxy.net.admission import Admission
from natsproxy.net.clock import now_ns
from natsproxy.net.recorder import Recorder
from natsproxy.net.writer_thread import Loss, WriterThread
from natsproxy.wire.ops import C2S
from tests.kit.captures import MONO, WALL
from tests.kit.disks import FaultyDisk, Killed

MS = 1_000_000
NAME = "x.ncap"
FULL = 300
"""The frames of a block that takes most of a small disk."""


class Ending:
    """The event of a writer's end: it comes with a call of the disk, or with the last job."""

    def __init__(self, disk: FaultyDisk, at: int) -> None:
        self._disk, self._at = disk, at
        self.jobs: Any = None

    def set(self) -> None:
        """Do nothing: the end is in the queue from the beginning."""

    def wait(self, _: float) -> bool:
        """Tell whether the end has come."""
        return self._disk.calls >= self._at or self.jobs.empty()


@contextmanager
def using(disk: FaultyDisk) -> Iterator[None]:
    """Let the writer write to a disk, and try again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "os", disk)
        patch.setattr(writer_thread, "FIRST_PAUSE", 0.0005)
        patch.setattr(writer_thread, "LONGEST_PAUSE", 0.0005)
        yield


def block(frames: int) -> SealedBlock:
    """Return a block with one record of so many frames."""
    builder = BlockBuilder()
    builder.begin(MONO, WALL)
    builder.add(Frames(1, C2S, b"PING\r\n" * frames, frames, 0, 0, MONO, 0, MONO))
    return builder.seal()


def counted(folder: Path) -> tuple[int, int]:
    """Return the frames in the captures of a folder, and those in their gap records."""
    frames = missing = 0
    for path in folder.glob("*.ncap"):
        if path.stat().st_size and verify(path).segment:
            for _, item in open_capture(path).items():
                frames += item.frames if isinstance(item, Frames) else 0
                missing += item.info["frames"] if isinstance(item, GapRecord) else 0
    return frames, missing


def whole(folder: Path) -> bool:
    """Tell whether all files of a folder are whole."""
    return all(verify(path).whole for path in folder.glob("*.ncap"))


def check_order(folder: Path) -> None:
    """Check that the names of the segments of each run are in the order of their numbers."""
    paths = [path for path in sorted(folder.glob("*.ncap")) if path.stat().st_size and verify(path).segment]
    found = [
        (segment.recorder, segment.number) for path in paths for segment in open_capture(path).segments()
    ]
    for recorder in {recorder for recorder, _ in found}:
        numbers = [number for one, number in found if one == recorder]
        assert numbers == sorted(numbers)


class Session:
    """One recorder's writer on a faulty disk: it carries out jobs until it ends or is killed."""

    def __init__(
        self, path: Path, disk: FaultyDisk, ends_at: int, walls: Iterator[int], recorder: bytes = b"r"
    ) -> None:
        self.sent = 0
        self._walls = walls
        self._recorder = recorder * 16
        self._writer = CaptureWriter(path, self._info())
        self.thread = WriterThread(
            self._writer,
            retention=None,
            low=0,
            call_in_loop=lambda *_: None,
            on_failure=lambda _: None,
            on_room=lambda: None,
            on_expired=lambda _: None,
        )
        self.thread._ending = ending = Ending(disk, ends_at)  # type: ignore[assignment]
        ending.jobs = self.thread._jobs

    def _info(self) -> SegmentInfo:
        return SegmentInfo(self._recorder, bytes(16), next(self._walls), MONO)

    def run(self, jobs: Sequence[int]) -> None:
        """Carry out jobs: a block of so many frames, 0 for a new segment, negative for a loss."""
        self._writer.open_segment()
        for job in jobs:
            self.sent += abs(job)
            if job > 0:
                self.thread.write(block(job))
            elif job < 0:
                self.thread.miss(Loss("slow", MONO, MONO, WALL, -job, 1))
            else:
                self.thread.begin_segment(self._info())
        self.thread.end()
        self.thread.run()


FAULTS = st.one_of(
    st.just(0),
    st.sampled_from((errno.ENOSPC, errno.EIO, errno.EDQUOT)),
    st.integers(-300, -1),
)
JOBS = st.lists(st.one_of(st.integers(1, 3), st.just(FULL), st.just(0), st.integers(-9, -1)), max_size=12)
WALLS = st.lists(st.integers(0, 5_000 * MS), min_size=1, max_size=4)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    jobs=JOBS,
    plan=st.lists(FAULTS, max_size=40),
    room=st.integers(250, 6000),
    more=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4000)), max_size=3),
    ends_at=st.integers(0, 60),
    killed_at=st.one_of(st.just(-1), st.integers(1, 60)),
    folder=st.booleans(),
    again=st.booleans(),
    walls=WALLS,
)
@example(  # the large block is given up, and the small one behind it has room
    jobs=[1, FULL, 1],
    plan=[],
    room=800,
    more=[],
    ends_at=0,
    killed_at=-1,
    folder=False,
    again=False,
    walls=[0],
)
@example(  # a new segment that cannot be created, and nothing after it
    jobs=[1, 0, 1],
    plan=[0, 0, 0, *[errno.ENOSPC] * 40],
    room=6000,
    more=[],
    ends_at=0,
    killed_at=-1,
    folder=True,
    again=False,
    walls=[0],
)
@example(  # all is written, and never synced
    jobs=[],
    plan=[0, 0, 0, errno.ENOSPC, errno.ENOSPC, errno.ENOSPC],
    room=250,
    more=[],
    ends_at=0,
    killed_at=-1,
    folder=False,
    again=False,
    walls=[0],
)
def test_every_frame_is_recorded_or_counted(
    jobs: list[int],
    plan: list[int],
    room: int,
    more: list[tuple[int, int]],
    ends_at: int,
    killed_at: int,
    folder: bool,
    again: bool,
    walls: list[int],
) -> None:
    """Any failures of any calls, room that comes and goes, the clock set, SIGTERM or SIGKILL, a later run."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        path = place if folder else place / NAME
        disk = FaultyDisk(plan, room, killed_at)
        comes_and_goes = dict(more)

        def on_call(number: int) -> None:
            disk.room = comes_and_goes.get(number, disk.room)

        disk.on_call = on_call
        times = (WALL + walls[number % len(walls)] for number in range(1000))
        session, killed, refused = Session(path, disk, ends_at, times), False, False
        try:
            with using(disk):
                session.run(jobs)
        except Killed:
            killed = True
        except CaptureError:
            refused = (
                True  # the first segment could not be created: nothing is recorded, and the proxy says so
            )
        finally:
            disk.end()
        check_order(place)
        frames, missing = counted(place)
        thread = session.thread
        if refused:
            assert (frames, missing) == (0, 0)
        elif killed:
            assert frames + missing <= session.sent
            assert frames + missing == session.sent or not whole(place) or not list(place.iterdir())
        else:
            unrecorded = thread.unrecorded.frames if thread.unrecorded is not None else 0
            assert frames + missing + unrecorded == session.sent
            if thread.unrecorded is not None:
                assert thread.failure is not None
                assert not whole(place)
            if missing > sum(-job for job in jobs if job < 0):
                assert thread.given_up is not None
            if errno.EIO not in plan:
                assert whole(place) or thread.failure is not None
                assert thread.failure is None or disk.unsynced or not whole(place)
        if again:
            disk = FaultyDisk([])
            later = Session(path, disk, 0, times, b"s")
            with using(disk):
                later.run([1, 0, 2])
            assert sum(counted(place)) == frames + missing + 3
            check_order(place)


class Puts:
    """Frames given to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.sent = 0
        self._recorder = recorder

    def put(self, size: int) -> None:
        """Record one frame."""
        data = b"PUB a %d\r\n%b\r\n" % (size, bytes(size))
        now = now_ns()
        self._recorder.put(Frames(1, C2S, data, 1, 1, self.sent, now, self.sent, now))
        self.sent += 1


async def _record(path: Path, disk: FaultyDisk, steps: Sequence[tuple[str, int]]) -> SimpleNamespace:
    events: list[Event] = []
    recorder = Recorder(
        RecordSettings(path, flush=1 * MS, queue=60_000),
        seed=None,
        rules=None,
        owner="test",
        emit=events.append,
        preambles=lambda: (),
        admission=Admission(),
        end_all=lambda _: None,
    )
    puts = Puts(recorder)
    acts: dict[str, Callable[[int], Any]] = {
        "put": puts.put,
        "room": lambda size: setattr(disk, "room", size),
        "rotate": lambda _: recorder.rotate(),
        "seal": lambda _: recorder.seal(),
    }
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            for name, number in steps:
                if name == "sleep":
                    await trio.sleep(number / 1000)
                else:
                    acts[name](number)
            recorder.close()
    return SimpleNamespace(events=events, recorder=recorder, sent=puts.sent)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from((1, 100, 20_000))),
        st.tuples(st.just("put"), st.just(20_000)),
        st.tuples(st.just("room"), st.sampled_from((0, 50, 400, 30_000, 1 << 30))),
        st.tuples(st.just("rotate"), st.just(0)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("sleep"), st.sampled_from((0, 1, 4))),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, plan=st.lists(FAULTS, max_size=20), folder=st.booleans())
def test_what_the_queue_had_no_room_for_is_counted(
    steps: list[tuple[str, int]], plan: list[int], folder: bool
) -> None:
    """The whole recorder with `gap`, on a disk that is slow, fails, or is full when the recording ends."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        disk = FaultyDisk([0, 0, *plan])
        with using(disk):
            run = trio.run(_record, place if folder else place / NAME, disk, steps)
        frames, missing = counted(place)
        lost = run.recorder._thread.unrecorded
        assert frames + missing + (lost.frames if lost is not None else 0) == run.sent
        if lost is not None:
            assert not whole(place)
        if lost is not None or run.recorder._thread.given_up is not None:
            assert "frames at its end are not in it" in run.recorder.failure
            (last,) = [
                one for one in run.events if isinstance(one, Notice) and one.text == run.recorder.failure
            ]
            assert last.level == "error"
        told = sum(one.frames for one in run.events if isinstance(one, RecordingResumed))
        told += sum(
            int(str(one.data.get("missing_frames", 0))) for one in run.events if isinstance(one, Notice)
        )
        assert told == run.sent - frames
        assert len(list(open_capture(place).blocks())) < 100
        assert all(not isinstance(item, Note) for _, item in open_capture(place).items())
