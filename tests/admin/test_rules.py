"""Rules by HTTP: edits of several clients, faults for a time, what reloads keep."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from natsproxy.errors import ConfigError
from natsproxy.net.rule_book import RuleBook, StaleRules
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Rule
from natsproxy.testing import NatsServer
from tests.admin.kit import Api, client_of, running

DROP = {"name": "lose", "kind": "drop", "subject": "orders.>"}


def rule(name: str, delay: str = "1ms", **more: object) -> Rule:
    table = {"name": name, "kind": "latency", "delay": delay, **more}
    return parse_rules([table], KINDS)[0]


async def delivered(api: Api) -> bool:
    """Tell whether a message on orders.new reaches its subscriber."""
    async with client_of(api) as client:
        await client.send(b"SUB orders.> 1\r\nPUB orders.new 2\r\nhi\r\n")
        return b"MSG orders.new 1 2" in await client.ping()


async def test_a_rule_comes_acts_and_goes(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        assert await delivered(api)
        made = await api.ask("PUT", "rules/lose", {"rule": DROP})
        assert made.status == 201
        assert made.json["origin"] == "added"
        assert not await delivered(api)
        (row,) = (await api.ask("GET", "rules")).json["rules"]
        assert row["firings"] == 1
        assert row["rule"] == DROP
        assert (await api.ask("PATCH", "rules/lose", {"enabled": False})).json["enabled"] is False
        assert await delivered(api)
        assert (await api.ask("PATCH", "rules/lose", {"enabled": True})).status == 200
        assert not await delivered(api)
        assert (await api.ask("DELETE", "rules/lose")).status == 204
        assert await delivered(api)
        assert (await api.ask("DELETE", "rules/lose")).status == 404


async def test_a_fault_for_a_time_ends_by_itself(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        ended = trio.Event()
        api.proxy.subscribe(lambda event: ended.set() if "fault expired" in str(event) else None)
        fault = {"kind": "drop", "subject": "orders.>"}
        made = (await api.ask("POST", "rules", {"rule": fault, "for": "400ms"})).json
        assert made["rule"]["name"] == "drop-1"
        assert 0 < made["ends_in_ns"] <= 400_000_000
        assert not await delivered(api)
        await ended.wait()
        assert await delivered(api)
        assert (await api.ask("GET", "rules")).json["rules"] == []


async def test_two_editors_lose_nothing_silently(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        first, second = await api.ask("GET", "rules"), await api.ask("GET", "rules")
        etag = {"If-Match": first.headers["etag"]}
        assert first.headers["etag"] == second.headers["etag"]
        one = await api.ask("PUT", "rules", {"rules": [{"rule": DROP}]}, etag)
        assert one.status == 200
        late = await api.ask("PUT", "rules", {"rules": []}, etag)
        assert (late.status, late.json) == (
            412,
            {"error": "somebody has changed the rules meanwhile: read them again"},
        )
        assert (await api.ask("PUT", "rules", {"rules": []})).status == 428
        assert (await api.ask("PUT", "rules/lose", {"rule": {**DROP, "first": 1}})).status == 428
        # What was read can be sent back as it is.
        listed = await api.ask("GET", "rules")
        again = await api.ask("PUT", "rules", listed.json, {"If-Match": listed.headers["etag"]})
        assert again.json["rules"] == listed.json["rules"]
        assert (await api.ask("PUT", "rules", {"rules": []}, {"If-Match": "*"})).json["rules"] == []


async def test_edits_at_once_are_whole(nats_server: NatsServer) -> None:
    """Of editors that each add one rule to the list, with retries, every one gets its rule in."""
    async with running(nats_server) as api:

        async def add(name: str) -> None:
            while True:
                listed = await api.ask("GET", "rules")
                rules = [*listed.json["rules"], {"rule": {**DROP, "name": name}}]
                done = await api.ask("PUT", "rules", {"rules": rules}, {"If-Match": listed.headers["etag"]})
                if done.status == 200:
                    return
                assert done.status == 412

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(add, f"r{number}")
        names = {row["rule"]["name"] for row in (await api.ask("GET", "rules")).json["rules"]}
        assert names == {f"r{number}" for number in range(8)}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("PUT", "rules/x", {"rule": {"kind": "nosuch"}}, 422, "there is no kind 'nosuch'"),
        ("PUT", "rules/x", {"rule": {"kind": "latency"}}, 422, "it needs 'delay'"),
        ("PUT", "rules/x", {"rule": DROP}, 422, "the path names 'x'"),
        ("PUT", "rules/x", {}, 400, "the body needs 'rule'"),
        ("PUT", "rules/x", {"rule": {}, "enabeld": True}, 400, "did you mean 'enabled'?"),
        ("POST", "rules", {"rule": DROP, "for": "soon"}, 400, 'for must be a duration such as "250ms"'),
        ("POST", "rules", {"rule": DROP, "for": "999999999d"}, 400, "for must be at most 3650d, not"),
        ("PATCH", "rules/none", {"enabled": True}, 404, "there is no rule 'none'"),
    ],
)
async def test_mistakes_are_said(
    nats_server: NatsServer, method: str, path: str, body: object, status: int, text: str
) -> None:
    async with running(nats_server) as api:
        answer = await api.ask(method, path, body)
        assert (answer.status, set(answer.json)) == (status, {"error"})
        assert text in answer.json["error"]


async def test_a_bad_list_changes_nothing(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        await api.ask("PUT", "rules/lose", {"rule": DROP})
        bad = {"rules": [{"rule": {**DROP, "name": "a"}}, {"rule": {"name": "b", "kind": "latency"}}]}
        answer = await api.ask("PUT", "rules", bad, {"If-Match": "*"})
        assert answer.status == 422
        assert answer.json["error"].startswith("rules, rule 2: rule 'b': it needs 'delay'")
        assert [row["rule"]["name"] for row in (await api.ask("GET", "rules")).json["rules"]] == ["lose"]


# -- the book


def book(*base: Rule) -> tuple[RuleBook, list[str]]:
    """Return a book and the names of the rules in force, which it keeps up to date."""
    in_force: list[str] = [one.name for one in base]

    def install(chain: RuleChain) -> None:
        if any(one.name == "bad" for one in chain.rules):
            raise ConfigError("bad")
        in_force[:] = [one.name for one in chain.rules]

    return RuleBook(RuleChain, install, lambda _: None, base), in_force


async def test_a_reload_keeps_what_the_file_says_nothing_new_about() -> None:
    made, in_force = book(rule("a"), rule("b"), rule("c"), rule("d"))
    made.put(rule("x"))
    made.put(rule("a", "2ms"))
    made.enable("b", on=False)
    made.remove("c")
    assert in_force == ["a", "d", "x"]
    assert made.load([rule("a"), rule("b"), rule("c"), rule("d", "9ms"), rule("e")]) == ((), ())
    assert in_force == ["a", "d", "e", "x"]
    assert made.removed == ["c"]
    assert made.entries["a"].rule.table["delay"] == "2ms"
    assert made.origin(made.entries["a"]) == "changed"
    assert made.entries["d"].rule.table["delay"] == "9ms"


async def test_a_reload_says_what_it_undoes() -> None:
    made, in_force = book(rule("a"), rule("b"), rule("c"), rule("d"))
    made.put(rule("x"))
    made.put(rule("a", "2ms"))
    made.enable("b", on=False)
    made.remove("c")
    loaded = made.load([rule("b", "3ms"), rule("c", "3ms"), rule("x", "3ms")])
    assert loaded.gone == ("a", "d")
    assert set(loaded.undone) == {"a", "b", "c", "x"}
    assert in_force == ["b", "c", "x"]
    made.put(rule("y"))
    made.reset()
    assert in_force == ["b", "c", "x"]


async def test_a_refused_change_is_none() -> None:
    made, in_force = book(rule("a"))
    revision = made.revision
    for change in (lambda: made.put(rule("bad")), lambda: made.load([rule("bad")])):
        with pytest.raises(ConfigError):
            change()
    assert (made.revision, in_force, list(made.base)) == (revision, ["a"], ["a"])
    with pytest.raises(StaleRules):
        made.replace([], "another")


async def test_a_rule_keeps_its_count_while_it_is_disabled() -> None:
    made, _ = book(rule("a"))
    kept = made.entries["a"].rule
    made.enable("a", on=False)
    made.put(rule("a"))
    assert made.entries["a"].rule is kept


async def test_faults_end_in_their_order(autojump_clock: trio.testing.MockClock) -> None:
    made, _ = book()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        made.put(rule("late"), lasts=20.0)
        made.put(rule("soon"), lasts=10.0)
        made.put(rule("always"))
        await trio.sleep(10.5)
        assert list(made.entries) == ["late", "always"]
        made.put(rule("late"), lasts=30.0)  # longer than before
        await trio.sleep(20)
        assert list(made.entries) == ["late", "always"]
        await trio.sleep(11)
        assert list(made.entries) == ["always"]
        nursery.cancel_scope.cancel()
