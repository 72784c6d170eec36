"""Scopes: one address behind which each test plays, or records, its own cassette.

1. A scope has a name, usually that of a test; its cassette is a file of that name in a folder.
2. `choose` makes a scope the current one: clients that connect belong to it.  It ends with a verdict at the
   next choice, at `end`, or at `close`; clients that are still connected are then disconnected.
3. With a pattern for client names (`orders-test/*`), the part at `*` names the scope of a matching client, so
   that tests that run in parallel play one cassette each.
4. A scope chosen by client name ends when its clients have disconnected and its cassette was played; so does
   the current one if it `rewinds`.  The next client starts it over.  A cassette with a connection left to
   play waits for it.
5. Each open scope is a use of a cassette (`record_mode.py`) with its own address, to which the bytes of its
   clients are carried.  A pattern needs the CONNECT first, so such clients get an INFO of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from natsproxy.addresses import Address
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.protocol.connect import parse_connect
from natsproxy.replay.cassette.file_names import safe_name
from natsproxy.replay.cassette.record_mode import CassetteUse
from natsproxy.replay.receipt import CassetteUsed
from natsproxy.replay.server_playback.mismatch import preview
from natsproxy.replay.server_playback.playback import DEFAULT_INFO
from natsproxy.replay.server_playback.server import CassetteServer
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op
from natsproxy.wire.parse import EVERYTHING
from natsproxy.wire.scanner import Scanner

SUFFIXES: Final = (".ncap", ".nats.txt", ".txt")
"""Suffixes of the cassettes in a folder; new ones get the first."""
WHEN_GONE: Final = 5.0
"""Seconds without a client after which a cassette with a connection left to play starts over."""
MOST_SHOWN: Final = 20
"""The most problems of one kind in a verdict."""
_LONGEST: Final = 500  # characters of a name
_LEAVE: Final = 1.0  # seconds for clients to disconnect when a scope ends
_ROUNDS: Final = 20  # of the loop, in which clients that have connected are accepted
_GREETING: Final = 10.0  # seconds for a CONNECT
_GREETING_BYTES: Final = 1 << 20
_READ: Final = 64 << 10

Opener = Callable[[Path], AbstractAsyncContextManager[CassetteUse]]


class ScopeError(NatsproxyError):
    """A scope cannot be chosen.  known: its name is valid, so the reason is its cassette."""

    def __init__(self, text: str, *, known: bool = True) -> None:
        super().__init__(text)
        self.known = known


def only_one(folder: Path) -> str:
    """Return the scope of the only cassette in a folder; "" if there are several or its name is no scope."""
    found = [path for suffix in SUFFIXES[:2] for path in folder.glob(f"[!.]*{suffix}")]
    if len(found) != 1:
        return ""
    name = found[0].name.removesuffix(".ncap").removesuffix(".nats.txt")
    return name if cassette_of(folder, name) == found[0] else ""


def cassette_of(folder: Path, name: str) -> Path:
    """Return the cassette of a scope: of `a/b` it is `folder/a/b.ncap`.  Raises ScopeError for a bad name."""
    parts = name.split("/")
    if len(name) > _LONGEST or not all(parts) or any(part.startswith(".") for part in parts):
        raise ScopeError(
            f"{name[:_LONGEST]!r} is not the name of a scope: parts with / between them, none of them empty "
            f"or with a . in front, {_LONGEST} characters at most",
            known=False,
        )
    *folders, last = map(safe_name, parts)
    paths = [folder.joinpath(*folders, f"{last}{suffix}") for suffix in SUFFIXES]
    return next((path for path in paths if path.exists()), paths[0])


@dataclass(slots=True)
class ScopeVerdict:
    """The result of a scope that has ended.

    clients: the number that connected.  frames: the number played.  mismatches: frames that were never
    recorded; missed: recorded ones that clients should have sent, but did not; unused: all that no client
    sent.  recorded: it was recorded, and the recording kept.  added: the number of frames added.  hint: a
    sentence about the real server, if the scope failed.  failure: why it could not go on.  differences:
    sentences about all these, without values; used: for the receipt, once the use has ended.
    """

    scope: str
    cassette: Path
    clients: int = 0
    frames: int = 0
    mismatches: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    unused: int = 0
    recorded: bool = False
    added: int = 0
    hint: str = ""
    failure: str = ""
    differences: list[str] = field(default_factory=list)
    used: CassetteUsed | None = None

    @property
    def ok(self) -> bool:
        """True if the clients sent what was recorded."""
        return not (self.mismatches or self.missed or self.failure)

    def described(self) -> dict[str, Any]:
        """Return the verdict as plain data; lists are cut to their first entries."""
        return {
            "scope": self.scope,
            "cassette": str(self.cassette),
            "ok": self.ok,
            "clients": self.clients,
            "frames": self.frames,
            "mismatches": self.mismatches[:MOST_SHOWN],
            "missed": self.missed[:MOST_SHOWN],
            "unused": self.unused,
            "recorded": self.recorded,
            "added": self.added,
            "hint": self.hint,
            "failure": self.failure,
        }


class _Scope:
    """An open scope.

    rewinds: it ends when it was played.  places: the cancel scopes of its clients.  came: set when a client
    connects.
    """

    def __init__(self, name: str, path: Path, *, rewinds: bool) -> None:
        self.name, self.path, self.rewinds = name, path, rewinds
        self.verdict = ScopeVerdict(name, path)
        self.use: CassetteUse | None = None
        self.keep = True
        self.places: set[trio.CancelScope] = set()
        self.came, self.left = trio.Event(), trio.Event()
        self.ending, self.ended = trio.Event(), trio.Event()

    @property
    def played(self) -> CassetteServer | None:
        """The server that plays its cassette; None while it is recorded."""
        return None if self.use is None else self.use.played

    async def wait_for_clients(self) -> None:
        """Wait until its clients have disconnected and all they sent was compared; end those that stay."""
        for _ in range(_ROUNDS):  # some may have connected and closed without being accepted yet
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(_LEAVE):
            while self.places:
                await self.left.wait()
        for place in list(self.places):
            place.cancel()
        await self.read_all()

    async def read_all(self) -> None:
        """Wait until the player has read what clients sent before they disconnected."""
        with trio.move_on_after(_LEAVE):
            while self.played is not None and self.played.connected:  # noqa: ASYNC110 - no event marks it
                await trio.sleep(0.001)

    async def was_left(self) -> bool:
        """Return whether a new client starts the scope over; waits briefly for the last one to be gone."""
        if not (self.rewinds and self.begun()):
            return False
        for _ in range(_ROUNDS):
            await trio.lowlevel.checkpoint()
        if self.places:
            return False
        await self.read_all()
        return self.over()

    def begun(self) -> bool:
        """Return whether a client has sent any frame to it."""
        if self.played is None:
            return False
        machine = self.played.machine
        if machine.mismatches or (machine.new_episodes is not None and machine.new_episodes.additions):
            return True
        return any(one.client_id is not None for one in machine.progress.connections.values())

    def over(self) -> bool:
        """Return whether nothing is left for another client."""
        if self.played is None:
            return False
        machine = self.played.machine
        waiting = (one for one in machine.progress.connections.values() if one.client_id is None)
        return machine.done or (machine.recording.whole and not any(one.unused for one in waiting))

    def judge(self, strict: bool | None) -> None:
        """Copy the differences into the verdict; call before the use ends."""
        verdict, use = self.verdict, self.use
        if use is None or use.played is None:
            return
        verdict.frames = use.played.machine.progress.played
        verdict.mismatches = [str(one) for one in use.played.mismatches]
        verdict.hint = use.played.unprepared
        verdict.unused = len(use.played.unused())
        verdict.differences = use.differences(strict)
        if strict is not False and not verdict.differences and use.played.machine.recording.connections:
            verdict.failure = use.hollow("it")
            verdict.differences += [verdict.failure] if verdict.failure else []
        if not verdict.mismatches:  # else those are the reason why it was not sent
            verdict.missed = [preview(one.frame) for one in use.missed(strict)]


class Scopes:
    """Scopes behind one address.

    find: returns the cassette of a name (`cassette_of`).  opener: begins the use of one.  by_name: a pattern
    with one `*`, "" for none.  strict: the recorded frames to be sent, see `CassetteUse.missed`.  rewinds:
    the current scope, too, ends when it was played.  report: called with each verdict.  refused: the number
    of clients that connected outside of a scope.
    """

    def __init__(
        self,
        find: Callable[[str], Path],
        opener: Opener,
        *,
        listen: Address | None = None,
        by_name: str = "",
        strict: bool | None = None,
        rewinds: bool = False,
        report: Callable[[ScopeVerdict], None],
    ) -> None:
        if by_name and by_name.count("*") != 1:
            raise ConfigError(f"scope-by-name {by_name!r} must contain one *, where the name of the scope is")
        self._find = find
        self._opener = opener
        self.address = listen or Address()
        self._before, self._star, self._after = by_name.partition("*")
        self._strict = strict
        self._rewinds = rewinds
        self._report = report
        self._open: dict[str, _Scope] = {}
        self._lock = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self.present = ""
        self.refused = 0

    # -- the choice

    @property
    def state(self) -> dict[str, Any]:
        """The current scope as plain data."""
        scope = self._open.get(self.present)
        played = None if scope is None else scope.played
        return {
            "scope": self.present or None,
            "cassette": None if scope is None else str(scope.path),
            "clients": 0 if scope is None else len(scope.places),
            "mismatches": 0 if played is None else len(played.mismatches),
        }

    async def choose(self, name: str) -> None:
        """End the current scope and begin the named one.  Raises ScopeError."""
        async with self._lock:
            before, self.present = self.present, ""
            for other in {before, name}:
                await self._close(other)
            await self._begin(name, rewinds=self._rewinds)
            self.present = name

    async def end(self, *, keep: bool = True) -> ScopeVerdict | None:
        """End the current scope; return its verdict, None if there is none.  keep: what was recorded."""
        async with self._lock:
            name, self.present = self.present, ""
            return await self._close(name, keep=keep)

    async def _begin(self, name: str, *, rewinds: bool) -> _Scope:
        assert self._nursery is not None
        scope = _Scope(name, self._find(name), rewinds=rewinds)
        await self._nursery.start(self._run, scope)
        if scope.use is None:
            raise ScopeError(scope.verdict.failure)
        self._open[name] = scope
        return scope

    async def _close(self, name: str, *, keep: bool = True) -> ScopeVerdict | None:
        scope = self._open.get(name)
        if scope is None:
            return None
        scope.keep = keep
        scope.ending.set()
        await scope.ended.wait()
        return scope.verdict

    async def _run(
        self, scope: _Scope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Use the cassette of a scope until that ends."""
        verdict, whole = scope.verdict, False
        try:
            async with self._opener(scope.path) as use:
                scope.use = use
                task_status.started()
                try:
                    await scope.ending.wait()
                    await scope.wait_for_clients()
                    whole = True
                finally:  # a command that is stopped need not have sent all of it
                    scope.judge(self._strict if whole else False)
                if not scope.keep:
                    use.discard()
        except* (NatsproxyError, OSError) as group:
            error = _first(group)
            where = f"{scope.path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            verdict.failure = where
        finally:
            self._open.pop(scope.name, None)
            if scope.use is None:
                task_status.started()
            else:
                verdict.recorded = scope.use.recording and scope.keep and whole and not verdict.failure
                verdict.added = scope.use.added
                verdict.used = scope.use.summary(
                    whole=False,
                    strict=self._strict,
                    test=scope.name,
                    passed=verdict.ok,
                    failures=tuple(dict.fromkeys(filter(None, (*verdict.differences, verdict.failure)))),
                )
                if whole or verdict.failure or verdict.added or scope.begun():
                    self._report(verdict)
            scope.ended.set()

    # -- clients

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled.  Raises ConfigError for an address that cannot be listened on."""
        try:
            listeners = await trio.open_tcp_listeners(self.address.port, host=self.address.host)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.address}: {error.strerror or error}") from None
        self.address = Address(self.address.host, listeners[0].socket.getsockname()[1])
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(trio.serve_listeners, self._client, listeners)
            task_status.started()

    async def close(self, *, keep: bool = True) -> None:
        """End all scopes.  keep: what was recorded."""
        async with self._lock:
            for name in list(self._open):
                await self._close(name, keep=keep)

    async def _client(self, client: trio.SocketStream) -> None:
        async with client:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                name, early = self.present, b""
                if self._star:
                    await client.send_all(encode.info(DEFAULT_INFO))
                    with trio.move_on_after(_GREETING):
                        found, early = await _greeting(client)
                        name = self._named(found) or name
                try:
                    scope = await self._scope_of(name)
                except ScopeError as error:
                    self.refused += 1
                    greeting = b"" if self._star else encode.info(DEFAULT_INFO)
                    await client.send_all(greeting + encode.err(str(error).partition("\n")[0]))
                    await client.send_eof()
                    with trio.move_on_after(_LEAVE):  # at once, a reset would lose the answer
                        while await client.receive_some(_READ):
                            pass
                    return
                await self._carry(client, scope, early)

    def _named(self, client_name: str) -> str:
        """Return the scope in a client's name, "" for none."""
        end = len(client_name) - len(self._after)
        if not (client_name.startswith(self._before) and client_name.endswith(self._after)):
            return ""
        return client_name[len(self._before) : end]

    async def _scope_of(self, name: str) -> _Scope:
        if not name:
            raise ScopeError("no scope is chosen: PUT its name to /v1/scope, or set NATS_CASSETTE_SCOPE")
        async with self._lock:
            scope = self._open.get(name)
            if scope is not None and (scope.ending.is_set() or await scope.was_left()):
                await self._close(name)
                scope = None
            if scope is None:
                scope = await self._begin(name, rewinds=self._rewinds or name != self.present)
            return scope

    async def _carry(self, client: trio.SocketStream, scope: _Scope, early: bytes) -> None:
        """Carry bytes between a client and the cassette of its scope."""
        assert scope.use is not None
        address = scope.use.address
        with trio.CancelScope() as place:
            scope.places.add(place)
            scope.verdict.clients += 1
            scope.came.set()
            scope.came = trio.Event()
            try:
                async with await trio.open_tcp_stream(address.host, address.port) as inner:
                    if self._star:
                        late = await _after_line(inner)
                        await inner.send_all(early)
                        await client.send_all(late)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_pump, client, inner)
                        await _pump(inner, client)
                        nursery.cancel_scope.cancel()
            except OSError:
                pass  # the cassette has just ended, so the client is disconnected
            finally:
                scope.places.discard(place)
                scope.left.set()
                scope.left = trio.Event()
        if scope.rewinds and not scope.places:
            assert self._nursery is not None
            self._nursery.start_soon(self._rewind, scope)

    async def _rewind(self, scope: _Scope) -> None:
        """End a scope whose clients have disconnected, so that the next client starts it over."""
        came = scope.came
        await scope.read_all()
        if not scope.begun():
            return
        with trio.move_on_after(0 if scope.over() else WHEN_GONE):
            await came.wait()
        async with self._lock:
            if not (scope.places or came.is_set()) and self._open.get(scope.name) is scope:
                await self._close(scope.name)


