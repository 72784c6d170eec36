"""Toxics of NATS: a type `nats_<kind>` is a rule of that kind, and its attributes are the keys of the rule.

The stream of the toxic is the direction of the rule, where the kind has one; a request that names none gets
the first that the rule can have, downstream before upstream.  A whole number in the place of a duration
counts milliseconds, as in Toxiproxy's own attributes.  The toxicity is the share of the matches on which the
rule acts: its `probability`, or a factor of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.errors import ConfigError
from natsproxy.rules.file.keys import keys_of
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.reader import RulePlaces
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Convert, Kind, LinkAction, Rule
from natsproxy.rules.model.selector import SENDABLE

PREFIX: Final = "nats_"
PACKET_LOSS: Final = "packet_loss"
"""Toxiproxy's toxic for packet loss.  Here it loses whole messages, to leave valid NATS."""
DIRECTIONS: Final = {"downstream": "s2c", "upstream": "c2s"}
_OURS: Final = ("name", "kind", "direction")  # given by the toxic itself


class _ToxicPlace(RulePlaces):
    """The place of a toxic in errors: the request."""

    def of(self, index: int, key: str | None = None) -> str:
        """Return the first word of an error."""
        return "toxic"


def kind_of(type_name: str) -> Kind | None:
    """Return the kind of rule for a type of toxic, None if there is none."""
    if type_name == PACKET_LOSS:
        return KINDS["drop"]
    return KINDS.get(type_name.removeprefix(PREFIX)) if type_name.startswith(PREFIX) else None


def rule_of(name: str, type_name: str, stream: str, toxicity: float, attributes: Mapping[str, Any]) -> Rule:
    """Return a toxic as a rule.  Raises ConfigError with the reason why it is not valid."""
    kind = kind_of(type_name)
    assert kind is not None
    if type_name == PACKET_LOSS:
        attributes = _loss(attributes)
    for key in _OURS:
        if key in attributes:
            raise ConfigError(f"{key} is not an attribute: the toxic has its own name, type and stream")
    readers = {setting.name: setting.convert for setting in keys_of(kind)}
    table = {key: _with_units(readers.get(key), value) for key, value in attributes.items()}
    table |= {"name": name, "kind": kind.name}
    # A kind whose frames go one way takes either stream: requests go upstream, their answers downstream.
    ways = sum(bool(kind.takes & sent) for sent in SENDABLE)
    directed = ways > 1 and (kind.selects is None or "direction" in kind.selects)
    if directed and not _ends_connections(table):
        table["direction"] = DIRECTIONS[stream]
    if toxicity < 1:
        if not kind.gated:
            raise ConfigError(f"{type_name} has no toxicity below 1: it acts always")
        share = table.get("probability", 1)
        if isinstance(share, int | float):  # otherwise the rule reports the error
            table["probability"] = max(0.0, toxicity) * share
    (rule,) = parse_rules([table], KINDS, place=_ToxicPlace())
    return rule


def _ends_connections(table: dict[str, Any]) -> bool:
    """Tell whether a rule acts on whole connections at once, and so in no direction."""
    (rule,) = parse_rules([table], KINDS, place=_ToxicPlace())
    return isinstance(rule.action, LinkAction) and not rule.action.lasting and not rule.selector.framed


def stream_of(type_name: str, toxicity: float, attributes: Mapping[str, Any]) -> str:
    """Return the stream of a toxic whose request names none; `rule_of` gives the reason if none is valid."""
    for stream in DIRECTIONS:
        try:
            rule_of(type_name, type_name, stream, toxicity, attributes)
        except ConfigError:
            continue
        return stream
    return "downstream"


def _loss(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    given = dict(attributes)
    if given.pop("correlation", 0):
        raise ConfigError("correlation is not supported: messages are lost independently of each other")
    rate = given.pop("loss_rate", 0.1)
    return {**given, "probability": rate}


def _with_units(read: Convert | None, value: Any) -> Any:
    """Return a value as in a rule: with a unit, if the setting is a duration."""
    if read is None or _takes(read, value):
        return value
    in_ms = _in_ms(value)
    return in_ms if _takes(read, in_ms) else value


def _takes(read: Convert, value: Any) -> bool:
    try:
        read(value)
    except (ValueError, ConfigError):
        return False
    return True


def _in_ms(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}ms"
    if isinstance(value, list):
        return [_in_ms(item) for item in value]
    return {key: _in_ms(item) for key, item in value.items()} if isinstance(value, dict) else value
