"""The report of a rehearsal: verdicts counted by rule, subject template and client, and expectations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from natsproxy.events import SHADOWED
from natsproxy.protocol.template import template
from natsproxy.rules.file.expectations import CANNOT_TELL, PASS, Expectation
from natsproxy.rules.kinds.rewrite import KIND as REWRITE
from natsproxy.rules.model.rule import Rule
from natsproxy.trial.rehearsal import JudgedFrame

_SHOWN: Final = 20
"""Frames that an expectation which is not met names."""
_CONNECTION: Final = "(connection)"


class Key(NamedTuple):
    """Verdicts that are counted together.  what: op and subject template."""

    rule: str
    verdict: str
    what: str
    client: str


@dataclass(slots=True)
class FrameRange:
    """Their number, and the first and the last of them."""

    count: int
    first: JudgedFrame
    last: JudgedFrame


@dataclass(slots=True)
class ExpectationOutcome:
    """The outcome of an expectation.

    selected: frames that it selects.  met: those with its verdict.  odd: the first ones with another.
    """

    expectation: Expectation
    selected: int = 0
    met: int = 0
    odd: list[JudgedFrame] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if it is met."""
        if self.expectation.count is not None:
            return self.met == self.expectation.count
        return 0 < self.met == self.selected

    def add(self, one: JudgedFrame) -> None:
        """Compare a frame that it selects."""
        self.selected += 1
        wanted, by = self.expectation.verdict, self.expectation.rule
        found = [(ruling.verdict, ruling.rule) for ruling in one.rulings]
        if passes(one):
            found.append((PASS, ""))
        if any(verdict == wanted and by in ("", rule) for verdict, rule in found):
            self.met += 1
        elif len(self.odd) < _SHOWN:
            self.odd.append(one)

    def sentence(self) -> str:
        """Return why it is not met."""
        found = self.expectation
        of = f"{self.met} of {self.selected} frame{'s' * (self.selected != 1)}"
        if not self.selected and found.count is None:
            of = "no frame is selected"
        return f"{found.where}: expectation {found.selection.name!r}: {found.describe()}: {of}"


class Report:
    """The verdicts so far.  frames: all that were judged.  passed: those on which no rule acts."""

    def __init__(self, rules: Iterable[Rule], expectations: Iterable[Expectation]) -> None:
        self.frames = self.passed = 0
        self.rows: dict[Key, FrameRange] = {}
        self.outcomes = [ExpectationOutcome(one) for one in expectations]
        self._rules = tuple(rules)
        self._accounts = False

    def add(self, one: JudgedFrame) -> None:
        """Count a frame."""
        if one.ordinal is not None:
            self.frames += 1
            self.passed += passes(one)
        for ruling in one.rulings:
            key = Key(ruling.rule, ruling.verdict, what(one), one.client)
            row = self.rows.setdefault(key, FrameRange(0, one, one))
            row.count += 1
            row.last = one
        for place in one.expected:
            self.outcomes[place].add(one)

    @property
    def holds(self) -> bool:
        """True if all expectations are met."""
        return all(outcome.holds for outcome in self.outcomes)

    def limits(self, missing: Iterable[str] = ()) -> list[str]:
        """Return what the recordings cannot tell, a sentence each."""
        found = [text for applies, text in _LIMITS if any(applies(rule) for rule in self._rules)]
        if any(key.verdict == CANNOT_TELL for key in self.rows):
            found.append(
                "'cannot tell': the recording lacks a payload that the rule looks at, or the messages of the "
                "subject to which the rule would have moved a subscription"
            )
        if any(key.verdict in _STOPS for key in self.rows):
            found.append(_COPIES)
        return [*missing, *found]

    def facts(self) -> dict[str, Any]:
        """Return the report as an object of JSON."""
        return {
            "frames": self.frames,
            "passed": self.passed,
            "rows": [row_facts(key, row) for key, row in self.rows.items()],
            "expectations": [
                {
                    "where": outcome.expectation.where,
                    "name": outcome.expectation.selection.name,
                    "expects": outcome.expectation.describe(),
                    "holds": outcome.holds,
                    "selected": outcome.selected,
                    "met": outcome.met,
                    "other": [frame_facts(one) for one in outcome.odd],
                }
                for outcome in self.outcomes
            ],
        }


def passes(one: JudgedFrame) -> bool:
    """Tell whether no rule acts on a frame; one in shadow does not."""
    return all(ruling.verdict in SHADOWED for ruling in one.rulings)


def what(one: JudgedFrame) -> str:
    """Return op and subject template of a frame."""
    if one.op is None:
        return _CONNECTION
    return f"{one.op.label} {template(one.subject).decode('utf-8', 'backslashreplace')}".rstrip()


def row_facts(key: Key, row: FrameRange) -> dict[str, Any]:
    """Return a row as an object of JSON."""
    return {**key._asdict(), "count": row.count, "first": place(row.first), "last": place(row.last)}


def place(one: JudgedFrame) -> dict[str, Any]:
    """Return the place of a frame as an object of JSON."""
    return {"capture": one.capture, "connection": one.connection, "t": one.t, "ordinal": one.ordinal}


def frame_facts(one: JudgedFrame) -> dict[str, Any]:
    """Return a frame with its verdicts as an object of JSON."""
    return {
        **place(one),
        "client": one.client,
        "direction": one.direction.label,
        "op": "" if one.op is None else one.op.label,
        "subject": one.subject.decode("utf-8", "backslashreplace"),
        "verdicts": [ruling._asdict() for ruling in one.rulings],
    }


_STOPS: Final = ("deny", "drop", "answer", "swallow", "reply", "suspend")
_COPIES: Final = (
    "of a publish that does not arrive the answers would not come; its copies for other subscribers, and "
    "what a denied call would have created, are not followed"
)
_LIMITS: Final = (
    (
        lambda rule: (rule.gate.between is not None and rule.gate.between.since_rule) or rule.gate.per_proxy,
        'times of rules (between with +, per = "proxy") count from the beginning of the recording',
    ),
    (
        lambda rule: rule.gate.probability is not None or rule.action.draws_random,
        "random numbers are those of the recorded connection keys and of --seed",
    ),
    (
        lambda rule: rule.selector.peer.tls_subject is not None,
        "conditions on tls_subject hold where the recording has the certificate of a connection",
    ),
    (
        lambda rule: rule.selector.peer.account is not None,
        "conditions on account hold where the server has named it in the recording",
    ),
    (
        lambda rule: rule.kind == REWRITE.name,
        "what the server would have sent on rewritten subjects is not in the recording",
    ),
)
"""Rules that a recording does not decide wholly, and what holds for them."""
