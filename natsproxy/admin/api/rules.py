"""Endpoints for rules: list and change them, add temporary faults, reset to the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import trio

from natsproxy.admin.api import times
from natsproxy.admin.api.operation import ApiError, ApiRequest, Operation, Param, Reply
from natsproxy.admin.api.schema import any_object, fields, flag, items, shape, text, whole
from natsproxy.admin.managed import ManagedProxy
from natsproxy.admin.slices import sliced
from natsproxy.net.clock import now_ns
from natsproxy.net.rule_book import RuleEntry
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.reader import RulePlaces
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule

MOST_RULES: Final = 1000
_PATH: Final = "/v1/proxies/{proxy}/rules"
_TABLE: Final = any_object("The rule as a table of a rules file: name, kind, settings, selector, gate.")
_FOR: Final = text('The time after which it is removed: "30s", "5m".', most=32)

SHAPES: Final = {
    "Rule": fields(
        {
            "rule": _TABLE,
            "enabled": flag("Whether it acts."),
            "origin": text("Where it comes from.", enum=["file", "changed", "added"]),
            "ends": text("When it is removed, for a fault for a time.", null=True),
            "ends_in_ns": whole("The time until then.", null=True),
            "firings": whole("How often it has acted (in shadow: would have), over all rules of that name."),
            "would_fire": whole("How many of these firings were in shadow."),
        }
    ),
    "Rules": fields(
        {
            "revision": text("The revision of the list, as in ETag."),
            "rules": items(shape("Rule")),
            "removed": items(text("The name of a rule of the file that was removed since.")),
        }
    ),
    "RuleChange": fields(
        {"rule": _TABLE},
        {
            "enabled": flag("Whether it acts; without it, as it was, or yes."),
            # As they are in the list, so that a list that was read can be sent back; they change nothing.
            "origin": {},
            "ends": {},
            "ends_in_ns": {},
            "firings": {},
            "would_fire": {},
        },
    ),
}

_IF_MATCH: Final = Param(
    "If-Match", text("The ETag of the list that the change was made of, or *."), header=True
)


class _Alone(RulePlaces):
    """The place of a single rule in errors."""

    def of(self, index: int, key: str | None = None) -> str:
        """Return the first words of an error."""
        return "the rule"


def parse(table: Any, index: int | None = None) -> Rule:
    """Return the rule of a table.  index: its place in a list, from 0.  Raises ConfigError."""
    place = _Alone() if index is None else RulePlaces()
    (rule,) = parse_rules([table], KINDS, place=place, first=index or 0)
    return rule


# -- answers


def _to_json(managed: ManagedProxy, entry: RuleEntry) -> dict[str, Any]:
    left = None if entry.ends is None else max(0, int((entry.ends - trio.current_time()) * 1e9))
    return {
        "rule": _plain(entry.rule.table),
        "enabled": entry.enabled,
        "origin": managed.proxy.rules.origin(entry),
        "ends": None if left is None else times.iso(now_ns() + left),
        "ends_in_ns": left,
        "firings": managed.proxy.fired[entry.rule.name],
        "would_fire": managed.statistics.would_fire(entry.rule.name),
    }


def _plain(value: Any) -> Any:
    """Return a TOML value as a JSON value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


async def _listed(managed: ManagedProxy) -> Reply:
    book = managed.proxy.rules
    entries, revision = list(book.entries.values()), book.revision
    shown = []
    async with aclosing(sliced(entries)) as each:
        async for entry in each:
            shown.append(_to_json(managed, entry))
    value = {"revision": revision, "rules": shown, "removed": book.removed}
    return Reply(value, headers={"ETag": f'"{revision}"'})


def _one(call: ApiRequest, name: str, status: int = 200) -> Reply:
    book = call.proxy.proxy.rules
    return Reply(_to_json(call.proxy, _entry(call, name)), status, {"ETag": f'"{book.revision}"'})


def _entry(call: ApiRequest, name: str) -> RuleEntry:
    try:
        return call.proxy.proxy.rules.entries[name]
    except KeyError:
        raise ApiError(404, f"there is no rule {name[:80]!r}") from None


def _revision(call: ApiRequest, *, needed: bool) -> str | None:
    """Return the revision that a change is based on, None for any."""
    given = call.headers.get("if-match")
    if given is None:
        if needed:
            raise ApiError(428, "say which list was changed: If-Match with the ETag of GET, or *")
        return None
    return None if given.strip() == "*" else given.strip().strip('"')


# -- operations


async def _list(call: ApiRequest) -> Reply:
    return await _listed(call.proxy)


async def _get(call: ApiRequest) -> Reply:
    return _one(call, call.path["rule"])


async def _replace(call: ApiRequest) -> Reply:
    revision = _revision(call, needed=True)
    book = call.proxy.proxy.rules
    book.check(revision)
    rules: list[tuple[Rule, bool]] = []
    names: set[str] = set()
    async with aclosing(sliced(call.body["rules"])) as each:
        async for change in each:
            rule = parse(change["rule"], len(rules))
            if rule.name in names:
                raise ApiError(422, f"rules, rule {len(rules) + 1}: there are two rules named {rule.name!r}")
            names.add(rule.name)
            rules.append((rule, change.get("enabled", True)))
    book.replace(rules, revision)
    await call.proxy.proxy.rules_in_force()
    call.tell("rules replaced", rules=len(rules))
    return await _listed(call.proxy)


