"""A configuration compared with what was used: what it allows and nobody used, denies and somebody used.

A file with one holder (a `.creds` file) stands for all clients of the recording; one with several for the
clients with their labels.  A use is judged as nats-server judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from natsproxy.permissions.formats import UNNAMED, evidence_text
from natsproxy.permissions.holders import Holder
from natsproxy.permissions.needs import ClientNeeds
from natsproxy.permissions.templates import Evidence, MappedPermission
from natsproxy.permissions.uses import By, Use, Verb, clients, opened, uses
from natsproxy.printable import printable
from natsproxy.protocol.errors import quote
from natsproxy.protocol.permissions import PermissionEntry, Permissions
from natsproxy.protocol.subjects import TAIL, compile_pattern, is_subset
from natsproxy.protocol.template import template


class Wide(NamedTuple):
    """An entry that allows more than was used.  lines: the narrower ones that would do."""

    place: MappedPermission
    lines: list[MappedPermission]


@dataclass(slots=True)
class PermissionDifference:
    """The difference between a holder's permissions and what its clients used.

    seen: its clients are in the recording.  unused: entries that nobody needed.  wide: entries of which only
    a part was.  unused_responses: responses are allowed and nobody gave one.  denied: the templates of uses
    that it denies, with an example.  unknown: the configuration has no such user.
    """

    label: str
    seen: bool = False
    unused: list[MappedPermission] = field(default_factory=list)
    wide: list[Wide] = field(default_factory=list)
    unused_responses: bool = False
    denied: dict[MappedPermission, tuple[bytes, Evidence]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    unknown: bool = False

    @property
    def differs(self) -> bool:
        """True if anything is allowed and was not used, or was used and is denied."""
        return bool(self.unused or self.wide or self.unused_responses or self.denied)

    def texts(self) -> Iterator[str]:
        """Yield lines for people."""
        if self.unknown:
            yield printable(f"{self.label}: not in the configuration")
            return
        remark = "" if self.differs or not self.seen else ": allows what was used, and no more"
        yield printable(f"{self.label}{remark if self.seen else ': not in the recording'}")
        for place, (example, evidence) in sorted(self.denied.items()):
            yield printable(f"  denies {_text(place)}: {evidence_text(evidence)}, such as {quote(example)}")
        for place in self.unused:
            yield printable(f"  unused {_text(place)}")
        for wide in self.wide:
            used = ", ".join(quote(str(line).encode("utf-8", "surrogateescape")) for line in wide.lines)
            yield printable(f"  wide   {_text(wide.place)}: only {used} was used")
        if self.unused_responses:
            yield "  unused allow_responses"
        if self.limits:
            yield f"  limits {', '.join(f'{name} {most}' for name, most in self.limits.items())}"

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "of": self.label,
            "seen": self.seen,
            "unknown": self.unknown,
            "denied": [
                {
                    "verb": str(place.verb),
                    "template": str(place),
                    "example": example.decode(errors="replace"),
                    "frames": evidence.frames,
                    "first": evidence.first,
                    "last": evidence.last,
                }
                for place, (example, evidence) in sorted(self.denied.items())
            ],
            "unused": [{"verb": str(place.verb), "entry": str(place)} for place in self.unused],
            "wide": [
                {
                    "verb": str(one.place.verb),
                    "entry": str(one.place),
                    "used": [str(line) for line in one.lines],
                }
                for one in self.wide
            ],
            "unused_responses": self.unused_responses,
            "limits": self.limits,
        }


def _text(place: MappedPermission) -> str:
    return f"{place.verb} {quote(str(place).encode('utf-8', 'surrogateescape'))}"


def compare_permissions(
    captures: Iterable[Path], needs: Iterable[ClientNeeds], holders: list[Holder], by: By
) -> list[PermissionDifference]:
    """Return the difference of each holder, then those of clients that no holder stands for.

    Raises CaptureError.
    """
    by_label = {holder.label(by): holder for holder in holders}
    alone = holders[0] if len(holders) == 1 else None
    needed: dict[str, list[ClientNeeds]] = {label: [] for label in by_label}
    nobodies: list[PermissionDifference] = []
    for need in needs:
        label = alone.label(by) if alone is not None else need.label
        if label in needed:
            needed[label].append(need)
        elif need.lines or need.responses is not None:
            nobodies.append(PermissionDifference(need.label or UNNAMED, seen=True, unknown=True))
    found = {label: _allowed(holder, needed[label], by) for label, holder in by_label.items()}
    reader = opened(captures)
    known = clients(reader)
    for use in uses(reader, known):
        label = alone.label(by) if alone is not None else use.client.label(by)
        if label in found and not use.denied and not _admits(by_label[label].permissions, use):
            place = MappedPermission(use.verb, template(use.subject), use.queue)
            found[label].denied.setdefault(place, (use.subject, Evidence()))[1].saw(use.t)
    return [*found.values(), *nobodies]


def _admits(permissions: Permissions, use: Use) -> bool:
    if use.verb == Verb.SUBSCRIBE:
        return permissions.can_subscribe(use.subject, use.queue)
    if permissions.can_publish(use.subject):
        return True
    rule = permissions.responses
    if use.response is None or rule is None:
        return False
    often = 0 <= rule.max < use.response.nth
    late = 0 <= rule.expires < use.response.elapsed
    return not often and not late


def _allowed(holder: Holder, needs: list[ClientNeeds], by: By) -> PermissionDifference:
    """Compare the entries that allow with the lines that are needed."""
    made = PermissionDifference(holder.label(by) or UNNAMED, bool(needs), limits=dict(holder.limits))
    lines = {line for need in needs for line in need.lines}
    permissions = holder.permissions
    for verb, entries, denied in (
        (Verb.PUBLISH, permissions.publish_allow, permissions.publish_patterns[1]),
        (Verb.SUBSCRIBE, permissions.subscribe_allow, permissions.delivery_patterns),
    ):
        own = sorted(line for line in lines if line.verb == verb)
        if entries is None:  # everything that is not denied
            entries = () if TAIL in denied else (PermissionEntry(TAIL),)
        for entry in entries:
            place = MappedPermission(verb, *entry)
            served = [line for line in own if _serves(place, line)]
            if not served:
                made.unused.append(place)
            elif not any(is_subset(place.subject, line.subject) for line in served):
                made.wide.append(Wide(place, served))
    answers = any(need.responses is not None for need in needs)
    made.unused_responses = holder.permissions.responses is not None and not answers
    return made


def _serves(place: MappedPermission, line: MappedPermission) -> bool:
    """Tell whether an entry admits a part of a line."""
    if place.queue not in (b"", line.queue):
        return False
    return bool(compile_pattern(place.subject)(line.subject)) or is_subset(place.subject, line.subject)
