"""Expectations of a rules file: `[[expect]]` tables, which `natsproxy rules test` compares with recordings.

An expectation has the keys of a selector, as a rule has them, and a verdict for the selected frames:

    [[expect]]
    subject = "orders.>"
    client = { name = "billing*" }
    verdict = "pass"

The proxy reads them for mistakes, and leaves them alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from natsproxy.events import SHADOWED
from natsproxy.rules.file import values
from natsproxy.rules.model.roles import MSGS, PUBS
from natsproxy.rules.model.rule import REQUIRED, Action, Kind, Rule, Setting
from natsproxy.wire.ops import Op, op_mask

PASS: Final = "pass"  # noqa: S105
"""The verdict on a frame on which no rule acts."""
WOULD_NOT_COME: Final = "would not come"
"""The verdict on a frame that a verdict on an earlier one has made impossible."""
CANNOT_TELL: Final = "cannot tell"
"""The verdict on a frame of which the recording lacks what a rule looks at."""
VERDICTS: Final = (
    PASS,
    "deny",
    *SHADOWED,
    "drop",
    "wait",
    "reply",
    "suspend",
    "hold",
    "stamp",
    "strip",
    "trace",
    "rewrite",
    "duplicate",
    "reorder",
    "corrupt",
    "truncate",
    "headers",
    "answer",
    "error",
    "info",
    "announce",
    "close",
    "reset",
    "refuse",
    "bandwidth",
    "slice",
    "pause",
    "swallow",
    "stop_reading",
    "half_close",
    "slow_close",
    WOULD_NOT_COME,
    CANNOT_TELL,
)
"""The words for what happens to a frame: the actions of firings, and those above."""
KIND: Final = Kind(
    "expect",
    "the verdict that frames of a recording must get",
    lambda settings, selector: Action(),
    "",
    (
        Setting("verdict", values.one_of(*VERDICTS), REQUIRED, "what must happen to the selected frames"),
        Setting("rule", values.line, None, "the rule that must do it"),
        Setting("count", values.natural, None, "how many frames get it; without it: all, and one at least"),
    ),
    ops=PUBS | MSGS | op_mask(Op.SUB),
    gated=False,
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation.

    selection: a rule that selects the frames, and does nothing.  rule: the name of the rule that must act, ""
    for any.  count: None for all selected frames.
    """

    selection: Rule
    verdict: str
    rule: str = ""
    count: int | None = None

    @property
    def where(self) -> str:
        """The file and the line."""
        return self.selection.where

    def describe(self) -> str:
        """Return the expectation in a few words."""
        times = "" if self.count is None else f", {self.count} frame{'s' * (self.count != 1)}"
        by = f" by {self.rule!r}" if self.rule else ""
        return f"{self.selection.selector.describe()}: {self.verdict}{by}{times}"


def expectation(selection: Rule) -> Expectation:
    """Return the expectation that a table says."""
    table = selection.table
    return Expectation(selection, table["verdict"], table.get("rule", ""), table.get("count"))
