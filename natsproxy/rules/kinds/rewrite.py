"""rewrite: the server sees other subjects than the client; the theory is in `rules/rewriting/subjects.py`."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from typing import Any

from natsproxy.errors import ConfigError
from natsproxy.protocol.mapping import Destination, Mapping
from natsproxy.rules.file import values
from natsproxy.rules.model.rule import Action, Kind, Setting
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.rewriting.subjects import Rewriting


def make(settings: MappingType[str, Any], selector: Selector) -> Action:
    """Return the action.  Raises ValueError for a two-way rule that has no inverse."""
    mapping = _mapping(settings)
    two_way = settings["two_way"]
    if two_way:
        if mapping.only is None:
            raise ValueError(
                "to has weights, which no SUB can follow; say two_way = false to map publishes only"
            )
        if mapping.only.no_inverse is not None:
            raise ValueError(
                f"to cannot be undone ({mapping.only.no_inverse}); say two_way = false to map publishes only"
            )
    elif settings["jetstream"]:
        raise ValueError("jetstream = true needs two_way = true")
    return Rewriting(
        mapping,
        two_way=two_way,
        partial_pass=settings["partial"] == "pass",
        jetstream=settings["jetstream"],
        replies=settings["replies"],
        keep=settings["keep"],
    )


def _mapping(settings: MappingType[str, Any]) -> Mapping:
    prefix, source, to = settings["prefix"], settings["from"], settings["to"]
    if (prefix is None) == (source is None):
        raise ValueError("it needs 'from' and 'to', or 'prefix'")
    if prefix is not None:
        if to is not None:
            raise ValueError("prefix cannot be combined with 'to'")
        return _checked("prefix", b">", prefix + b".>")
    if to is None:
        raise ValueError("it needs 'to', where subjects go")
    return _checked("to", source, to)


def _checked(key: str, source: bytes, to: bytes | list[Destination]) -> Mapping:
    try:
        return Mapping(source, to)
    except ConfigError as error:
        raise ValueError(f"{key} is wrong: {error}") from None


def destination(value: Any) -> bytes | list[Destination]:
    """Read a destination: a text, or a list of `{ to, weight }`."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a subject or a list of {{ to, weight }}, not {value!r}")
    found = []
    for item in value:
        if not isinstance(item, MappingType) or set(item) != {"to", "weight"}:
            raise ValueError(f"must list tables of 'to' and 'weight', not {item!r}")
        to, weight = values.text(item["to"]).encode("utf-8", "surrogateescape"), item["weight"]
        if isinstance(weight, str) and weight.endswith("%") and weight[:-1].isdigit():
            weight = int(weight[:-1])
        found.append(Destination(to, values.natural(weight)))
    return found


def prefix(value: Any) -> bytes:
    """Read a prefix: tokens without wildcards, a final dot or `.>` allowed."""
    raw = values.text(value).encode("utf-8", "surrogateescape")
    raw = raw.removesuffix(b">").removesuffix(b".")
    if any(token in (b"*", b">") for token in raw.split(b".")):
        raise ValueError(f"must be a subject without wildcards, not {value!r}")
    return values.pattern(raw.decode("utf-8", "surrogateescape"))


KIND = Kind(
    "rewrite",
    "the server sees other subjects than the client",
    make,
    """
[[rules]]
name = "tenant a"
kind = "rewrite"
client = { name = "a-*" }
prefix = "tenant-a"
jetstream = true

[[rules]]
name = "new order subjects"
kind = "rewrite"
from = "orders.*.*"
to = "shop.{{wildcard(2)}}.orders.{{wildcard(1)}}"

[[rules]]
name = "canary"
kind = "rewrite"
from = "pay.*"
to = [{ to = "pay.new.$1", weight = 10 }]
two_way = false
""",
    (
        Setting("from", values.pattern, None, "the client's subjects"),
        Setting(
            "to",
            destination,
            None,
            "the server's, in nats-server's mapping grammar; or a list of { to, weight }",
        ),
        Setting("prefix", prefix, None, 'the short form for tenants: ">" to "prefix.>"'),
        Setting(
            "two_way", values.boolean, True, "false: map publishes only, as nats-server's own mappings do"
        ),
        Setting(
            "partial",
            values.one_of("refuse", "pass"),
            "refuse",
            "the treatment of a SUB that is covered in part",
        ),
        Setting("jetstream", values.boolean, False, "translate subjects inside the JetStream API as well"),
        Setting(
            "replies", values.boolean, True, "false: reply subjects are never covered (looks at fewer frames)"
        ),
        Setting(
            "keep",
            values.several(values.pattern),
            (),
            "subjects that are left alone (inboxes of a custom prefix)",
        ),
    ),
    ops=0,
    selects=frozenset({"client"}),
    gated=False,
)
