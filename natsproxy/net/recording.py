"""The recording of a proxy: the recorder of its capture, if there is one, its taps and its live viewers.

A record goes from a connection through `DeferredRecords`, which drops those of probes, to the recorder and
the taps; live blocks take it where there is no recorder.  A capture may begin and end while connections are
open: it begins with a preamble for each, so that it can be read on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import trio

from natsproxy import close_reasons
from natsproxy.capture.format import records
from natsproxy.capture.format.records import Item, OpenRecord
from natsproxy.config.recording import RecordSettings
from natsproxy.errors import ConfigError
from natsproxy.events import Event, Firing
from natsproxy.net.admission import Admission
from natsproxy.net.clock import now_ns
from natsproxy.net.live_blocks import LiveBlocks, Look
from natsproxy.net.plane_interface import Plane
from natsproxy.net.recorder import Recorder
from natsproxy.net.relay import Relay
from natsproxy.session.session import Session
from natsproxy.session.values import End
from natsproxy.wire.frames import NO_LIMIT

_CLIENT_LEFT = (close_reasons.CLIENT_CLOSED, close_reasons.CLIENT_LOST)


class DeferredRecords:
    """Passes the records of one connection on to `record`, once its client has sent something.

    Most silent clients are health probes, which no capture needs.  The first records of a connection (its
    opening, the INFO that its client was given) wait until the client sends something, or until the
    connection ends, unless that is because the client left.  Those of a probe are dropped: nothing of it
    is in the capture.
    """

    __slots__ = ("_deferred", "_record", "_session")

    def __init__(self, session: Session, record: Callable[[Item], None]) -> None:
        self._session = session
        self._record = record
        self._deferred: list[Item] | None = []  # None: nothing is deferred any more

    def __call__(self, item: Item) -> None:
        """Record an item, now or later."""
        if self._deferred is None:
            self._record(item)
            return
        self._deferred.append(item)
        if self._session.client_spoke:
            self._release()

    @property
    def deferring(self) -> bool:
        """True if the capture does not have this connection yet."""
        return self._deferred is not None

    def discard(self) -> None:
        """Drop the deferred items and record the later ones: a preamble says the same in a new capture."""
        self._deferred = None

    def close(self, item: Item, cause: str) -> None:
        """Record the last item of a connection, unless it ended as the connection of a probe does."""
        if self._deferred is None or self._session.client_spoke or cause not in _CLIENT_LEFT:
            self(item)
            self._release()

    def _release(self) -> None:
        deferred, self._deferred = self._deferred, None
        for item in deferred or ():
            if isinstance(item, OpenRecord):  # it was made before anybody knew who the client is
                item = item._replace(info=item.info | self._session.verified_client())
            self._record(item)


_AT_ONCE: Final = 64  # connections that begin to be recorded in one go
_FIRING_FIELDS: Final = tuple(name for name in Firing.__slots__ if name not in ("also", "who"))


class ProxyRecording:
    """Records the connections of a proxy.

    relays: the open connections by their numbers; the proxy changes it.  seed: written into captures.
    admission: holds or refuses traffic that cannot be recorded.  plane: records what passes without Python.
    unwritten: the reason why the last capture that ended is not whole; None where it is.
    live: the sample for live viewers, None if there are none.
    """

    def __init__(self, relays: Mapping[int, Relay], seed: int, emit: Callable[[Event], None]) -> None:
        self.recorder: Recorder | None = None
        self.unwritten: str | None = None
        self.live: LiveBlocks | None = None
        self.admission = Admission()
        self.plane: Plane | None = None
        self._relays = relays
        self._seed = seed
        self._emit = emit
        self._taps: list[Callable[[records.Item], None]] = []
        self._deferred: dict[int, DeferredRecords] = {}
        self._ended = trio.Event()
        self._recording: Recorder | None = None  # until its end is written
        self._recorded = 0  # frames of captures that have ended

    @property
    def frames(self) -> int:
        """The number of frames in the sealed blocks of all captures."""
        return self._recorded + (0 if self._recording is None else self._recording.frames)

    @property
    def active(self) -> bool:
        """True if anybody takes records."""
        return self.recorder is not None or bool(self._taps) or self.live is not None

    def most_frames(self) -> int:
        """Return the number of frames that one record may have."""
        takes = self.recorder or self.live
        return NO_LIMIT if takes is None else takes.most_frames

    # -- records

    def tap(self, tap: Callable[[records.Item], None]) -> Callable[[], None]:
        """Call `tap` for each record of later connections; return a function that ends it."""
        self._taps.append(tap)
        self._choose_builder()

        def untap() -> None:
            self._taps.remove(tap)
            self._choose_builder()

        return untap

    def _choose_builder(self) -> None:
        """Let the plane record by itself, unless a tap wants to see each record."""
        if self.plane is not None:
            takes = None if self._taps else self.recorder or self.live
            if takes is None:
                self.plane.record_into(None, _nothing)
            else:
                self.plane.record_into(takes.builder, takes.added)

    def record(self, item: records.Item) -> None:
        """Give an item to the recorder and the taps."""
        if self.recorder is not None:
            self.recorder.put(item)
        elif self.live is not None:
            self.live.put(item)
        for tap in tuple(self._taps):
            tap(item)

    def record_firing(self, event: Firing) -> None:
        """Record a firing, or each of the firings that an event stands for."""
        if self.active:
            for firing in event.each():
                info: dict[str, Any] = {name: getattr(firing, name) for name in _FIRING_FIELDS}
                info |= {name: fact for name, fact in firing.who._asdict().items() if fact}
                self.record(records.FiringRecord(event.conn, event.t, info))

    def record_rules(self, text: str) -> None:
        """Record the rules that are in force from now on."""
        if self.recorder is not None:
            self.recorder.rules = text or None  # a segment that begins later has them in its header
            self.recorder.put(records.Note(now_ns(), {"rules": text}))

    def mark(self, text: str) -> None:
        """Record a note of an operator."""
        if self.recorder is not None:
            self.recorder.put(records.Note(now_ns(), {"mark": text}))

    def open(self, conn: int, session: Session) -> DeferredRecords:
        """Return the function that takes the records of a new connection."""
        deferred = self._deferred[conn] = DeferredRecords(session, self.record)
        return deferred

    def close(self, conn: int, item: records.Item | None, cause: str) -> None:
        """Record the last item of a connection, which ended for `cause`; None where nobody takes records."""
        deferred = self._deferred.pop(conn)
        if item is not None:
            deferred.close(item, cause)

    # -- live viewers

    async def look_on(self, live: LiveBlocks | None) -> None:
        """Sample records into these blocks, in place of others; None: there are no more viewers."""
        before, self.live = self.live, live
        if self.recorder is not None:
            self.recorder.seal()  # for the previous viewers
            self.recorder.live = live
        self._choose_builder()  # nobody adds to the previous sample any more
        if live is not None and before is not None:
            live.go_on(before)
        # Viewers come and go meanwhile; `active` is up to date at each step.
        for number, relay in enumerate(list(self._relays.values())):
            relay.record(self.active)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()

    def look(self) -> Look:
        """Return the traffic since the last look, while there are viewers."""
        assert self.live is not None
        if self.recorder is not None:
            self.recorder.seal()
        return self.live.take()

    # -- captures

    def start(
        self, settings: RecordSettings, rules: str | None, nursery: trio.Nursery, *, owner: str
    ) -> None:
        """Begin a capture, with preambles of the open connections; its task runs in `nursery`.

        owner: the recordings whose old segments it may delete.  Raises CaptureError if the file cannot be
        created, and ConfigError during another capture.
        """
        if self.recorder is not None:
            raise ConfigError("a capture is already being recorded: stop it first")
        self.recorder = Recorder(
            settings,
            seed=self._seed,
            rules=rules,
            owner=owner,
            emit=self._emit,
            preambles=self._preambles,
            admission=self.admission,
            end_all=self._end_all,
        )
        self.recorder.live = self.live
        self._ended = trio.Event()
        self._recording = self.recorder
        for deferred in self._deferred.values():
            deferred.discard()
        for preamble in self._preambles():
            self.recorder.put(preamble)
        nursery.start_soon(self._run, self.recorder)
        self._choose_builder()
        for relay in self._relays.values():
            relay.record(True)

    async def _run(self, recorder: Recorder) -> None:
        try:
            # Shielded: however the proxy ends, its records are written and indexed first (see `stop`).
            with trio.CancelScope(shield=True):
                await recorder.run()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the capture; return when its index is written."""
        recorder, self.recorder = self.recorder, None
        if recorder is None:
            return
        self._choose_builder()
        for relay in self._relays.values():
            relay.record(self.active)
        recorder.close()
        await self._ended.wait()
        self.unwritten = recorder.failure
        self._recorded, self._recording = self.frames, None

    def rotate(self) -> None:
        """Begin a new segment of the capture."""
        if self.recorder is not None:
            self.recorder.rotate()

    def _preambles(self) -> Iterator[records.Preamble]:
        """Return the preambles of the open connections; from now on the plane's threads have none of them."""
        if self.plane is not None:
            self.plane.recall_all()
        return self._introduced()

    def _introduced(self) -> Iterator[records.Preamble]:
        for conn, relay in self._relays.items():
            state = None if self._deferred[conn].deferring else relay.snapshot()
            if state is not None:
                yield records.Preamble(conn, now_ns(), state)

    def refusal(self) -> End | None:
        """Return the end of a connection that cannot be recorded now; None where it can, or need not be."""
        reason = self.admission.refusal
        return None if reason is None else _cannot_be_recorded(reason)

    def _end_all(self, reason: str) -> None:
        end = _cannot_be_recorded(reason)
        for relay in list(self._relays.values()):
            relay.kill(end.cause, end.detail)


def _nothing() -> None:
    return None


def _cannot_be_recorded(reason: str) -> End:
    return End(close_reasons.RECORDER, f"it cannot be recorded: {reason}")
