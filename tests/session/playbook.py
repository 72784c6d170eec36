"""Playbooks: a session's life as a transcript.

    play = Playbook()
    play.server(b"INFO ...")          # bytes come from the server
    assert play.to_client == b"..."   # the bytes since the last look

Every look takes those bytes away, so a transcript that is asserted line by line leaves nothing unseen;
`play.nothing()` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from natsproxy.capture.format.records import Frames
from natsproxy.events import Event, Firing
from natsproxy.rules.interface import (
    BatchFunction,
    Chain,
    ConnectionRules,
    Decision,
    EmptyChain,
    LinkConditions,
    SubscriptionCheck,
    View,
)
from natsproxy.session.session import Session
from natsproxy.session.values import (
    Action,
    Authenticate,
    Certificate,
    Emit,
    End,
    Finish,
    Record,
    Redial,
    Restored,
    Send,
    SessionSettings,
)
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import ALL_OPS, C2S, S2C, Direction
from natsproxy.wire.scanner import Interest

INFO = b'INFO {"server_id":"S","version":"2.15.1","proto":1,"headers":true,"max_payload":1048576} \r\n'
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1,"name":"app"}\r\n'


class Playbook:
    """One session and the actions that it asked for."""

    def __init__(self, chain: Chain | None = None, *, certificate: object = None, **settings: object) -> None:
        self.now = 0
        self.records: list[Frames] = []
        self.events: list[Event] = []
        self.end: End | None = None
        self.finished: list[Direction] = []
        self.asked: list[tuple[str, str]] = []
        self.redials = self.restored = 0
        self._out = [bytearray(), bytearray()]
        self.session = Session(
            SessionSettings(advertise="pass", **settings),  # type: ignore[arg-type]
            chain or EmptyChain(),
            conn=1,
            ordinal=1,
            address="127.0.0.1:1",
            certificate=certificate or Certificate(),  # type: ignore[arg-type]
            record=True,
            now=0,
        )

    def do(self, actions: list[Action]) -> None:
        """Take actions."""
        for action in actions:
            if isinstance(action, Send):
                self._out[action.direction] += action.data
            elif isinstance(action, Record):
                if isinstance(action.item, Frames):
                    self.records.append(action.item._replace(data=bytes(action.item.data)))
            elif isinstance(action, Emit):
                self.events.append(action.event)
            elif isinstance(action, Finish):
                self.finished.append(action.direction)
            elif isinstance(action, Authenticate):
                self.asked.append((action.user, action.password))
            elif isinstance(action, Redial):
                self.redials += 1
            elif isinstance(action, Restored):
                self.restored += 1
            else:
                self.end = action

    def client(self, data: bytes) -> Playbook:
        """Take bytes from the client."""
        self.do(self.session.receive(C2S, data, self.now))
        return self

    def server(self, data: bytes) -> Playbook:
        """Take bytes from the server."""
        self.do(self.session.receive(S2C, data, self.now))
        return self

    def authenticated(self, refusal: str | None = None) -> Playbook:
        """Answer the check of a password."""
        self.do(self.session.authenticated(refusal, self.now))
        if self.session.pipes[C2S].pending:
            self.do(self.session.receive(C2S, b"", self.now))
        return self

    def eof(self, direction: Direction) -> Playbook:
        """Take the end of a side's stream."""
        self.do(self.session.eof(direction, self.now))
        return self

    def resume(self) -> Playbook:
        """Let the client of a replaced server go on."""
        self.do(self.session.resume(self.now))
        return self.at(self.now)

    def at(self, now: int) -> Playbook:
        """Let time pass, with all that is due in it."""
        while (due := self.session.next_tick()) is not None and due <= now:
            self.now = max(self.now, due)
            self.do(self.session.tick(self.now))
        self.now = now
        return self

    @property
    def to_server(self) -> bytes:
        """The bytes that went to the server since the last look."""
        return self._take(C2S)

    @property
    def to_client(self) -> bytes:
        """The bytes that went to the client since the last look."""
        return self._take(S2C)

    def _take(self, direction: Direction) -> bytes:
        taken = bytes(self._out[direction])
        self._out[direction].clear()
        return taken

    def nothing(self) -> None:
        """Assert that nothing is unseen."""
        assert (self.to_server, self.to_client) == (b"", b"")

    def greeted(self) -> Playbook:
        """Bring the session past INFO, CONNECT and the first PONG."""
        self.server(INFO).client(CONNECT + b"PING\r\n").server(b"PONG\r\n")
        assert self.to_server == CONNECT + b"PING\r\n"
        assert self.to_client == INFO + b"PONG\r\n"
        return self


@dataclass
class OneRule:
    """A chain and a bound of one function, made for a test."""

    rule: object
    ops: int = ALL_OPS
    need: Need = Need.LINE
    match: tuple[bytes, ...] | None = None
    guards: bool = True
    alters_delivery: bool = False
    connect_first: bool = False
    opening: str = "serve"
    text: str = ""
    batch_functions: tuple[BatchFunction | None, BatchFunction | None] = (None, None)
    revoked: list[tuple[bytes, str]] = field(default_factory=list)
    resubscribed: list[tuple[bytes, bytes]] = field(default_factory=list)
    link: LinkConditions | None = None
    bound_times: int = 0
    fired: list[Firing] = field(default_factory=list)

    def __post_init__(self) -> None:
        interest = Interest((Clause(self.ops, self.need, self.match),))
        self.interest = (interest, interest)

    def steps(self, direction: Direction, frame: Frame, now: int) -> Generator[None, None, Decision | None]:
        """Decide in one step."""
        yield from ()
        return self.decide(direction, frame, now)

    def decisions(self, direction: Direction) -> object | None:
        """Return nothing: each frame is decided on."""
        return None

    def begin(self, now: int, unix: Callable[[int], int] | None = None) -> None:
        """Do nothing: it has no times."""

    def check(self, view: View, previous: ConnectionRules) -> SubscriptionCheck | None:
        """Return nothing: it minds no subscription."""
        return None

    def bind(
        self,
        view: View,
        previous: ConnectionRules | None,
        now: int,
        check: SubscriptionCheck | None = None,
    ) -> ConnectionRules:
        """Return itself."""
        self.bound_times += 1
        self.view = view
        return self

    def renamed(self, subject: bytes) -> bytes:
        """Return the subject: nothing is renamed."""
        return subject

    def decide(self, direction: Direction, frame: Frame, now: int) -> Decision | None:
        """Ask the function."""
        assert callable(self.rule)
        decision = self.rule(direction, frame, now)
        assert decision is None or isinstance(decision, Decision)
        return decision

    def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
        """Return the conditions of the s2c link that the test gave."""
        return (self.link if direction == S2C else None), None

    def due(self, now: int) -> tuple[list[tuple[Direction, bytes]], None, int | None]:
        """Nothing is ever due."""
        return [], None, None

    def close(self, now: int) -> None:
        """Nothing to forget."""
