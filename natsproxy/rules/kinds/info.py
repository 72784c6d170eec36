"""info: the INFO of the server is changed on its way to the client.

Members of the INFO are set or removed; every other byte is kept.  The server itself does not change: a client
keeps to a lower `max_payload`, while the server still takes more, and a higher one makes the server close.
`connect_urls` lead clients to other servers, past the proxy: that may be meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.protocol.info import rewrite_info
from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Replace, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import S2C, Op, op_mask


class InfoChange(Action):
    """Changes members of INFO."""

    label = "info"

    def __init__(self, put: Mapping[str, Any], remove: tuple[str, ...]) -> None:
        self.put = put
        self.remove = remove

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Change the INFO; one that says so already passes."""
        changed = rewrite_info(frame.args, remove=self.remove, set=self.put)
        return None if changed == frame.args else Replace(encode.info(changed))


def members(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an INFO that the settings ask for."""
    put = dict(settings["set"])
    if settings["lame_duck"] is not None:
        put["ldm"] = settings["lame_duck"]
    for key in ("max_payload", "connect_urls"):
        if settings[key] is not None:
            put[key] = list(settings[key]) if key == "connect_urls" else settings[key]
    return put


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    put = members(settings)
    if not put and not settings["remove"]:
        raise ValueError("it needs something to set or remove")
    return InfoChange(put, settings["remove"])


MEMBERS = (
    Setting("set", values.table(lambda value: value), {}, "members of the INFO and their values"),
    Setting("lame_duck", values.boolean, None, "whether the server says that it is about to stop"),
    Setting("max_payload", values.above_zero(values.size), None, "the largest payload that it says it takes"),
    Setting("connect_urls", values.several(values.line), None, "other servers that it names"),
)
KIND = Kind(
    "info",
    "the server's INFO is changed",
    make,
    """
[[rules]]
name = "small payloads"
kind = "info"
max_payload = "64KiB"
remove = ["jetstream"]
""",
    (*MEMBERS, Setting("remove", values.several(values.text), (), "members that are taken out")),
    ops=op_mask(Op.INFO),
    direction=S2C,
    selects=frozenset({"client"}),
)
