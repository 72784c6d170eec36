"""Faults by name: `fault(latency("200ms"), subject="orders.>")`.

Every kind of rule (`natsproxy rules list`) has a function here that returns a `Fault`.  Positional arguments
are the kind's own settings, in the order in which `rules list` shows them.  Any setting has a keyword:
the kind's own, the selector (subject, op, direction, header, role, client, ...) and the gate (first, every,
probability, ...).

    latency("200ms")                       frames arrive 200 ms later
    drop(first=2, role="publish-ack")      the first two publish acks are lost
    deny(subject="secret.>")               the server's permissions -ERR
    answer(status_code=503)                no responders
    error("Authorization Violation")       an -ERR of the server
    reset()                                connections end with RST
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from natsproxy.errors import ConfigError
from natsproxy.rules.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule without a name: its kind and its settings, selector and gate."""

    kind: str
    settings: Mapping[str, Any]

    def table(self, name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fault as the table of a rule named `name`; settings in `more` win."""
        return {**self.settings, **more, "name": name, "kind": self.kind}


def _named(kind: str) -> Callable[..., Fault]:
    """Return the function of a kind; its docstring is made from the descriptions of the kind."""
    own = [setting.name for setting in KINDS[kind].settings]

    def make(*values: Any, **settings: Any) -> Fault:
        if len(values) > len(own):
            raise ConfigError(f"{kind} has {len(own)} settings of its own ({', '.join(own) or 'none'})")
        given = dict(zip(own, values, strict=False))
        twice = sorted(given.keys() & settings.keys())
        if twice:
            raise ConfigError(f"{kind}: {twice[0]} is given twice")
        return Fault(kind, {**given, **settings})

    make.__name__ = make.__qualname__ = kind
    make.__doc__ = f"{KINDS[kind].text[0].upper()}{KINDS[kind].text[1:]}.\n\n" + "\n".join(
        f"{setting.name}: {setting.text}." for setting in KINDS[kind].settings
    )
    return make


announce = _named("announce")
answer = _named("answer")
bandwidth = _named("bandwidth")
close = _named("close")
corrupt = _named("corrupt")
deny = _named("deny")
drop = _named("drop")
duplicate = _named("duplicate")
error = _named("error")
half_close = _named("half_close")
headers = _named("headers")
info = _named("info")
latency = _named("latency")
pause = _named("pause")
limit = _named("limit")
permissions = _named("permissions")
refuse = _named("refuse")
reorder = _named("reorder")
reset = _named("reset")
rewrite = _named("rewrite")
slice = _named("slice")
slow_close = _named("slow_close")
stamp = _named("stamp")
stop_reading = _named("stop_reading")
swallow = _named("swallow")
trace = _named("trace")
truncate = _named("truncate")
