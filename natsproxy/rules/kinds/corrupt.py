"""corrupt: payloads arrive damaged, with their length unchanged.

No server does this: it stands for a faulty disk, memory or middlebox, and shows whether a consumer checks its
messages.  Only the body is changed, never the header block or the control line, so that the stream still
parses.  Random numbers choose the bytes and the change.  A frame with an empty body passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting, StaticDecision
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.verdicts import Corrupt, Replace, Verdict
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import Op

MOST_BYTES: Final = 1000
"""Each costs a random number, while other connections wait."""


class Corrupting(Action):
    """Changes some bytes of the body."""

    label = "corrupt"
    need = Need.PAYLOAD
    draws_random = True

    def __init__(self, count: int) -> None:
        self.count = count

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Change some bytes to other values."""
        start, length = frame.line_end + frame.header_size, frame.size - frame.header_size
        if not length:
            return None
        raw = bytearray(frame.raw)
        places: set[int] = set()
        for k in range(self.count):
            places.add(start - frame.start + int(hit.draw(2 * k) * length))
        for k, place in enumerate(sorted(places)):
            # Never 0, so that each chosen byte changes.
            raw[place] ^= 1 + int(hit.draw(2 * k + 1) * 255)
        return Replace(bytes(raw))

    def static_decision(self, op: Op, subject: bytes, sid: bytes, view: View) -> StaticDecision | None:
        """Change them all; the native plane does that by itself (`damage` of `_decisions.pyx`)."""
        return StaticDecision(Corrupt(self.count))


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Corrupting(settings["bytes"])


KIND = Kind(
    "corrupt",
    "payloads arrive damaged, at the same length",
    make,
    """
[[rules]]
name = "bit rot"
kind = "corrupt"
subject = "telemetry.>"
probability = 0.01
bytes = 2
""",
    (Setting("bytes", values.count_to(MOST_BYTES), 1, "how many bytes are changed at most"),),
    takes=MESSAGES,
)
