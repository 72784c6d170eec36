"""headers: headers are set or removed; every other byte of the header block is kept.

A header is set only where the client and the server have agreed on headers (`headers` in INFO and CONNECT):
nats-server closes a connection for an HPUB without that.  Names are compared byte for byte, as on the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.protocol.headers import header_line
from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting
from natsproxy.rules.model.selector import MESSAGES, Selector
from natsproxy.rules.model.verdicts import ChangeHeaders, Verdict
from natsproxy.wire.frames import Frame, Need


class HeaderChange(Action):
    """Sets and removes headers."""

    label = "headers"
    need = Need.PAYLOAD
    on_frame = "change"

    def __init__(self, put: Mapping[bytes, bytes], remove: tuple[bytes, ...]) -> None:
        self.edits = frozenset((*put, *remove))
        self._agreed = ChangeHeaders(remove, put)
        self._without = ChangeHeaders(remove, {}) if remove else None

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Change the headers."""
        return self._agreed if hit.view.connect.headers else self._without


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action.  Raises ValueError for a name or a value that no header can have."""
    if not settings["set"] and not settings["remove"]:
        raise ValueError("it needs 'set' or 'remove'")
    put = {name.encode(): value.encode() for name, value in settings["set"].items()}
    try:
        put = {name: header_line(name, value) for name, value in put.items()}
    except ValueError as error:
        raise ValueError(f"set is wrong: {error}") from None
    for name in settings["remove"]:
        if ":" in name:
            raise ValueError(f"remove is wrong: {name!r} is not a header name: it holds a colon")
    return HeaderChange(put, tuple(name.encode() for name in settings["remove"]))


KIND = Kind(
    "headers",
    "headers are set or removed",
    make,
    """
[[rules]]
name = "mark traffic"
kind = "headers"
direction = "c2s"
subject = "orders.>"
set = { "X-Via" = "natsproxy" }
remove = ["X-Debug"]
""",
    (
        Setting("set", values.table(values.text), {}, "header names and their values"),
        Setting("remove", values.several(values.line), (), "header names (case counts)"),
    ),
    takes=MESSAGES,
)
