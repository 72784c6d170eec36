"""The keys that a rule of any kind may have, beside the settings of its kind: identity, selector, gate.

The parser reads rules by these tables, and `natsproxy rules list` shows them.
"""

from __future__ import annotations

from typing import Any, Final

from natsproxy.protocol.jetstream import API_VERBS
from natsproxy.rules.file import values
from natsproxy.rules.file.reader import unknown_word
from natsproxy.rules.model.rule import REQUIRED, Convert, Kind, Setting
from natsproxy.rules.model.selector import ANYBODY, Peer, role_named

_PEER: Final[dict[str, Convert]] = {"ordinal": values.count, "address": values.network}


def _peer(value: Any) -> Peer:
    table = values.table(lambda item: item)(value)
    for key, item in table.items():
        if key not in Peer._fields:
            raise ValueError(f"has {key!r}: {unknown_word(key, list(Peer._fields))}")
        try:
            convert: Convert = _PEER.get(key, values.line)
            convert(item)
        except ValueError as error:
            raise ValueError(f"has {key!r}, which {error}") from None
    return Peer(**table)


def _api_call(value: Any) -> str:
    verb = values.text(value)
    if verb not in API_VERBS:
        raise ValueError(
            f"must name calls of the JetStream API: {unknown_word(verb, list(API_VERBS), 'call')}"
        )
    return verb


IDENTITY: Final = (
    Setting("name", values.line, REQUIRED, "unique; names the rule in logs and captures, and seeds it"),
    Setting("kind", values.text, REQUIRED, "the effect of the rule"),
)
SELECTOR: Final = (
    Setting(
        "direction",
        values.direction,
        None,
        '"c2s" or "s2c"; without it: both, as far as the ops go',
        'direction = "s2c"',
    ),
    Setting(
        "op", values.several(values.op), None, "operations by their names on the wire", 'op = ["PUB", "HPUB"]'
    ),
    Setting(
        "subject",
        values.several(values.pattern),
        None,
        "subject patterns, as the client writes them",
        'subject = ["orders.>", "quotes.*"]',
    ),
    Setting(
        "api",
        values.several(_api_call),
        (),
        "calls of the JetStream API by their verbs, in every domain; in place of subject",
        'api = ["STREAM.DELETE", "STREAM.PURGE"]',
    ),
    Setting(
        "unless",
        values.several(values.pattern),
        (),
        "subject patterns that are excluded",
        'unless = "orders.test.>"',
    ),
    Setting(
        "side",
        values.one_of("client", "server"),
        "client",
        'the side whose subjects are meant; "server": as rewriting rules make them',
        'side = "server"',
    ),
    Setting(
        "queue", values.several(values.pattern), None, "queue names, wildcards allowed", 'queue = "workers"'
    ),
    Setting(
        "header",
        values.table(values.line),
        {},
        'header names and shell patterns ("*": any value)',
        'header = { Nats-Msg-Id = "*", Region = "eu-*" }',
    ),
    Setting(
        "without",
        values.table(values.line),
        {},
        "headers that it must not have, as in header; one that is there counts if each of its values matches",
        'without = { X-Approved = "*" }',
    ),
    Setting("status", values.several(values.status), (), "status codes of HMSG", "status = [503, 408]"),
    Setting("min_size", values.size, 0, "least payload, headers included", 'min_size = "64KiB"'),
    Setting("max_size", values.size, None, "most payload, headers included", "max_size = 100"),
    Setting(
        "role",
        lambda value: role_named(values.text(value)),
        None,
        "the part it plays in JetStream",
        'role = "publish-ack"',
    ),
    Setting(
        "client",
        _peer,
        ANYBODY,
        "name, user (any that CONNECT names: user, nkey, name or key of a JWT; unless the proxy checks its "
        "clients), account, lang, version, address, tls_subject, server, ordinal",
        'client = { name = "svc-*", address = "10.0.0.0/8" }',
    ),
)
GATE: Final = (
    Setting(
        "probability",
        values.probability,
        None,
        "how likely, 0 to 1, by the seeded random numbers",
        "probability = 0.05",
    ),
    Setting("every", values.count, None, "each n-th match", "every = 3"),
    Setting("first", values.count, None, "the first n matches", "first = 2"),
    Setting(
        "after",
        values.natural,
        0,
        "not the first n matches: match n + 1 is the first on which the rule acts, and what lasts (pause, "
        "slice, ...) begins with that frame",
        "after = 9",
    ),
    Setting(
        "limit",
        values.count,
        None,
        "at most n firings; without it: any number. Each connection counts for itself (limit = 1 fires again "
        'after a reconnect), unless per = "proxy"',
        "limit = 1",
    ),
    Setting(
        "between",
        values.window,
        None,
        'a time window, ["2s", "5s"], from the start of the connection; ["+2s", "+5s"]: from when the rule '
        "comes into force",
        'between = ["+10s", "+12s"]',
    ),
    Setting(
        "hours",
        values.several(values.hours),
        None,
        "times of the day, as the clock of `zone` shows them when a frame or a connection comes",
        'hours = ["12:00-13:00", "22:00-06:00"]',
    ),
    Setting(
        "zone",
        values.zone,
        "UTC",
        "the time zone of `hours`",
        'hours = "22:00-06:00"\nzone = "Europe/Berlin"',
    ),
    Setting(
        "only",
        values.firings,
        None,
        "exact firings: connection key to match numbers; worker-*/2 is the second client whose name is "
        "worker- and a number, UUID or id",
        'only = { "c2s app" = [3, 7] }',
    ),
    Setting(
        "per",
        values.one_of("connection", "proxy"),
        "connection",
        "the scope of counts and times",
        'per = "proxy"',
    ),
)


EVERYWHERE: Final = {setting.name for setting in (*SELECTOR, *GATE)}
"""The keys that have a meaning in rules of most kinds."""


def keys_of(kind: Kind) -> list[Setting]:
    """Return all keys that a rule of a kind may have."""
    selector = [setting for setting in SELECTOR if kind.selects is None or setting.name in kind.selects]
    return [*IDENTITY, *kind.settings, *selector, *(GATE if kind.gated else ())]
