"""A chain of rules on one recorded connection: it is bound whenever the proxy would bind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from natsproxy.protocol.connect import Connect, parse_connect
from natsproxy.protocol.info import Info, parse_info
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.trial import TrialView, ask
from natsproxy.rules.interface import Decision, Subscription
from natsproxy.session.subscriptions import unsub_max
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Direction, Op

Keys = tuple[str, str]
"""The key of a connection, and that of its client's name as a template."""
NO_KEYS: Final = ("", "")


class BoundRules:
    """The rules of a chain on one connection, with the subscriptions that pass them.

    facts: of its opening record.  subs: those that were live when the recording began.
    refused: the sids of the subscriptions that the rules did not admit, or have ended, each with the rule.
    revoked: the rules that have ended live ones, each with the subject; who reads it empties it.
    """

    def __init__(
        self,
        chain: RuleChain,
        number: int,
        facts: Mapping[str, Any],
        now: int,
        subs: Iterable[Subscription] = (),
    ) -> None:
        ordinal = int(facts.get("ordinal") or number)
        self._chain = chain
        self._user = str(facts.get("user", ""))
        self.view = TrialView(
            Connect(user=self._user),
            Info(remote_account=str(facts.get("account", ""))),
            str(facts.get("client", "")),
            ordinal,
            str(facts.get("tls_subject", "")),
            number,
            str(facts.get("key") or f"#{ordinal}"),
            {sub.sid: sub for sub in subs},
            alike=str(facts.get("alike") or f"#{ordinal}"),
        )
        self.refused: dict[bytes, str] = {}
        self.revoked: list[tuple[str, bytes]] = []
        self.rules = chain.bind(self.view, None, now)
        self._revoke()

    def ask(self, direction: Direction, frame: Frame, keys: Keys, now: int) -> Decision | None:
        """Return the decision on the next frame.  keys: of the connection, once it is introduced."""
        if direction == C2S and frame.op == Op.CONNECT:
            self._introduced(frame, keys, now)
        elif direction != C2S and frame.op == Op.INFO:
            self._informed(frame, now)
        decision = ask(self.rules, self.view, direction, frame, now)
        if frame.op == Op.SUB:
            self._subscribed(frame, decision)
        elif frame.op == Op.UNSUB:
            self._limited(frame)
        elif frame.sid and (decision is None or decision.out != ()):
            self._delivered(frame)
        return decision

    def _bind(self, now: int) -> None:
        self.rules = self._chain.bind(self.view, self.rules, now)
        self._revoke()

    def _revoke(self) -> None:
        """End the live subscriptions that rules refuse which have just come into force."""
        for sid, _ in self.rules.revoked:
            sub = self.view.subs.pop(sid)
            found = self.rules.index.refusing(sub.subject, sub.queue)
            self.refused[sid] = rule = next((one.name for one in found if not one.action.shadow), "")
            self.revoked.append((rule, sub.subject))
        self.view.subs_version += len(self.rules.revoked)

    def _introduced(self, frame: Frame, keys: Keys, now: int) -> None:
        try:
            connect = parse_connect(frame.args, self.view.connect)
        except ValueError:  # the server refuses it too
            return
        self.view.connect = connect._replace(user=self._user) if self._user else connect
        self.view.key, self.view.alike = keys
        self._bind(now)

    def _informed(self, frame: Frame, now: int) -> None:
        try:
            info = parse_info(frame.args)
        except ValueError:
            return
        account = info.remote_account or self.view.info.remote_account
        self.view.info = info._replace(remote_account=account)
        if info.remote_account:
            self._bind(now)

    # -- subscriptions

    def _subscribed(self, frame: Frame, decision: Decision | None) -> None:
        if decision is None or decision.out != ():
            self.refused.pop(frame.sid, None)
        elif frame.sid not in self.view.subs:  # else the server ignores it: the sid is in use
            self.refused[frame.sid] = decision.cause

    def _limited(self, frame: Frame) -> None:
        sub = self.view.subs.get(frame.sid)
        if sub is not None:
            sub.max = unsub_max(frame.args)
            self._end_at_limit(sub)

    def _delivered(self, frame: Frame) -> None:
        sub = self.view.subs.get(frame.sid)
        if sub is not None and not frame.no_responders:
            sub.delivered += 1
            if sub.max:
                self._end_at_limit(sub)

    def _end_at_limit(self, sub: Subscription) -> None:
        if sub.delivered >= sub.max:
            del self.view.subs[sub.sid]
            self.view.subs_version += 1
