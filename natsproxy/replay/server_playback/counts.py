"""The counts of a playback by subject template, for its receipt.

Their number is bounded: subjects beyond it share one count.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from natsproxy.protocol.template import template

TEMPLATES: Final = 1000


@dataclass(slots=True)
class TemplateCount:
    """The client frames of one subject template.

    recorded: those in the capture; of these unused: sent by no client; exempt: not sent and not required
    (polls that came less often, subscriptions to inboxes).  missed: those that were sent and never recorded.
    repeated: polls that got the answer of an earlier one.
    """

    recorded: int = 0
    unused: int = 0
    exempt: int = 0
    missed: int = 0
    repeated: int = 0

    @property
    def served(self) -> int:
        """The recorded frames that clients have sent."""
        return self.recorded - self.unused - self.exempt

    def add(self, other: TemplateCount) -> None:
        """Add another count."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Counts:
    """The counts by template; others: of those beyond `limit`."""

    def __init__(self, limit: int = TEMPLATES) -> None:
        self.by_template: dict[bytes, TemplateCount] = {}
        self.others = TemplateCount()
        self._limit = limit

    def of(self, subject: bytes) -> TemplateCount:
        """Return the count that a subject belongs to, to change it."""
        key = template(subject)
        found = self.by_template.get(key)
        if found is None:
            if len(self.by_template) >= self._limit:
                return self.others
            found = self.by_template[key] = TemplateCount()
        return found

    def copy(self) -> Counts:
        """Return an independent copy."""
        made = Counts(self._limit)
        made.by_template = {key: replace(count) for key, count in self.by_template.items()}
        made.others = replace(self.others)
        return made

    @property
    def total(self) -> TemplateCount:
        """The sum of all."""
        total = TemplateCount()
        for count in (*self.by_template.values(), self.others):
            total.add(count)
        return total
