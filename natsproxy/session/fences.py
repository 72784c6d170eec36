"""PINGs of ours, to the server (fences) and to the client, and whose PONGs come back.

Theory
1. A PONG has no identifier, and the server answers PINGs in order.  So a FIFO of owners tells whose PONG
   it is.
2. An injected PING is a *fence*: when its PONG arrives, all responses of the server to earlier frames have
   arrived too.  Answers that the proxy gives in the server's place are sent then.
3. Adjacent frames share one fence: the last one is used again as long as nothing has gone to the server after
   it, which `DirectionPipe.position` tells.
4. The client of a suspended connection is answered even if the server has stopped: its fences pass without
   their PONGs after a short time-out.  Where the server takes no bytes, the answers wait for that time-out in
   a fence without a PING (`Fences._unasked`).
5. A PING of ours to the client asks it for a sign of life.  The client answers in order too: its PONG comes
   behind those of all PINGs that went to the client before, the server's and ours; their number, less the
   PONGs that have come, is known when it is sent.  It ends here: the server did not ask for it.
6. Nothing asynchronous reaches a client before its first PONG: a PING that is wanted earlier waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from natsproxy import close_reasons
from natsproxy.session.direction import FAILOVER, DirectionPipe
from natsproxy.session.outbox import OVERHEAD
from natsproxy.session.phase import Lifecycle
from natsproxy.units import MILLISECOND
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, Op


@dataclass(slots=True, eq=False)
class Fence:
    """An injected PING, and the work to do when its PONG arrives.

    position: of the c2s pipe, after the PING.  cost: the bytes charged for it until its PONG.  answer: frames
    for the client.  then: callbacks, given the time.  end: the cause and detail with which the connection
    ends there.  deadline: the time (ns) at which a fence with an `end`, or one of a suspended connection,
    passes without its PONG.  drains: the end is a drain's, and waits for unanswered requests.
    suspended: it has only answers, and they go out at the deadline at the latest.
    """

    deadline: int
    position: int = -1
    cost: int = 0
    answer: bytearray = field(default_factory=bytearray)
    then: list[Callable[[int], None]] = field(default_factory=list)
    end: tuple[str, str] | None = None
    drains: bool = False
    suspended: bool = False


_PATIENCE: Final = MILLISECOND * 100
"""The time-out of a suspended client's fence: its answers go out then, PONG or not."""
_NOBODY: Final[deque[Fence | None]] = deque()
"""Shared by connections without PINGs: an empty deque takes 760 bytes."""
_NONE_TIMED: Final[dict[Fence, None]] = {}
"""Shared by connections without such fences."""


