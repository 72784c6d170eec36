"""A trial of rules on frames without a session: the real engine, on a connection that exists in memory only.

`rules explain` asks about one frame that the user describes.  A caller that has the frames of a connection
asks about them in order, and gets the decisions that the proxy would have made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from natsproxy.events import UNKNOWN, Who
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.rules.interface import ConnectionRules, Decision, Subscription
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import SUBSCRIPTION_OPS, Direction, Op


@dataclass
class TrialView:
    """A connection in memory, as a `View`.  watched: the subjects that its rules have asked for."""

    connect: Connect = field(default_factory=lambda: Connect(verbose=False, pedantic=False))
    info: Info = field(default_factory=Info)
    address: str = ""
    ordinal: int = 0
    tls_subject: str = ""
    conn: int = 1
    key: str = ""
    subs: dict[bytes, Subscription] = field(default_factory=dict)
    subs_version: int = 0
    watched: dict[tuple[Direction, bytes], Need] = field(default_factory=dict)
    alike: str = ""
    who: Who = UNKNOWN

    def count_sid(self, sid: bytes) -> None:
        """Do nothing: no session counts here."""

    def watch_subject(self, direction: Direction, subject: bytes, need: Need) -> None:
        """Ask for the messages of a subject."""
        self.watched[direction, subject] = need

    def unwatch_subject(self, direction: Direction, subject: bytes) -> None:
        """Undo `watch_subject`."""
        self.watched.pop((direction, subject), None)


def ask(
    rules: ConnectionRules, view: TrialView, direction: Direction, frame: Frame, now: int
) -> Decision | None:
    """Return the decision of the rules of a connection on its next frame; None: it passes untouched.

    Keeps the live subscriptions, as the session does.
    """
    new = frame.op == Op.SUB and frame.sid not in view.subs
    if new:
        view.subs[frame.sid] = Subscription(frame.sid, frame.subject, frame.queue, frame.subject)
    wanted = rules.interest[direction].need(frame.op, frame.subject) or (
        (direction, frame.subject) in view.watched
    )
    decision = rules.decide(direction, frame, now) if wanted else None
    if new and decision is not None:
        if decision.out == ():
            del view.subs[frame.sid]
        elif decision.upstream_subject:
            view.subs[frame.sid].upstream = decision.upstream_subject
    elif frame.op == Op.UNSUB and not frame.args:
        view.subs.pop(frame.sid, None)
    view.subs_version += frame.op in SUBSCRIPTION_OPS
    return decision