async def _add(call: ApiRequest) -> Reply:
    book = call.proxy.proxy.rules
    lasts = None if call.body.get("for") is None else times.seconds(call.body["for"], "for")
    table = dict(call.body["rule"])
    table.setdefault("name", _free_name(table.get("kind"), book.entries))
    rule = parse(table)
    if rule.name in book.entries:
        raise ApiError(409, f"there is a rule {rule.name!r} already")
    _refuse_more(book.entries)
    book.put(rule, enabled=call.body.get("enabled", True), lasts=lasts)
    await call.proxy.proxy.rules_in_force()
    call.tell("rule added", rule=rule.name, lasts=call.body.get("for"))
    return _one(call, rule.name, 201)


def _free_name(kind: Any, taken: Mapping[str, RuleEntry]) -> str:
    first = kind if isinstance(kind, str) else "fault"
    return next(f"{first}-{n}" for n in range(1, len(taken) + 2) if f"{first}-{n}" not in taken)


def _refuse_more(entries: Mapping[str, RuleEntry]) -> None:
    if len(entries) >= MOST_RULES:
        raise ApiError(409, f"there are {MOST_RULES} rules, as many as the API makes")


async def _put(call: ApiRequest) -> Reply:
    book, name = call.proxy.proxy.rules, call.path["rule"]
    known = name in book.entries
    revision = _revision(call, needed=known)
    rule = parse({"name": name, **call.body["rule"]})
    if rule.name != name:
        raise ApiError(422, f"the rule is named {rule.name!r}, and the path names {name!r}")
    if not known:
        _refuse_more(book.entries)
    book.check(revision)
    book.put(rule, enabled=call.body.get("enabled"))
    await call.proxy.proxy.rules_in_force()
    call.tell("rule changed" if known else "rule added", rule=name)
    return _one(call, name, 200 if known else 201)


async def _patch(call: ApiRequest) -> Reply:
    book, name, body = call.proxy.proxy.rules, call.path["rule"], call.body
    entry = _entry(call, name)
    book.check(_revision(call, needed=False))
    lasts = None if body.get("for") is None else times.seconds(body["for"], "for")
    merged = {**entry.rule.table, **body.get("rule", {})}
    rule = parse({key: value for key, value in merged.items() if value is not None})
    if rule.name != name:
        raise ApiError(422, "a rule keeps its name: remove it and add another one")
    book.put(rule, enabled=body.get("enabled"), lasts=lasts)
    await call.proxy.proxy.rules_in_force()
    call.tell("rule changed", rule=name, enabled=body.get("enabled"))
    return _one(call, name)


async def _delete(call: ApiRequest) -> None:
    name = call.path["rule"]
    _entry(call, name)
    book = call.proxy.proxy.rules
    book.check(_revision(call, needed=False))
    book.remove(name)
    await call.proxy.proxy.rules_in_force()
    call.tell("rule removed", rule=name)


async def _reset(call: ApiRequest) -> Reply:
    call.proxy.proxy.rules.reset()
    await call.proxy.proxy.rules_in_force()
    call.tell("rules reset to the file")
    return await _listed(call.proxy)


OPERATIONS: Final = (
    Operation("GET", _PATH, "listRules", "Rules in the order in which they act.", _list, shape("Rules")),
    Operation(
        "PUT",
        _PATH,
        "replaceRules",
        "Replace all rules at once; a list that was read, changed and sent back with its ETag.",
        _replace,
        shape("Rules"),
        params=(_IF_MATCH,),
        body=fields({"rules": items(shape("RuleChange"), MOST_RULES)}, {"revision": {}, "removed": {}}),
        more=(412, 422, 428),
    ),
    Operation(
        "POST",
        _PATH,
        "addRule",
        "Add a rule, or a fault for a time, which ends by itself; without a name it gets one.",
        _add,
        shape("Rule"),
        body=fields(
            {"rule": _TABLE},
            {"for": {**_FOR, "type": ["string", "null"]}, "enabled": flag("Whether it acts.")},
        ),
        status=201,
        more=(409, 422),
    ),
    Operation(
        "POST",
        "/v1/proxies/{proxy}/reset",
        "resetRules",
        "Bring back the rules of the file, and end all faults.",
        _reset,
        shape("Rules"),
        more=(422,),
    ),
    Operation("GET", _PATH + "/{rule}", "getRule", "One rule.", _get, shape("Rule"), more=(404,)),
    Operation(
        "PUT",
        _PATH + "/{rule}",
        "putRule",
        "Add a rule at the end (201), or replace the one of that name, which needs If-Match.",
        _put,
        shape("Rule"),
        params=(_IF_MATCH,),
        body=shape("RuleChange"),
        more=(201, 409, 412, 422, 428),
    ),
    Operation(
        "PATCH",
        _PATH + "/{rule}",
        "changeRule",
        "Enable or disable a rule, change keys of its table (null takes one out), or give it an end.",
        _patch,
        shape("Rule"),
        params=(_IF_MATCH,),
        body=fields({}, {"enabled": flag("Whether it acts."), "rule": _TABLE, "for": _FOR}),
        more=(404, 412, 422),
    ),
    Operation(
        "DELETE",
        _PATH + "/{rule}",
        "removeRule",
        "Remove a rule; one of the file comes back with a reset.",
        _delete,
        None,
        params=(_IF_MATCH,),
        status=204,
        more=(404, 412),
    ),
)