class Fences:
    """The fences of one connection, in the FIFO of PONG owners: a `Fence`, or None for the client.

    timeout: the time (ns) that a PONG may take.
    """

    __slots__ = ("_c2s", "_last", "_lifecycle", "_owners", "_s2c", "_timed", "_timeout", "_unasked")

    def __init__(
        self, pipes: tuple[DirectionPipe, DirectionPipe], lifecycle: Lifecycle, timeout: int
    ) -> None:
        self._c2s, self._s2c = pipes
        self._lifecycle = lifecycle
        self._timeout = timeout
        self._last: Fence | None = None
        self._unasked: Fence | None = None  # without a PING, after all others
        self._owners: deque[Fence | None] = _NOBODY
        self._timed: dict[Fence, None] = _NONE_TIMED  # those that may pass without their PONGs: few of many

    def client_ping(self) -> None:
        """Note that a PING of the client goes upstream."""
        self._own(None)

    def fence(self, now: int) -> Fence:
        """Return a fence at this place of the c2s stream; adjacent frames share one."""
        # A PING for each answer would double the frames of a client whose publishes are all denied.
        last = self._shared()
        if last is None or last.suspended:
            return self._send(Fence(now + self._timeout), now)
        return last

    def _shared(self) -> Fence | None:
        """Return the last fence, if nothing has gone to the server behind it."""
        last = self._last
        return last if last is not None and last.position == self._c2s.position else None

    def _send(self, fence: Fence, now: int) -> Fence:
        self._last = fence
        self._c2s.inject(encode.PING, Op.PING.bit, now, "proxy")
        fence.position = self._c2s.position
        self._own(fence)
        self._charge(fence, OVERHEAD)
        return fence

    def then(self, work: Callable[[int], None], now: int, size: int = OVERHEAD) -> None:
        """Run `work` once the server has got to this place of the c2s stream; size: bytes held until then."""
        fence = self.fence(now)
        fence.then.append(work)
        self._charge(fence, size)

    def then_alone(self, work: Callable[[int], None], now: int, size: int = OVERHEAD) -> None:
        """Run `work` as `then` does, with a fence that nothing else shares."""
        self._last = None
        self.then(work, now, size)
        self._last = None

    def answer(self, answer: bytes, now: int) -> Fence:
        """Answer the client at this place of the c2s stream; return the fence."""
        fence = self.fence(now)
        fence.answer += answer
        self._charge(fence, len(answer))
        return fence

    def answer_suspended(self, answer: bytes, now: int) -> None:
        """Answer the client at this place of the c2s stream, or at a time-out if the server sends no PONG."""
        fence = self._unasked or self._shared()
        if fence is None or not fence.suspended:
            fence = Fence(now + _PATIENCE, suspended=True)
            if self._c2s.outbox.blocked or self._c2s.outbox.held:
                self._unasked = fence
            else:
                self._send(fence, now)
        fence.answer += answer
        self._note_timed(fence)
        self._charge(fence, len(answer))

    def _charge(self, fence: Fence, size: int) -> None:
        # A client that does not read delays the PONGs, and could create fences without limit.
        fence.cost += size
        self._c2s.owed += size

    def end_here(self, answer: bytes, cause: str, detail: str, now: int) -> None:
        """End the connection at this place of the c2s stream; answer: frames for the client, or none."""
        if self._lifecycle.shut:  # nothing may go to the server yet, a fence neither
            if answer:
                self._s2c.inject(answer, Op.ERR.bit, now, "proxy")
            self._lifecycle.end(cause, detail)
            return
        self.end_at(self.answer(answer, now), cause, detail)

    def end_at(self, fence: Fence, cause: str, detail: str) -> None:
        """Have the connection end where a fence passes."""
        fence.end = (cause, detail)
        self._note_timed(fence)

    def _note_timed(self, fence: Fence) -> None:
        if self._timed is _NONE_TIMED:
            self._timed = {}
        self._timed[fence] = None

    def _own(self, owner: Fence | None) -> None:
        if self._owners is _NOBODY:
            self._owners = deque()
        self._owners.append(owner)

    def pong(self) -> Fence | None:
        """Take the owner of a PONG that came: a fence, or None where it is the client's (or has no owner)."""
        fence = self._owners.popleft() if self._owners else None
        if not self._owners:
            self._owners = _NOBODY
        if fence is not None and fence is self._last:
            self._last = None
        return fence

    def pass_(self, fence: Fence, now: int) -> None:
        """Run the work that waits for a fence."""
        if fence is self._unasked:
            self._unasked = None
        self._timed.pop(fence, None)
        # Taken out: a fence whose deadline came first passes again with its PONG.
        works, fence.then = fence.then, []
        answer, fence.answer = bytes(fence.answer), bytearray()
        for work in works:
            work(now)
        if answer:
            self._s2c.inject(answer, 0, now, "rule" if fence.end is None else "proxy")
        self._c2s.owed -= fence.cost
        fence.cost = 0
        if fence.end is None:
            return
        if fence.drains and fence.end[0] == close_reasons.DRAINED:
            # Without an end the fence has no deadline any more: the caller of the drain has one.
            self._lifecycle.drained, fence.end = fence.end, None
        else:
            self._lifecycle.end(*fence.end)

    def pass_overdue(self, now: int) -> None:
        """Run the work of the fences whose deadline came before their PONG."""
        overdue = [fence for fence in self._timed if fence.deadline <= now]
        if len(overdue) > 1:  # the client gets the answers in the order of its frames
            late = set(overdue)
            overdue = [fence for fence in (*self._owners, self._unasked) if fence in late]
        for fence in overdue:
            self.pass_(fence, now)

    def deadlines(self) -> list[int]:
        """Return the deadlines (ns) of fences that may pass without their PONGs."""
        return [fence.deadline for fence in self._timed]

    def lose_server(self, now: int) -> None:
        """Pass all that wait for a PONG of the lost server, in their order, and answer the client's PINGs.

        Those whose PINGs have not gone to it stay: another server gets the PINGs.
        """
        owners, self._owners, self._last = [*self._owners], _NOBODY, None
        stay = len(owners) - self._c2s.outbox.count(Op.PING, C2S)
        for owner in owners[stay:]:
            self._own(owner)
        for owner in owners[:stay]:
            if owner is None:
                self._s2c.inject(encode.PONG, Op.PONG.bit, now, FAILOVER)
            else:
                self.pass_(owner, now)

    def first(self, raw: bytes, work: Callable[[int], None], now: int) -> Fence:
        """Send frames ahead of all that is held back, and a fence behind them; return it."""
        self._c2s.send_first(raw + encode.PING, now)
        if self._owners is _NOBODY:
            self._owners = deque()
        fence = Fence(now, then=[work])
        self._owners.appendleft(fence)
        return fence

    def clear(self) -> None:
        """Forget all fences, whose work refers to the connection."""
        self._owners, self._last, self._unasked, self._timed = _NOBODY, None, None, _NONE_TIMED


