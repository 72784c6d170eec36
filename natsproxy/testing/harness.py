"""The proxy between clients under test and a server: temporary faults, frames, waits with timeouts.

`TestProxy` runs it before a real server, `cassette` before the server of a capture; both have the same calls.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from difflib import SequenceMatcher
from types import TracebackType
from typing import Any, TypeVar

import trio

from natsproxy import close_reasons
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.events import Closed, Event, Firing
from natsproxy.net.proxy import Proxy
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.reader import RulePlaces
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule
from natsproxy.testing.faults import Fault
from natsproxy.testing.frame_log import FrameFilter, FrameLog, SeenFrame, WaitTimeout
from natsproxy.testing.thread import TrioThread, refuse_in_loop

TIMEOUT = 5.0  # seconds
ANY_PORT = "127.0.0.1:0"
_IN_FORCE = 30.0  # seconds to wait for a fault to be in force on all connections
_LAST_FRAMES = 1.0  # seconds to wait for frames in transit when a fault ends
_NEAREST = 3  # subjects that an error quotes
_FIRINGS = 10_000  # firings that are kept
_ENDS = 20  # unexpected ends of connections that are kept
_EXPECTED = (close_reasons.CLIENT_CLOSED, close_reasons.DRAINED, close_reasons.KILLED)

SERVER = "the server's address"
"""The name of that argument in errors."""

F = TypeVar("F", bound="ProxyHarness")


class FaultNeverFired(AssertionError, NatsproxyError):
    """A fault never acted, so its test has proved nothing."""


class _FaultPlace(RulePlaces):
    """The place of a fault in errors: just "fault", because the traceback shows the line of the test."""

    def of(self, index: int, key: str | None = None) -> str:
        """Return the prefix of an error."""
        return "fault"


class ProxyHarness(ABC):
    """A proxy in a thread of its own, `with` or `async with`; the base of `TestProxy` and `cassette`."""

    __test__ = False  # pytest would collect `TestProxy` for its name

    def __init__(self, *, rules: list[dict[str, Any]] | None = None, seed: int = 0) -> None:
        self.seed = seed
        self._rules = parse_rules(rules or [], KINDS)  # raises here, where the traceback shows the test
        self._numbers = itertools.count(1)
        self._seen = FrameLog()
        self._firings: list[Firing] = []
        self._ends: list[str] = []  # descriptions of connections that ended unexpectedly
        self._proxy: Proxy | None = None
        self._thread = TrioThread(self._serve, type(self).__name__)

    @property
    def url(self) -> str:
        """The URL for clients."""
        if self._proxy is None:
            raise NatsproxyError(f"{type(self).__name__} has no URL yet: use it inside its `with`")
        (listener,) = self._proxy.settings.listen
        return f"{listener.scheme}://{self._proxy.listen[0]}"

    @property
    def firings(self) -> list[Firing]:
        """The firings of rules so far, oldest first (the first ten thousand)."""
        return list(self._firings)

    # -- start and end

    def __enter__(self: F) -> F:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()

    async def __aenter__(self: F) -> F:
        self._thread.start()  # blocks the event loop, but no client under test is connected yet
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._thread.stop_async()

    @abstractmethod
    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        """Serve until `stop`; call `started` once clients may connect."""

    @asynccontextmanager
    async def _run_proxy(self, settings: ProxySettings) -> AsyncIterator[Proxy]:
        """Run the proxy with these settings for the duration of the block."""
        self._proxy = proxy = Proxy(settings)
        proxy.subscribe(self._on_event)
        proxy.tap(self._seen.add)
        proxy.rules.load(self._rules)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            yield proxy
            nursery.cancel_scope.cancel()

    # -- faults

    @contextmanager
    def fault(self, fault: Fault | str, *, must_fire: bool = True, **settings: Any) -> Iterator[str]:
        """Apply a fault for the duration of a `with`, also to open connections; yields the rule's name.

            with proxy.fault(latency("200ms"), subject="orders.>"):
            with proxy.fault("drop", role="publish-ack", first=2):

        fault: one of `natsproxy.testing.faults`, or the name of a kind.  settings: those of `natsproxy rules
        list`; `name` names the rule.  The fault is in force when the block starts and removed when it has
        ended.  Raises ConfigError for an invalid rule, and then changes nothing; FaultNeverFired where the
        block ends without an error and the fault has not acted once (`must_fire=False` allows that).
        """
        fault = fault if isinstance(fault, Fault) else Fault(fault, {})
        name = settings.pop("name", None) or fault.settings.get("name")
        name = str(name or f"{fault.kind}-{next(self._numbers)}")
        (rule,) = parse_rules([fault.table(name, settings)], KINDS, place=_FaultPlace())
        before = self._thread.wait(_IN_FORCE, self._begin, rule)
        idle, passed = "", False
        try:
            yield name
            passed = True
        finally:
            if self._thread.running:  # otherwise the rule has ended with the proxy
                try:
                    idle = self._idle(rule, before) if passed and must_fire else ""
                finally:
                    self._thread.wait(_IN_FORCE, self._end, name)
        if idle:
            raise FaultNeverFired(idle)

    async def _begin(self, rule: Rule) -> int:
        """Put a fault in force; return how often rules of its name had acted before."""
        assert self._proxy is not None
        if rule.name in self._proxy.rules.entries:
            raise ConfigError(f"a fault named {rule.name!r} is in force already")
        before = self._proxy.fired[rule.name]
        self._proxy.rules.put(rule)
        await self._proxy.rules_in_force()
        return before

    async def _end(self, name: str) -> None:
        assert self._proxy is not None
        self._proxy.rules.remove(name)
        await self._proxy.rules_in_force()

    async def _acts(self, name: str, before: int) -> bool:
        """Tell whether a fault has acted; frames that clients have just sent may still be in transit."""
        assert self._proxy is not None
        with trio.move_on_after(_LAST_FRAMES):
            while self._proxy.fired[name] == before:  # noqa: ASYNC110 (nearly all have acted)
                await trio.sleep(0.01)
        return self._proxy.fired[name] > before

    def _idle(self, rule: Rule, before: int) -> str:
        """Return why a fault has not acted, `""` if it has."""
        if self._thread.wait(_LAST_FRAMES, self._acts, rule.name, before):
            return ""
        return (
            f"the fault {rule.name!r} never fired: {rule.never_fired()}{self._near(rule)}; "
            "if that may be, say must_fire=False"
        )

    def _near(self, rule: Rule) -> str:
        """Return a clause with the subjects seen that are most similar to a rule's."""
        wanted = [pattern.decode("utf-8", "replace") for pattern in rule.selector.subjects or ()]
        if not wanted or rule.shared.matched:
            return ""
        seen = Counter(f"{one.op} {one.subject}" for one in self._seen.frames(FrameFilter()) if one.subject)
        if not seen:
            return "; no frame with a subject has passed at all"

        def likeness(one: str) -> float:
            subject = one.partition(" ")[2]
            return max(SequenceMatcher(None, subject, pattern).ratio() for pattern in wanted)

        nearest = sorted(seen.keys(), key=likeness, reverse=True)[:_NEAREST]
        return f"; nearest of what passed: {', '.join(f'{one} ({seen[one]})' for one in nearest)}"

    def _in_force(self) -> list[dict[str, Any]]:
        rules = self._rules if self._proxy is None else [e.rule for e in self._proxy.rules.entries.values()]
        return [dict(rule.table) for rule in rules]

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Firing) and len(self._firings) < _FIRINGS:
            self._firings.extend(event.each())
        elif isinstance(event, Closed) and event.cause not in _EXPECTED and len(self._ends) < _ENDS:
            self._ends.append(f"connection {event.conn} ended: {event.cause}: {event.detail}")

    # -- frames, waits, the report of a failure

    def frames(
        self, subject: str | None = None, *, op: str | None = None, direction: str | None = None
    ) -> list[SeenFrame]:
        """Return the frames that reached the proxy, oldest first; the latest 8 MiB of them are kept.

            assert [f.payload for f in proxy.frames("orders.*", op="PUB")] == [b"1", b"2"]

        subject: a pattern, wildcards allowed.  op: "PUB", "MSG", ...  direction: "c2s" or "s2c".  The call
        does not wait; after `barrier()` it returns every frame that clients had sent before.
        """
        return self._seen.frames(FrameFilter(subject, op, direction))

    def wait_for(
        self,
        subject: str | None = None,
        *,
        op: str | None = None,
        direction: str | None = None,
        count: int = 1,
        timeout: float = TIMEOUT,
    ) -> list[SeenFrame]:
        """Block until `count` matching frames have arrived, before or after the call; return them.

            proxy.wait_for("orders.new", op="PUB", count=3)

        timeout: seconds.  Raises WaitTimeout, which shows the last frames, and BlockingCall inside an event
        loop: there, `await proxy.wait_for_async(...)`.
        """
        refuse_in_loop("wait_for()", "await wait_for_async()")
        return self._thread.wait(
            timeout, self._seen.wait, FrameFilter(subject, op, direction), count, timeout
        )

    async def wait_for_async(
        self,
        subject: str | None = None,
        *,
        op: str | None = None,
        direction: str | None = None,
        count: int = 1,
        timeout: float = TIMEOUT,
    ) -> list[SeenFrame]:
        """Do the same as `wait_for` in asyncio and trio, without blocking."""
        wanted = FrameFilter(subject, op, direction)
        return await self._thread.wait_async(timeout, self._seen.wait, wanted, count, timeout)

    def barrier(self, timeout: float = TIMEOUT) -> None:
        """Block until the server has answered everything that had reached the proxy's sockets.

        Exceptions: bytes that a client library still buffers (flush the client first), connections without an
        INFO so far, and frames that a fault holds back.  timeout: seconds.  Raises WaitTimeout, and
        BlockingCall inside an event loop: there, `await proxy.barrier_async()`.
        """
        refuse_in_loop("barrier()", "await barrier_async()")
        self._thread.wait(timeout, self._barrier, timeout)

    async def barrier_async(self, timeout: float = TIMEOUT) -> None:
        """Do the same as `barrier` in asyncio and trio, without blocking."""
        await self._thread.wait_async(timeout, self._barrier, timeout)

    async def _barrier(self, timeout: float) -> None:
        assert self._proxy is not None
        with trio.move_on_after(timeout) as scope:
            await self._proxy.barrier()
        if scope.cancelled_caught:
            raise WaitTimeout(f"a barrier did not return within {timeout:g} s: is the server running?")

    def failure_report(self, count: int = 20) -> str:
        """Return the report for a failed test: faults in force, firings, the last `count` frames."""
        lines = [f"fault in force: {table}" for table in self._in_force()]
        lines += [
            f"fired: {one.rule} ({one.action}) {one.direction} {one.subject} on connection {one.conn}"
            for one in self._firings[-count:]
        ]
        lines += self._ends
        last = self._seen.last(count)
        return "\n".join([*lines, f"the last {len(last)} frames:" if last else "no frame passed", *last])
