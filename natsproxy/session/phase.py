"""Phases of a connection and of its two directions, as tables of transitions.

Theory
1. A connection is in one `Phase`, each direction in one `PipePhase`.  Nothing else says how far they are.
2. An event moves a phase along its table.  An event without a row changes nothing: INFO, CONNECT and PONG
   come again and again in the life of a connection, and only the first of each matters here.
3. Nothing leaves the last phase (`OVER`, `ENDED`).
4. Phases and events are whole numbers: the hash of any other enum is a call of Python, and a new connection
   has twenty of them.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

from natsproxy.events import Notice
from natsproxy.session.values import Act, Emit, End


class Phase(IntEnum):
    """The phase of a connection."""

    OPENED = auto()
    """Neither INFO nor CONNECT has come."""
    EARLY = auto()
    """CONNECT came before INFO: some clients do not wait."""
    GREETED = auto()
    """INFO has gone to the client."""
    CONNECTED = auto()
    """INFO and CONNECT have passed; the client expects its first PONG and nothing before it."""
    READY = auto()
    """The client has had its first PONG."""
    HELD = auto()
    """The server is lost, and the client waits for another one."""
    RESTORING = auto()
    """Another server has the login and the subscriptions, and has not accepted them yet."""
    RESTORED = auto()
    """It has accepted them; what the client has sent meanwhile still waits."""
    REFUSED = auto()
    """The server's INFO says that no client can be served through the proxy."""
    OVER = auto()
    """The end was requested."""


class PhaseEvent(IntEnum):
    """An event that moves a connection from phase to phase."""

    INFO = auto()
    UNUSABLE_INFO = auto()
    CONNECT = auto()
    PONG = auto()
    SERVER_LOST = auto()
    RESUME = auto()
    END = auto()


TRANSITIONS: Final[dict[Phase, dict[PhaseEvent, Phase]]] = {
    Phase.OPENED: {
        PhaseEvent.INFO: Phase.GREETED,
        PhaseEvent.UNUSABLE_INFO: Phase.REFUSED,
        PhaseEvent.CONNECT: Phase.EARLY,
        PhaseEvent.END: Phase.OVER,
    },
    Phase.EARLY: {
        PhaseEvent.INFO: Phase.CONNECTED,
        PhaseEvent.UNUSABLE_INFO: Phase.REFUSED,
        PhaseEvent.END: Phase.OVER,
    },
    Phase.GREETED: {PhaseEvent.CONNECT: Phase.CONNECTED, PhaseEvent.END: Phase.OVER},
    Phase.CONNECTED: {PhaseEvent.PONG: Phase.READY, PhaseEvent.END: Phase.OVER},
    Phase.READY: {PhaseEvent.SERVER_LOST: Phase.HELD, PhaseEvent.END: Phase.OVER},
    Phase.HELD: {PhaseEvent.INFO: Phase.RESTORING, PhaseEvent.END: Phase.OVER},
    Phase.RESTORING: {
        PhaseEvent.PONG: Phase.RESTORED,
        PhaseEvent.SERVER_LOST: Phase.HELD,
        PhaseEvent.END: Phase.OVER,
    },
    Phase.RESTORED: {
        PhaseEvent.RESUME: Phase.READY,
        PhaseEvent.SERVER_LOST: Phase.HELD,
        PhaseEvent.END: Phase.OVER,
    },
    Phase.REFUSED: {PhaseEvent.END: Phase.OVER},
    Phase.OVER: {},
}

BEFORE_INFO: Final = frozenset({Phase.OPENED, Phase.EARLY})
FAILING_OVER: Final = frozenset({Phase.HELD, Phase.RESTORING, Phase.RESTORED})
ARRIVED: Final = FAILING_OVER | {Phase.READY}
"""The client has had its first PONG."""
AFTER_CONNECT: Final = ARRIVED | {Phase.EARLY, Phase.CONNECTED}


class PipePhase(IntEnum):
    """The phase of one direction; from `FINISHED` on, bytes of the sender are no longer taken."""

    FRAMED = 0
    """Bytes are cut into frames."""
    UNFRAMED = 1
    """Bytes pass without being read: the stream is not NATS, or not known."""
    FINISHED = 2
    """A rule has half-closed the direction: bytes that still come are lost."""
    ENDED = 3
    """The sender's stream is over, or must not go on."""
    UNFRAMED_ENDED = 4
    """The same, of a direction that was not framed: nothing can be injected into it."""


class PipeEvent(IntEnum):
    """An event that moves a direction from phase to phase."""

    UNFRAME = auto()
    FINISH = auto()
    END = auto()


PIPE_TRANSITIONS: Final[dict[PipePhase, dict[PipeEvent, PipePhase]]] = {
    PipePhase.FRAMED: {
        PipeEvent.UNFRAME: PipePhase.UNFRAMED,
        PipeEvent.FINISH: PipePhase.FINISHED,
        PipeEvent.END: PipePhase.ENDED,
    },
    PipePhase.UNFRAMED: {
        PipeEvent.FINISH: PipePhase.UNFRAMED_ENDED,
        PipeEvent.END: PipePhase.UNFRAMED_ENDED,
    },
    PipePhase.FINISHED: {PipeEvent.END: PipePhase.ENDED},
    PipePhase.ENDED: {},
    PipePhase.UNFRAMED_ENDED: {},
}

# Constants: looking a member up in its class is measurable where it is done for each frame or read.
OVER: Final = Phase.OVER
REFUSED: Final = Phase.REFUSED
UNFRAMED: Final = PipePhase.UNFRAMED
FIRST_STOPPED: Final = PipePhase.FINISHED
"""The first phase of a direction in which bytes are no longer taken."""


class Lifecycle:
    """The life cycle of one connection: its phase, and its end.

    conn: its number, in events.  shut: nothing of the client may go to the server yet, because it has not
    authenticated.  logged_in: the client has had a PONG after its only CONNECT.  drained: the cause and
    detail with which the connection ends once no request is unanswered, None while it is not being
    drained.
    """

    __slots__ = ("_act", "conn", "drained", "logged_in", "phase", "shut")

    def __init__(self, conn: int, act: Act, *, shut: bool) -> None:
        self.conn = conn
        self.phase = Phase.OPENED
        self.logged_in = False
        self.shut = shut
        self.drained: tuple[str, str] | None = None
        self._act = act

    @property
    def over(self) -> bool:
        """True if the end was requested."""
        return self.phase is OVER

    @property
    def arrived(self) -> bool:
        """True if the client has had its first PONG."""
        return self.phase in ARRIVED

    @property
    def failing_over(self) -> bool:
        """True from the loss of the server until the client goes on with another one."""
        return self.phase in FAILING_OVER

    def step(self, event: PhaseEvent) -> None:
        """Move to the phase that follows an event."""
        if self.phase is Phase.CONNECTED and event is PhaseEvent.PONG:
            self.logged_in = True
        elif event is PhaseEvent.CONNECT:  # another login, which the server has yet to accept
            self.logged_in = False
        self.phase = TRANSITIONS[self.phase].get(event, self.phase)

    def end(self, cause: str, detail: str = "", *, reset: bool = False, flush: bool = False) -> None:
        """Request the end of the connection (see `End`); the first cause is the one that counts."""
        if self.phase is not OVER:
            self.step(PhaseEvent.END)
            self._act(End(cause, detail, reset, flush))

    def notice(self, level: str, text: str, now: int) -> None:
        """Emit a notice about this connection; level: "info", "warning" or "error"."""
        self._act(Emit(Notice(now, self.conn, level, text)))
