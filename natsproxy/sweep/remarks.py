"""Remarks: what is not as in clean runs and still no failure of the program, as at least once allows it.

A trial that passed has them as its reasons, each `WHAT: the messages`.  Whoever must not have them makes them
findings by `--check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from natsproxy.printable import printable
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.findings import simplicity
from natsproxy.sweep.sentences import fault_words
from natsproxy.sweep.trial_facts import trial_facts
from natsproxy.sweep.values import Verdict
from natsproxy.sweep.verdicts import OUT_OF_ORDER, SPARED, TWICE

WHY: Final = {
    TWICE: "It was sent again without a Nats-Msg-Id, or with another one.",
    OUT_OF_ORDER: "Later messages were stored before it was sent again.",
    SPARED: "Core NATS delivers at most once.",
}
"""The reason why each happens."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on trials that passed.

    what: its kind, a key of `WHY`.  text: the messages in the simplest trial.  trials: all that it is about,
    the simplest first.
    """

    what: str
    text: str
    trials: tuple[Judged, ...]

    @property
    def sentence(self) -> str:
        """The remark in a line."""
        others = len(self.trials) - 1
        more = f" (and in {others} other trial{'' if others == 1 else 's'})" if others else ""
        after = fault_words(self.trials[0].trial)
        return printable(f"{self.what}, after {after}: {self.text}{more}. {WHY[self.what]}")

    def facts(self) -> dict[str, Any]:
        """Return the remark as JSON values."""
        return {
            "what": self.what,
            "text": self.text,
            "sentence": self.sentence,
            "trials": len(self.trials),
            "trial": trial_facts(self.trials[0].trial),
        }


def remarks(judged: Iterable[Judged]) -> list[Remark]:
    """Return the remarks on trials, one of each kind."""
    passed = sorted((one for one in judged if one.judgement.verdict is Verdict.PASSED), key=simplicity)
    found: dict[str, tuple[str, list[Judged]]] = {}
    for one in passed:
        for reason in one.judgement.reasons:
            what, _, text = reason.partition(": ")
            if what in WHY:
                found.setdefault(what, (text, []))[1].append(one)
    return [Remark(what, *_frozen(found[what])) for what in WHY if what in found]


def _frozen(found: tuple[str, list[Judged]]) -> tuple[str, tuple[Judged, ...]]:
    return found[0], tuple(found[1])
