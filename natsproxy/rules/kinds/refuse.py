"""refuse: new connections are not served: reset at once, or closed before the server's INFO.

A client cannot tell the first (`how = "reset"`) from a port where nobody listens, the second (`how =
"close"`) from a load balancer without a server behind it.  Open connections are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Kind, LinkAction, Setting
from natsproxy.rules.model.selector import Selector


class Refusing(LinkAction):
    """Turns new connections away."""

    label = "refuse"

    def __init__(self, opening: str) -> None:
        self.opening = opening


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    peer = selector.peer
    if any(peer._replace(address=None, ordinal=None)):
        raise ValueError("client can only name address and ordinal: nothing else is known when one connects")
    return Refusing("refuse" if settings["how"] == "reset" else "close")


KIND = Kind(
    "refuse",
    "new connections are turned away",
    make,
    """
[[rules]]
name = "two failed attempts"
kind = "refuse"
per = "proxy"
first = 2
how = "close"
""",
    (
        Setting(
            "how", values.one_of("reset", "close"), "reset", "with RST, or with an orderly end before INFO"
        ),
    ),
    ops=0,
    selects=frozenset({"client"}),
)