@asynccontextmanager
async def running(scopes: Scopes) -> AsyncIterator[Scopes]:
    """Serve scopes for the length of the block, then end them."""
    async with trio.open_nursery() as nursery:
        await nursery.start(scopes.serve)
        yield scopes
        await scopes.close()
        nursery.cancel_scope.cancel()


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while data := await source.receive_some(_READ):
            await sink.send_all(data)
        await sink.send_eof()


async def _greeting(client: trio.SocketStream) -> tuple[str, bytes]:
    """Read up to a client's CONNECT; return the name in it, and all bytes that were read."""
    scanner = Scanner(C2S, EVERYTHING, buffer_limit=_GREETING_BYTES)
    read = b""
    while len(read) <= _GREETING_BYTES and (data := await client.receive_some(_READ)):
        read += data
        scanner.feed(data)
        while (found := scanner.next()) is not None:
            if not isinstance(found, Frame) or found.op != Op.CONNECT:
                return "", read
            with suppress(ValueError):
                return parse_connect(found.args).name, read
            return "", read
    return "", read


async def _after_line(inner: trio.SocketStream) -> bytes:
    """Read a line, INFO; return the bytes behind it."""
    read = b""
    while b"\n" not in read and len(read) < _GREETING_BYTES:
        data = await inner.receive_some(_READ)
        if not data:
            return b""
        read += data
    return read.partition(b"\n")[2]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
