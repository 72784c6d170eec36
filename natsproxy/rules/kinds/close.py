"""close: the proxy ends connections in an orderly way, as a server that is stopped: FIN, and no -ERR.

With a frame selector the connection ends at that frame (`op = "CONNECT"`: at CONNECT; `op = "PING"`); without
one when the rule comes into force: at once on open connections, or when `between` begins.  `at` says where
in the frame: before it, or in its head or payload, so that its receiver has a part of it, or after it (with
`op = "INFO"` the client gets the greeting and nothing more).  Frames that other rules hold back are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.verdicts import Close, Cut, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import Direction


class Ending(LinkAction):
    """Ends connections.  cut: the place in the frame.  reset: with RST."""

    def __init__(self, label: str, cut: Cut, *, reset: bool) -> None:
        self.label = label
        self.need = Need.PAYLOAD if cut in (Cut.PAYLOAD, Cut.AFTER) else Need.LINE
        self._closing = Close(label, reset=reset, at=cut)

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """End the connection at this frame."""
        return self._closing

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """End the connection now."""
        return [], self._closing

    def describe(self) -> str:
        """Return the kind and the place."""
        return f"{self.label}{_PLACES[self._closing.at]}"


def ending(label: str, settings: Mapping[str, Any], selector: Selector, *, reset: bool = False) -> Action:
    """Return the action of a kind that ends connections."""
    cut = Cut(settings["at"])
    refuse_direction(selector)
    if cut is not Cut.BEFORE and not selector.ops:
        raise ValueError(f"at = {cut.value!r} needs a frame: name an op, a subject or a role")
    if cut is Cut.PAYLOAD and not selector.ops & MESSAGES:
        raise ValueError("at = 'payload' needs frames that have one, and none of these has")
    return Ending(label, cut, reset=reset)


def refuse_direction(selector: Selector) -> None:
    """Raise ValueError for a direction without frames: it would say nothing, and read as if it did."""
    if not selector.framed and len(selector.directions) == 1:
        raise ValueError(
            f"direction = {selector.directions[0].label!r} alone selects no frame: name an op, a subject or "
            f"a role, or leave direction out to act on connections at once"
        )


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return ending("close", settings, selector)


_PLACES: Final = {
    Cut.BEFORE: "",
    Cut.HEAD: " in the middle of its control line",
    Cut.PAYLOAD: " in the middle of its payload",
    Cut.AFTER: " after it",
}
AT: Final = Setting(
    "at",
    values.one_of(*(cut.value for cut in Cut)),
    Cut.BEFORE.value,
    'where in the frame: "before" it; "head": its receiver gets half of the control line; "payload": that '
    'line and half of the payload, of a frame without one half of the line; "after" it',
    'at = "payload"',
)
AT_A_FRAME: Final = (
    "at the frame that op, subject or the like select; without them once per connection, at once"
)
"""When the kinds that act once do so: a part of their texts."""
KIND = Kind(
    "close",
    f"connections end, in an orderly way, {AT_A_FRAME}",
    make,
    """
[[rules]]
name = "greeting and no more"
kind = "close"
op = "INFO"
at = "after"
per = "proxy"
first = 2

[[rules]]
name = "ten seconds each"
kind = "close"
between = ["10s"]
""",
    (AT,),
    ops=0,
)
