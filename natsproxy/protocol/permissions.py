"""Permissions in nats-server's syntax, with nats-server's decisions.

    {"publish": {"allow": ["a.>"], "deny": "a.secret"},
     "subscribe": ["b.*", "c.> workers"],
     "allow_responses": {"max": 5, "expires": "1m"}}

1. Allow first (no allow list: everything), then deny; deny wins.
2. A pattern is matched by the server's table, which takes wildcards in the tested subject for ordinary
   tokens: allow `foo.*` admits `SUB foo.>`, deny `foo.*` refuses it (see `subjects`).
3. A SUB may be wider than a deny entry: it is accepted, and the denied messages are filtered at delivery.
   The first wildcard or queue SUB that collides with a deny entry arms that filter (`arms_filter`; for many
   maps at once it is looked up in a `CollisionSet`).  From then on it holds for all subscriptions of the
   connection, also after the end of that SUB.  It looks at the subject in the MSG line: for JetStream
   deliveries that is the stream's subject, not the one that routed the message.
4. An entry `"subject queue"` is about queue subscriptions only.  In an allow list the entries with a queue
   that match the subject decide alone for a queue SUB: another queue is refused, even where a plain entry
   admits it.  In a deny list a plain entry catches every SUB, and an entry with a queue the SUBs of that
   queue.
5. `allow_responses`: a client may publish to the reply subject of a message that it was sent, `max` times
   within `expires`, against allow and deny.  It implies an empty allow list where there is none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from natsproxy.errors import ConfigError
from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.subjects import collide, has_wildcard, is_subset, is_valid_strict
from natsproxy.units import SECOND, bounded_duration, parse_duration

# The server's configuration takes each of these names for the same key.
ALIASES: Final = {
    "pub": "publish",
    "import": "publish",
    "sub": "subscribe",
    "export": "subscribe",
    "publish_allow_responses": "allow_responses",
    "max_msgs": "max",
    "max_messages": "max",
    "max_responses": "max",
    "expiration": "expires",
    "ttl": "expires",
}
DEFAULT_MAX: Final = 1
DEFAULT_EXPIRES: Final = 120 * SECOND
MOST_REPLIES: Final = 1 << 53


class PermissionEntry(NamedTuple):
    """One entry of a list: a pattern, and the queue that it is about (`b""`: all subscriptions)."""

    pattern: bytes
    queue: bytes = b""


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """The right to publish replies.

    max: times, negative for no limit.  expires: nanoseconds, negative for never.
    """

    max: int = DEFAULT_MAX
    expires: int = DEFAULT_EXPIRES


class _List:
    """An allow or deny list: entries for everybody and entries for queues."""

    __slots__ = ("entries", "plain", "queued")

    def __init__(self, entries: tuple[PermissionEntry, ...]) -> None:
        self.entries = entries
        self.plain = PatternSet((entry.pattern, entry) for entry in entries if not entry.queue)
        self.queued = PatternSet((entry.pattern, entry.queue) for entry in entries if entry.queue)

    def admits(self, subject: bytes, queue: bytes) -> bool:
        """Tell whether an allow list admits a SUB; entries with a queue decide alone where one matches."""
        queues = self.queued.find(subject) if queue else ()
        if queues:
            return any(_queue_matches(queue, pattern) for pattern in queues)
        return self.plain.matches(subject)

    def catches(self, subject: bytes, queue: bytes | None) -> bool:
        """Tell whether a deny list catches a SUB or a delivery.  queue: None where it is not known."""
        queues = self.queued.find(subject) if queue != b"" else ()
        return self.plain.matches(subject) or any(
            queue is None or _queue_matches(queue, pattern) for pattern in queues
        )


def _queue_matches(queue: bytes, pattern: bytes) -> bool:
    return queue == pattern or (has_wildcard(pattern) and is_subset(queue, pattern))


class Permissions:
    """The permissions of a user.  Immutable; shared by connections."""

    __slots__ = ("_publish_allow", "_publish_deny", "_subscribe_allow", "_subscribe_deny", "responses")

    def __init__(
        self,
        *,
        publish_allow: tuple[PermissionEntry, ...] | None = None,
        publish_deny: tuple[PermissionEntry, ...] = (),
        subscribe_allow: tuple[PermissionEntry, ...] | None = None,
        subscribe_deny: tuple[PermissionEntry, ...] = (),
        responses: ResponseRule | None = None,
    ) -> None:
        if responses is not None and publish_allow is None:  # rule 5: as on the server
            publish_allow = ()
        self._publish_allow = None if publish_allow is None else _List(publish_allow)
        self._publish_deny = _List(publish_deny)
        self._subscribe_allow = None if subscribe_allow is None else _List(subscribe_allow)
        self._subscribe_deny = _List(subscribe_deny)
        self.responses = responses

    @property
    def publish_allow(self) -> tuple[PermissionEntry, ...] | None:
        """The entries that allow publishes; None: everything."""
        return None if self._publish_allow is None else self._publish_allow.entries

    @property
    def subscribe_allow(self) -> tuple[PermissionEntry, ...] | None:
        """The entries that allow subscriptions; None: everything."""
        return None if self._subscribe_allow is None else self._subscribe_allow.entries

    @property
    def publish_patterns(self) -> tuple[tuple[bytes, ...] | None, tuple[bytes, ...]]:
        """The patterns that allow (None: everything) and deny publishes."""
        allow = self._publish_allow
        allowed = (
            None if allow is None else tuple(entry.pattern for entry in allow.entries if not entry.queue)
        )
        return allowed, tuple(entry.pattern for entry in self._publish_deny.entries)

    @property
    def limits_publishing(self) -> bool:
        """True if some publish is denied."""
        return self._publish_allow is not None or bool(self._publish_deny.entries)

    @property
    def subscribe_patterns(self) -> tuple[tuple[bytes, ...] | None, tuple[bytes, ...]]:
        """The patterns whose SUBs are admitted by the allow list (None: all), and those that may be denied.

        An allow list with queues has no patterns of the first kind: a queue may decide otherwise.
        """
        allow = self._subscribe_allow
        if allow is not None and len(allow.queued):
            allowed: tuple[bytes, ...] | None = ()
        else:
            allowed = None if allow is None else tuple(entry.pattern for entry in allow.entries)
        return allowed, self.delivery_patterns

    @property
    def delivery_patterns(self) -> tuple[bytes, ...]:
        """The patterns that an armed delivery filter looks for."""
        return tuple(entry.pattern for entry in self._subscribe_deny.entries)

    def can_publish(self, subject: bytes) -> bool:
        """Tell whether allow and deny admit a PUB; an open reply may admit it otherwise."""
        if self._publish_allow is not None and not self._publish_allow.plain.matches(subject):
            return False
        return not self._publish_deny.plain.matches(subject)

    def can_subscribe(self, subject: bytes, queue: bytes = b"") -> bool:
        """Tell whether the server accepts a SUB."""
        if self._subscribe_allow is not None and not self._subscribe_allow.admits(subject, queue):
            return False
        return not self._subscribe_deny.catches(subject, queue)

    def arms_filter(self, subject: bytes, queue: bytes = b"") -> bool:
        """Tell whether an accepted SUB arms the delivery filter."""
        wider = may_arm(subject, queue)
        return wider and any(collide(pattern, subject) for pattern in self.delivery_patterns)

    def delivery_denied(self, subject: bytes, queue: bytes | None = b"") -> bool:
        """Tell whether an armed filter keeps a message from a subscription.

        subject: the one in the MSG line, not the one subscribed to.  queue: `b""` for a plain subscription,
        None where it is not known: then an entry of any queue denies.
        """
        return self._subscribe_deny.catches(subject, queue)


def may_arm(subject: bytes, queue: bytes) -> bool:
    """Tell whether a SUB may arm a delivery filter: a literal plain one never does."""
    return bool(queue) or has_wildcard(subject)


class ResponsePermissions:
    """The permissions of one connection: `Permissions`, and the replies that it may still publish.

    limit: the most open replies; beyond it the oldest is forgotten.  (The server's table grows without bound;
    ours must not, since a peer chooses its size.)  Times are nanoseconds of one clock.
    """

    def __init__(self, permissions: Permissions, *, limit: int = 65_536) -> None:
        self._permissions = permissions
        self._limit = limit
        self._open: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def can_publish(self, subject: bytes, now: int) -> bool:
        """Decide on a PUB, and count it when only an open reply admits it."""
        return self._permissions.can_publish(subject) or self.use(subject, now)

    def delivered(self, reply: bytes, now: int) -> None:
        """Note that a message with this reply subject went to the client.

        As on the server, the test whether the reply is publishable already counts as one use of an open one.
        """
        # Only a reply that could not be published anyway takes room.
        if self._permissions.responses is None or not reply or self.can_publish(reply, now):
            return
        self._prune(now)
        self._open[reply] = (now, 0)

    def use(self, subject: bytes, now: int) -> bool:
        """Tell whether an open reply admits a PUB, and count it."""
        rule, entry = self._permissions.responses, self._open.get(subject)
        if rule is None or entry is None:
            return False
        since, used = entry[0], entry[1] + 1
        late = 0 <= rule.expires < now - since  # negative: it never expires
        if late or used == rule.max:
            del self._open[subject]
        else:
            self._open[subject] = (since, used)
        return not late

    def _prune(self, now: int) -> None:
        rule = self._permissions.responses
        while self._open and rule is not None:  # the oldest come first, so expired ones are at the front
            oldest, (since, _) = next(iter(self._open.items()))
            if not 0 <= rule.expires < now - since and len(self._open) < self._limit:
                return
            del self._open[oldest]


def parse_permissions(
    table: Mapping[str, Any] | None, *, where: str = "permissions", default: Permissions | None = None
) -> Permissions:
    """Read a permission map of nats-server (a plain dict).

    None gives `default` (nats-server's default_permissions; without one: everything).  where: how errors name
    the map.  Raises ConfigError that names the key.
    """
    if table is None:
        return default or Permissions()
    keys = _keys(table, where, ("publish", "subscribe", "allow_responses"))
    publish_allow, publish_deny = _side(keys.get("publish"), f"{where}.publish", queues=False)
    subscribe_allow, subscribe_deny = _side(keys.get("subscribe"), f"{where}.subscribe", queues=True)
    return Permissions(
        publish_allow=publish_allow,
        publish_deny=publish_deny or (),
        subscribe_allow=subscribe_allow,
        subscribe_deny=subscribe_deny or (),
        responses=_responses(keys.get("allow_responses"), f"{where}.allow_responses"),
    )


def _keys(table: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return a table under the canonical names of its keys."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, not {table!r}")
    result: dict[str, Any] = {}
    for key, value in table.items():
        name = ALIASES.get(str(key).lower(), str(key).lower())
        if name not in known:
            raise ConfigError(f"{where} has no key {key!r}; it takes {', '.join(known)}")
        if name in result:
            raise ConfigError(f"{where} says {name!r} twice (as {key!r} too)")
        result[name] = value
    return result


def _side(
    value: Any, where: str, *, queues: bool
) -> tuple[tuple[PermissionEntry, ...] | None, tuple[PermissionEntry, ...] | None]:
    """Read one direction: a subject, a list of them (allow), or a table of allow and deny."""
    if value is None:
        return None, None
    if not isinstance(value, Mapping):
        return _entries(value, where, queues), None
    lists = _keys(value, where, ("allow", "deny"))
    return tuple(
        _entries(lists[name], f"{where}.{name}", queues) if name in lists else None
        for name in ("allow", "deny")
    )  # type: ignore[return-value]


def _entries(value: Any, where: str, queues: bool) -> tuple[PermissionEntry, ...] | None:
    """Read a list of subjects; an empty one counts as absent, as on the server."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{where} must be a subject or a list of subjects, not {value!r}")
    return tuple(_entry(item, where, queues) for item in items) or None


