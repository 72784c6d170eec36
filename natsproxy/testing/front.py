"""The proxy that clients under test talk to: faults that undo themselves, frames seen, waiting with limits.

`TestProxy` puts it before a real server, `cassette` before the server of a capture: the same calls for both.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, TypeVar

import trio

from natsproxy.addresses import Address, parse_address
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.events import Closed, Event, Firing
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import Place, parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.session import close_reasons
from natsproxy.testing.faults import Fault
from natsproxy.testing.seen import Seen, SeenFrame, WaitTimeout, Wanted
from natsproxy.testing.thread import TrioThread, refuse_in_loop

TIMEOUT = 5.0  # seconds
_FIRINGS = 10_000  # kept
_ENDS = 20
_USUAL = (close_reasons.CLIENT_CLOSED, close_reasons.DRAINED, close_reasons.KILLED)

F = TypeVar("F", bound="Front")


def server_address(url: str) -> Address:
    """Return the address of a NATS server; a user and a password in its URL are ignored.

    Clients bring their own credentials.  Raises ConfigError.
    """
    try:
        return parse_address(url, host="127.0.0.1", credentials=True)
    except ValueError as error:
        raise ConfigError(f"the server's address {error}") from None


class _InTest(Place):
    """A fault stands in a test: the traceback says where."""

    def of(self, index: int, key: str | None = None) -> str:
        """Return what the error begins with."""
        return "fault"


class Front:
    """A proxy in a thread of its own, `with` or `async with`; the base of `TestProxy` and `cassette`."""

    __test__ = False  # it is no test case, whatever its name

    def __init__(self, *, rules: list[dict[str, Any]] | None = None, seed: int = 0) -> None:
        self.seed = seed
        parse_rules(rules or [], KINDS)  # a mistake is said here, where the test makes it
        self._tables: dict[str, dict[str, Any]] = {table["name"]: table for table in rules or []}
        self._numbers = itertools.count(1)
        self._turn = threading.Lock()
        self._seen = Seen()
        self._firings: list[Firing] = []
        self._ends: list[str] = []  # how connections ended that did not end as they should
        self._proxy: Proxy | None = None
        self._thread = TrioThread(self._serve, type(self).__name__)

    @property
    def url(self) -> str:
        """The URL for clients."""
        if self._proxy is None:
            raise NatsproxyError(f"{type(self).__name__} has no URL yet: use it inside its `with`")
        return f"nats://{self._proxy.listen[0]}"

    @property
    def firings(self) -> list[Firing]:
        """What rules did so far, oldest first (the first ten thousand)."""
        return list(self._firings)

    # -- life

    def __enter__(self: F) -> F:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()

    async def __aenter__(self: F) -> F:
        self._thread.start()  # it blocks, but nothing under test talks to it yet: there is nobody to stop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.stop_async()

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def _before(self, settings: ProxySettings) -> AsyncIterator[Proxy]:
        """Run the proxy with these settings for the length of the block."""
        self._proxy = proxy = Proxy(settings)
        proxy.subscribe(self._on_event)
        proxy.tap(self._seen.add)
        self._swap()
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            yield proxy
            nursery.cancel_scope.cancel()

    # -- faults

    @contextmanager
    def fault(self, fault: Fault | str, **settings: Any) -> Iterator[str]:
        """Put a fault in force for the time of a `with`, on open connections too; yields the rule's name.

            with proxy.fault(latency("200ms"), subject="orders.>"):
            with proxy.fault("drop", role="publish-ack", first=2):

        fault: one of `natsproxy.testing.faults`, or the name of a kind.  settings: those of `natsproxy rules
        list`; `name` names the rule.  It is in force when the block begins and gone when it has ended.
        Raises ConfigError, in a sentence, for what is no rule; then nothing changed.
        """
        fault = fault if isinstance(fault, Fault) else Fault(fault, {})
        name = settings.pop("name", None) or fault.settings.get("name")
        name = str(name or f"{fault.kind}-{next(self._numbers)}")
        if name in self._tables:
            raise ConfigError(f"a fault named {name!r} is in force already")
        table = fault.table(name, settings)
        parse_rules([table], KINDS, place=_InTest())
        self._change(lambda tables: {**tables, name: table})
        try:
            yield name
        finally:
            if self._thread.running:  # else it went with the proxy
                self._change(lambda tables: {key: one for key, one in tables.items() if key != name})

    def _change(self, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with self._turn:
            before, self._tables = self._tables, changed(self._tables)
            try:
                self._thread.call(self._swap)
            except BaseException:
                self._tables = before
                raise

    def _swap(self) -> None:
        assert self._proxy is not None
        before = self._proxy.chain if isinstance(self._proxy.chain, RuleChain) else None
        rules = parse_rules(list(self._tables.values()), KINDS)
        self._proxy.swap(RuleChain(rules, seed=self._proxy.seed, previous=before))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Firing) and len(self._firings) < _FIRINGS:
            self._firings.extend(event.each())
        elif isinstance(event, Closed) and event.cause not in _USUAL and len(self._ends) < _ENDS:
            self._ends.append(f"connection {event.conn} ended: {event.cause}: {event.detail}")

    # -- what happened

    def frames(
        self, subject: str | None = None, *, op: str | None = None, direction: str | None = None
    ) -> list[SeenFrame]:
        """Return the frames seen so far, oldest first; the ring keeps the latest 8 MiB of them.

            assert [f.payload for f in proxy.frames("orders.*", op="PUB")] == [b"1", b"2"]

        subject: a pattern, wildcards allowed.  op: "PUB", "MSG", ...  direction: "c2s" or "s2c".  It does not
        wait: after `barrier()` it has all that clients had sent before.
        """
        return self._seen.frames(Wanted(subject, op, direction))

    def wait_for(
        self,
        subject: str | None = None,
        *,
        op: str | None = None,
        direction: str | None = None,
        count: int = 1,
        timeout: float = TIMEOUT,
    ) -> list[SeenFrame]:
        """Block until `count` such frames were seen, those before the call included; return them.

            proxy.wait_for("orders.new", op="PUB", count=3)

        timeout: seconds.  Raises WaitTimeout with what was seen instead, BlockingCall inside an event loop:
        there, `await proxy.wait_for_async(...)`.
        """
        refuse_in_loop("wait_for()", "await wait_for_async()")
        return self._thread.wait(timeout, self._seen.wait, Wanted(subject, op, direction), count, timeout)

    async def wait_for_async(
        self,
        subject: str | None = None,
        *,
        op: str | None = None,
        direction: str | None = None,
        count: int = 1,
        timeout: float = TIMEOUT,
    ) -> list[SeenFrame]:
        """Await the same, in asyncio and trio."""
        wanted = Wanted(subject, op, direction)
        return await self._thread.wait_async(timeout, self._seen.wait, wanted, count, timeout)

    def barrier(self, timeout: float = TIMEOUT) -> None:
        """Block until all that had reached the proxy's sockets is handled and answered by the server.

        Not covered are what a client library still buffers (flush the client first), a connection that has
        had no INFO yet, and what a fault holds back.  timeout: seconds.  Raises WaitTimeout, and BlockingCall
        inside an event loop: there, `await proxy.barrier_async()`.
        """
        refuse_in_loop("barrier()", "await barrier_async()")
        self._thread.wait(timeout, self._barrier, timeout)

    async def barrier_async(self, timeout: float = TIMEOUT) -> None:
        """Await the same, in asyncio and trio."""
        await self._thread.wait_async(timeout, self._barrier, timeout)

    async def _barrier(self, timeout: float) -> None:
        assert self._proxy is not None
        with trio.move_on_after(timeout) as scope:
            await self._proxy.barrier()
        if scope.cancelled_caught:
            raise WaitTimeout(f"a barrier did not come back within {timeout:g} s: is the server there?")

    def story(self, count: int = 20) -> str:
        """Return what a person wants to see when a test failed: faults in force, firings, the last frames."""
        lines = [f"fault in force: {table}" for table in self._tables.values()]
        lines += [
            f"fired: {one.rule} ({one.action}) {one.direction} {one.subject} on connection {one.conn}"
            for one in self._firings[-count:]
        ]
        lines += self._ends
        last = self._seen.last(count)
        return "\n".join([*lines, f"the last {len(last)} frames:" if last else "no frame passed", *last])