Answered = Callable[[int], None]
"""Called with the time (ns)."""


@dataclass(slots=True, eq=False)
class _Ping:
    """A PING that was sent.  ahead: the PONGs that come before its own."""

    ahead: int
    answered: Answered


class ClientPings:
    """Our PINGs to one client, which ask it for a sign of life.

    watch_ops: makes the scanners stop at the ops that are needed now; called after `watched` of the c2s pipe
    has changed.
    """

    __slots__ = ("_c2s", "_early", "_lifecycle", "_s2c", "_sent", "_watch_ops")

    def __init__(
        self,
        pipes: tuple[DirectionPipe, DirectionPipe],
        lifecycle: Lifecycle,
        watch_ops: Callable[[], None],
    ) -> None:
        self._c2s, self._s2c = pipes
        self._lifecycle = lifecycle
        self._watch_ops = watch_ops
        self._early: tuple[Answered, ...] = ()  # wanted before the client's first PONG
        self._sent: tuple[_Ping, ...] = ()

    def ask(self, answered: Answered, now: int) -> None:
        """Send a PING at the next frame boundary; `answered` is called when its PONG comes."""
        if not self._lifecycle.arrived:
            self._early += (answered,)
            return
        ahead = self._s2c.outgoing(Op.PING) - self._c2s.scanner.counts[Op.PONG]
        # A client may have sent PONGs that nobody asked for.
        self._sent += (_Ping(max(0, ahead), answered),)
        self._watch()
        self._s2c.inject(encode.PING, Op.PING.bit, now, "proxy")

    def client_is_ready(self, now: int) -> None:
        """Send the PINGs that were wanted before the client's first PONG."""
        early, self._early = self._early, ()
        for answered in early:
            self.ask(answered, now)

    def pong(self, now: int) -> bool:
        """Take a PONG of the client; return whether it belongs to a PING of ours."""
        first, *others = self._sent or (None,)
        if first is None:
            return False
        ours = first.ahead == 0
        for ping in others if ours else self._sent:
            ping.ahead = max(0, ping.ahead - 1)
        if ours:
            self._sent = tuple(others)
            self._watch()
            first.answered(now)
        return ours

    def _watch(self) -> None:
        """Look at the client's PONGs only while one of them is awaited."""
        self._c2s.watched = Op.PONG.bit if self._sent else 0
        self._watch_ops()

    def clear(self) -> None:
        """Forget all."""
        self._early, self._sent = (), ()