def _entry(item: str, where: str, queues: bool) -> PermissionEntry:
    fields = item.encode("utf-8", "surrogateescape").split()
    if not fields or len(fields) > 2 or not is_valid_strict(fields[0]):
        raise ConfigError(f"{where}: {item!r} is not a valid subject")
    if len(fields) == 2 and not queues:
        raise ConfigError(f"{where}: {item!r} names a queue, which only subscribe permissions can")
    return PermissionEntry(*fields)


def _responses(value: Any, where: str) -> ResponseRule | None:
    if value is None or value is False:
        return None
    if value is True:
        return ResponseRule()
    keys = _keys(value, where, ("max", "expires"))
    most = keys.get("max", 0)
    if not isinstance(most, int) or isinstance(most, bool) or abs(most) > MOST_REPLIES:
        raise ConfigError(f"{where}.max must be a whole number of at most {MOST_REPLIES}, not {most!r}")
    expires = duration(keys.get("expires", 0), f"{where}.expires")
    return ResponseRule(most or DEFAULT_MAX, expires or DEFAULT_EXPIRES)


def duration(value: Any, where: str) -> int:
    """Read a duration as nats-server does: a number of seconds, or Go's form (`"1m30s"`).  Nanoseconds.

    Raises ConfigError that names `where`.
    """
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return bounded_duration(value * SECOND, value)
        return parse_duration(value if isinstance(value, str) else repr(value), signed=True)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None
