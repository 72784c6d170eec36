"""A running proxy for tests: faults that undo themselves, frames seen, waiting that has limits."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from natsproxy.capture.records import Frames, Item
from natsproxy.config.settings import Address, ProxySettings, RecordSettings
from natsproxy.errors import NatsproxyError
from natsproxy.events import Event, Firing
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.subjects import matches
from natsproxy.rules.chain import RuleChain
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.spec import parse_rules
from natsproxy.testing.thread import TrioThread, refuse_in_loop
from natsproxy.wire.ops import Direction
from natsproxy.wire.parse import frames as parse_frames

RING = 8 << 20  # bytes of frames that are kept
TIMEOUT = 5.0  # seconds


class WaitTimeout(NatsproxyError):
    """Something that a test waited for did not come in time."""


@dataclass(frozen=True, slots=True)
class SeenFrame:
    """One frame that passed the proxy, as it arrived.

    passed: it went on as it was; otherwise `cause` names the rule that changed or stopped it.
    """

    conn: int
    direction: str
    op: str
    subject: str
    reply: str
    headers: bytes
    payload: bytes
    passed: bool
    cause: str | None


class TestProxy:
    """A proxy before `upstream`, in a thread of its own; a context manager.

    `url` is where the clients under test connect to.  Raises NatsproxyError if it cannot start.
    """

    __test__ = False  # it is no test case, whatever its name

    def __init__(
        self,
        upstream: str,
        *,
        rules: list[dict[str, Any]] | None = None,
        record: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        host, _, port = upstream.removeprefix("nats://").rstrip("/").rpartition(":")
        settings = ProxySettings(
            listen=(Address(),), upstream=Address(host.strip("[]") or "127.0.0.1", int(port)), seed=seed
        )
        if record is not None:
            settings = replace(settings, record=RecordSettings(Path(record)))
        self.seed = seed
        self._proxy = Proxy(settings)
        self._tables: dict[str, dict[str, Any]] = {}
        for table in rules or []:
            self._tables[str(table.get("name"))] = table
        self._numbers = itertools.count(1)
        self._ring: deque[tuple[SeenFrame, int]] = deque()
        self._ring_bytes = 0
        self._changed = threading.Condition()
        self._firings: list[Firing] = []
        self._thread = TrioThread(self._serve)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{self._proxy.listen[0]}"

    @property
    def firings(self) -> list[Firing]:
        """What rules did so far."""
        return list(self._firings)

    def __enter__(self) -> TestProxy:
        self._swap()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.stop()

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        self._proxy.subscribe(self._on_event)
        self._proxy.tap(self._on_item)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._proxy.serve)
            started()
            await stop.wait()
            nursery.cancel_scope.cancel()

    # -- faults

    @contextmanager
    def fault(self, kind: str, **settings: Any) -> Iterator[str]:
        """Put a rule in force for the time of a `with`; yields its name.

        kind and settings are those of `natsproxy rules list`: `proxy.fault("latency", delay="200ms",
        subject=["orders.>"])`.  Raises ConfigError, in a sentence, for what is no rule.
        """
        name = str(settings.pop("name", f"{kind}-{next(self._numbers)}"))
        subject = settings.get("subject")
        if isinstance(subject, str):
            settings["subject"] = [subject]
        self._tables[name] = {"name": name, "kind": kind, **settings}
        try:
            self._apply()
        except BaseException:
            del self._tables[name]
            raise
        try:
            yield name
        finally:
            del self._tables[name]
            self._apply()

    def _apply(self) -> None:
        self._thread.call(self._swap)

    def _swap(self) -> None:
        before = self._proxy.chain if isinstance(self._proxy.chain, RuleChain) else None
        rules = parse_rules(list(self._tables.values()), KINDS)
        self._proxy.swap(RuleChain(rules, seed=self._proxy.seed, previous=before))

    # -- what happened

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Firing):
            with self._changed:
                self._firings.append(event)
                self._changed.notify_all()

    def _on_item(self, item: Item) -> None:
        if not isinstance(item, Frames) or item.in_first is None or item.flags:
            return
        size = len(item.data)
        found = list(_seen(item))
        with self._changed:
            for one in found:
                self._ring.append((one, size // len(found)))
            self._ring_bytes += size
            while self._ring_bytes > RING:
                self._ring_bytes -= self._ring.popleft()[1]
            self._changed.notify_all()

    def frames(
        self, subject: str | None = None, *, op: str | None = None, direction: str | None = None
    ) -> list[SeenFrame]:
        """Return the frames seen so far, oldest first; the ring keeps the latest 8 MiB of them."""
        with self._changed:
            return [one for one, _ in self._ring if _is(one, subject, op, direction)]

    def wait_for(
        self,
        subject: str | None = None,
        *,
        op: str | None = None,
        direction: str | None = None,
        count: int = 1,
        timeout: float = TIMEOUT,
    ) -> list[SeenFrame]:
        """Block until `count` such frames were seen.  Raises WaitTimeout with what was seen instead."""
        refuse_in_loop("wait_for")
        return self._wait_for(subject, op, direction, count, timeout)

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

        async def wait() -> list[SeenFrame]:
            return await trio.to_thread.run_sync(self._wait_for, subject, op, direction, count, timeout)

        return await self._thread.wait_async(wait)

    def _wait_for(
        self, subject: str | None, op: str | None, direction: str | None, count: int, timeout: float
    ) -> list[SeenFrame]:
        def found() -> list[SeenFrame]:
            return [one for one, _ in self._ring if _is(one, subject, op, direction)]

        with self._changed:
            if self._changed.wait_for(lambda: len(found()) >= count, timeout):
                return found()
            last = [f"{one.op} {one.subject}" for one, _ in list(self._ring)[-5:]]
        what = " ".join(filter(None, (op, subject, direction))) or "any frame"
        text = f"waited {timeout} s for {count} of {what}, saw {len(found())}; the last frames: {last}"
        raise WaitTimeout(text)

    # -- the barrier

    def barrier(self, timeout: float = TIMEOUT) -> None:
        """Block until all that had reached the proxy's sockets is handled and answered by the server.

        What a client library still buffers is not covered.  Raises WaitTimeout.
        """
        refuse_in_loop("barrier")
        self._thread.wait(self._barrier, timeout)

    async def barrier_async(self, timeout: float = TIMEOUT) -> None:
        """Await the same, in asyncio and trio."""
        await self._thread.wait_async(self._barrier, timeout)

    async def _barrier(self, timeout: float) -> None:
        with trio.move_on_after(timeout) as scope:
            await self._proxy.barrier()
        if scope.cancelled_caught:
            raise WaitTimeout(f"a barrier did not come back within {timeout} s: is the server there?")


def _seen(item: Frames) -> Iterator[SeenFrame]:
    passed = item.out_first is not None
    for frame in parse_frames(bytes(item.data), item.direction):
        yield SeenFrame(
            item.conn, Direction(item.direction).label, frame.op.label,
            frame.subject.decode("utf-8", "replace"), frame.reply.decode("utf-8", "replace"),
            frame.headers, frame.body, passed, item.cause,
        )  # fmt: skip


def _is(one: SeenFrame, subject: str | None, op: str | None, direction: str | None) -> bool:
    if op is not None and one.op != op.upper():
        return False
    if direction is not None and one.direction != direction:
        return False
    return subject is None or (bool(one.subject) and matches(subject.encode(), one.subject.encode()))
