"""truncate: payloads arrive short, as from a sender that cut them; headers stay whole.

The lengths in the control line are adapted, so the stream still parses and only the reader of the payload
sees the fault.  A payload that is short enough passes byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.verdicts import Replace, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need


class Truncating(Action):
    """Keeps the first bytes of the body."""

    label = "truncate"
    need = Need.PAYLOAD
    on_frame = "change"

    def __init__(self, keep: int) -> None:
        self.keep = keep

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Cut the body; one that is short enough passes."""
        body = frame.body
        return Replace(encode.with_payload(frame, body=body[: self.keep])) if len(body) > self.keep else None


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Truncating(settings["keep"])


KIND = Kind(
    "truncate",
    "payloads arrive short",
    make,
    """
[[rules]]
name = "cut off"
kind = "truncate"
subject = "files.>"
keep = "1KiB"
""",
    (Setting("keep", values.size, 0, "how many bytes of the body stay"),),
    takes=MESSAGES,
)
