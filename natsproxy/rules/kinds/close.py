"""close: the proxy ends connections in an orderly way, as a server that is stopped: FIN, and no -ERR.

With a frame selector the connection ends at that frame (`op = "CONNECT"`: after CONNECT; `op = "PING"`);
without one when the rule comes into force: at once on open connections, or when `between` begins.  `deliver =
true` lets an s2c frame out first: with `op = "INFO"` the client gets the greeting and nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Close, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import S2C, Direction, Op


class Closing(LinkAction):
    """Ends connections."""

    label = "close"

    def __init__(self, deliver: bool) -> None:
        self.deliver = deliver
        self.need = Need.PAYLOAD if deliver else Need.LINE

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """End the connection at this frame."""
        raw = b""
        if self.deliver and hit.direction == S2C:
            # The session has rewritten the arguments of an INFO; its bytes are still the server's.
            raw = encode.info(frame.args) if frame.op == Op.INFO else frame.raw
        return Close("close", raw)

    def start(self, hit: Hit) -> tuple[list[tuple[Direction, bytes]], Close | None]:
        """End the connection now."""
        return [], Close("close")


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    if settings["deliver"] and (not selector.framed or selector.directions != (S2C,)):
        raise ValueError("deliver needs a selector of s2c frames")
    return Closing(settings["deliver"])


AT_A_FRAME: Final = (
    "at the frame that op, subject or the like select; a direction alone selects none: then at once"
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
deliver = true
per = "proxy"
first = 2

[[rules]]
name = "ten seconds each"
kind = "close"
between = ["10s"]
""",
    (Setting("deliver", values.boolean, False, "let the s2c frame out before the end"),),
    ops=0,
)
