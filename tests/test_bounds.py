"""Every number of a setting has a bound: the largest works on a running proxy, and one more is refused.

The settings are those of the option table, and of every kind of rule with the keys that it may have.  What is
too large is refused with place and limit: for options by flag, environment and file, for rules by `rules
check` and the admin API.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio
from click.testing import CliRunner

from natsproxy import close_reasons
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from natsproxy.config.settings import OPTIONS, ProxySettings, proxy_settings
from natsproxy.errors import ConfigError
from natsproxy.events import Closed, Event, Notice
from natsproxy.net.proxy import Proxy
from natsproxy.option import Option
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.keys import keys_of
from natsproxy.rules.file.parser import load, parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.file.values import count_to
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.rule import Kind
from tests.admin.kit import running
from tests.kit.servers import NatsServer

PAIRS: Final = (
    ("3650d", "87600h1ns"),
    ("1d", "24h1ns"),
    ("1PiB", 2**50 + 1),
    (2**63 - 1, 2**63),
    (2**53, 2**53 + 1),
    (999, 1000),
    (1000, 1001),
    (100, 101),
    (64, 65),
    (10.0, 10.5),
    (1.0, 1.5),
)
"""The largest value and one more, of all that any setting may have: each bound is here.

Those of numbers with fractions have a point, since whole numbers, whatever their bound, refuse 1.5.
"""
NUMBERS: Final = ("1s", "1KiB", 1, 500, 0.5)
WORDS: Final = ("word", "two words")
"""What a setting takes that is a text."""
ENDED: Final = (close_reasons.INTERNAL, close_reasons.RULE_FAILED)


def accepts(read: Callable[[Any], Any], value: Any) -> bool:
    try:
        read(value)
    except (ValueError, ConfigError):
        return False
    return True


def bound(read: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Return the largest value of a setting and one more; None where it has none."""
    return next(
        ((most, more) for most, more in PAIRS if accepts(read, most) and not accepts(read, more)), None
    )


def test_a_bound_that_is_not_listed_is_not_taken_for_another() -> None:
    assert bound(count_to(64)) == (64, 65)
    assert bound(count_to(65536)) is None


# -- options

_MEASURES = ("DURATION", "SIZE", "NUMBER", "LIMIT")
MEASURED: Final = [option for option in OPTIONS if any(word in option.metavar for word in _MEASURES)]


def values_of(server: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values of all options."""
    found: dict[str, Any] = {}
    for option in OPTIONS:
        value = {"listen": "127.0.0.1:0", "upstream": server, **given}.get(option.key, option.default)
        read = value if value is None or option.flag else option.read(value)
        found[option.key] = ([] if read is None else [read]) if option.many else read
    return found


def most_of(option: Option) -> Any:
    pair = bound(option.read)
    assert pair is not None, option.name
    return pair[0]


def one_more(option: Option) -> str:
    pair = bound(option.read)
    assert pair is not None, option.name
    return str(pair[1])


def test_each_option_that_measures_something_has_a_bound() -> None:
    assert len(MEASURED) >= 20
    for option in MEASURED:
        most, more = bound(option.read) or (None, None)
        assert most is not None, option.name
        with pytest.raises(ValueError, match=r"must be (at most|a whole number of at most) \S+"):
            option.read(more)


@pytest.mark.parametrize("option", MEASURED, ids=lambda option: option.name)
def test_one_more_is_refused_by_config(option: Option, tmp_path: Path) -> None:
    more = one_more(option)
    file = tmp_path / "natsproxy.toml"
    number = more if more.isdecimal() else f'"{more}"'
    file.write_text(f'upstream = "nats://127.0.0.1:4223"\n{option.name} = {number}\n')
    record = [] if option.name == "record" else ["--record", str(tmp_path / "x.ncap")]
    arguments = ["config", "--upstream", "nats://127.0.0.1:4223", *record]
    for given, environment in (
        ([f"--{option.name}", more], {}),
        ([], {f"NATSPROXY_{option.key.upper()}": more}),
        (["--config", str(file)], {}),
    ):
        done = CliRunner().invoke(main, [*arguments, *given], env={**os.environ, **environment})
        assert done.exit_code == 2, done.output
        said = re.sub(r"[\s│]+", " ", done.output)
        assert option.name in said
        assert re.search(r"must be (at most|a whole number of at most) \S+", said), said
        assert not given or given[0] != "--config" or f"{file}:2: {option.name} must" in done.output


def test_the_size_of_a_payload_policy_has_a_bound() -> None:
    (option,) = (option for option in OPTIONS if option.name == "record-payload")
    assert option.read(f">=truncate:{2**50}").keep == 2**50
    for size in (2**50 + 1, 10**30):
        with pytest.raises(ConfigError, match="truncate must be"):
            option.read(f">=truncate:{size}")


TRAFFIC: Final = (
    b'CONNECT {"verbose":false,"headers":true,"protocol":1,"name":"x"}\r\nPING\r\nSUB a 1\r\nSUB b q 2\r\n'
    b"SUB r.* 3\r\nPUB a r.1 5\r\nhello\r\nHPUB a 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\nPUB b 1\r\nx\r\n"
    b"PUB $JS.API.INFO r.1 0\r\n\r\nUNSUB 3 9\r\nPING\r\n"
)


class Seen:
    """What a proxy says of its connections."""

    def __init__(self, proxy: Proxy) -> None:
        self.wrong: list[str] = []
        self.fired = trio.Event()
        proxy.subscribe(self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, Closed) and event.cause in ENDED:
            self.wrong.append(f"{event.cause}: {event.detail}")
        elif isinstance(event, Notice) and event.level == "error":
            self.wrong.append(event.text)


async def talk(proxy: Proxy, wait: float) -> bytes:
    """Send the traffic; return what came back until the second PONG, the end, or for so long (seconds)."""
    heard = b""
    with trio.move_on_after(wait):
        async with await trio.open_tcp_stream("127.0.0.1", proxy.listen[0].port) as stream:
            await stream.send_all(TRAFFIC)
            while heard.count(b"PONG\r\n") < 2 and (data := await stream.receive_some(65536)):
                heard += data
    return heard


async def outcome(
    settings: ProxySettings, wait: float, chain: RuleChain | None = None
) -> tuple[bytes, list[str]]:
    """Run a proxy for the traffic; return what the client heard, and what went wrong."""
    proxy = Proxy(settings, chain)
    seen = Seen(proxy)
    heard = b""
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        with suppress(trio.BrokenResourceError):  # some rules end connections
            heard = await talk(proxy, wait)
        nursery.cancel_scope.cancel()
    return heard, seen.wrong


@pytest.mark.server
async def test_the_largest_value_of_each_option_works(nats_server: NatsServer, tmp_path: Path) -> None:
    """Alone, and all at once."""
    largest = {option.key: str(most_of(option)) for option in MEASURED}
    cases = {key: {key: value} for key, value in largest.items()} | {"all": largest}
    for name, given in cases.items():
        record = tmp_path / f"{name}.ncap"
        settings = proxy_settings(values_of(nats_server.url, {**given, "record": record}))
        heard, wrong = await outcome(settings, 20)
        assert not wrong, f"{name}: {wrong}"
        assert heard.count(b"PONG\r\n") == 2, name
        assert heard.count(b"MSG a 1 ") == 2, name
        assert len(list(open_capture(record).segments())) >= 1, name


# -- rules


class Place(NamedTuple):
    """One number in a rule.  table: the rule without it.  key: of the rule.  form: the value of the key."""

    kind: str
    key: str
    form: Callable[[Any], Any]
    table: Mapping[str, Any]

    def rule(self, value: Any) -> dict[str, Any]:
        """Return the rule with a value at the place."""
        return {**self.table, "name": "r", "kind": self.kind, self.key: self.form(value)}

    def accepts(self, value: Any) -> bool:
        """Tell whether the rule is one with a value there."""
        return accepts(lambda table: parse_rules([table], KINDS), self.rule(value))


def plain(value: Any) -> Any:
    return value


FORMS: Final[dict[str, list[Callable[[Any], Any]]]] = {
    "delay": [
        plain,
        lambda value: {"distribution": "constant", "value": value},
        lambda value: {"distribution": "uniform", "min": "0", "max": value},
        lambda value: {"distribution": "normal", "mean": value, "stddev": "1ms"},
        lambda value: {"distribution": "normal", "mean": "1ms", "stddev": value},
        lambda value: {"distribution": "lognormal", "median": value, "sigma": 10},
        lambda value: {"distribution": "lognormal", "median": "1d", "sigma": value},
        lambda value: {"distribution": "pareto", "scale": value, "shape": 0.1},
        lambda value: {"distribution": "pareto", "scale": "1d", "shape": value},
        lambda value: {"distribution": "empirical", "values": ["1ms", value]},
    ],
    "between": [lambda value: ["0s", value], lambda value: [value], lambda value: ["+0s", f"+{value}"]],
    "only": [lambda value: {"x": [value]}],
    "client": [lambda value: {"ordinal": value}],
    "allow_responses": [
        lambda value: {"max": value, "expires": "1s"},
        lambda value: {"max": 1, "expires": value},
    ],
    "error": [
        lambda value: {"code": value, "err_code": 1, "description": "x"},
        lambda value: {"code": 1, "err_code": value, "description": "x"},
    ],
    "to": [lambda value: [{"to": "x.$1", "weight": value}]],
}
"""The forms of the values that hold a number inside."""
_ALONE: Final = ("status_code", "error", "body")
TEXTS: Final = ("name", "kind", "set", "headers", "header")
"""Keys that take any text, or a table of texts."""


def base(kind: Kind, key: str) -> dict[str, Any]:
    """Return the first example of a kind, as far as another key leaves it."""
    table: dict[str, Any] = dict(tomllib.loads(kind.example)["rules"][0])
    others = {
        "client",
        "header",
        "role",
        "queue",
        "between",
        "after",
        "first",
        "every",
        "limit",
        "probability",
    }
    others |= {"subject"} if kind.name not in ("deny", "answer") else set()
    dropped = {*others, *(_ALONE if key in _ALONE else ())} - set[str]()
    table = {name: value for name, value in table.items() if name not in dropped}
    if kind.name == "rewrite":
        table = {"from": "a.*", "two_way": False} if key == "to" else {"from": "a.*", "to": "b.$1"}
    if key == "max_size":
        table.pop("min_size", None)
    return table


def places() -> Iterator[Place]:
    """Yield the numbers in rules of all kinds, each with its key."""
    for kind in KINDS.values():
        for setting in keys_of(kind):
            if setting.name in TEXTS:
                continue
            for form in FORMS.get(setting.name, [plain]):
                place = Place(kind.name, setting.name, form, base(kind, setting.name))
                if not any(map(place.accepts, WORDS)) and any(place.accepts(number) for number in NUMBERS):
                    yield place


PLACES: Final = list(places())


def place_bound(place: Place) -> tuple[Any, Any]:
    found = next(
        ((most, more) for most, more in PAIRS if place.accepts(most) and not place.accepts(more)), None
    )
    assert found is not None, f"{place.kind}: {place.key} has no bound: {place.rule('1s')}"
    return found


def test_each_number_of_a_rule_has_a_bound() -> None:
    assert {place.kind for place in PLACES} == set(KINDS) - {"stamp"}  # which has no number
    keys = {place.key for place in PLACES}
    own = {
        "delay",
        "within",
        "by",
        "rate",
        "size",
        "keep",
        "copies",
        "bytes",
        "max_payload",
        "lasts",
        "error",
    }
    assert own | {"min_size", "max_size", "status", "after", "limit", "between", "to"} <= keys
    for place in PLACES:
        place_bound(place)


def test_one_more_is_refused_by_rules_check(tmp_path: Path) -> None:
    """With file and line, the key and its limit."""
    file = tmp_path / "rules.toml"
    for place in PLACES:
        _, more = place_bound(place)
        table = place.rule(more)
        file.write_text(to_toml([table]))
        line = [*table].index(place.key) + 2
        done = CliRunner().invoke(main, ["rules", "check", str(file)])
        assert done.exit_code == 1, (table, done.output)
        assert refused(place, done.output), (table, done.output)
        assert f"{file}:{line}: rule 'r': {place.key}" in done.output, (table, done.output)


def refused(place: Place, said: str) -> bool:
    """Tell whether an error says where a limit is, and which."""
    return place.key in said and bool(re.search(r"(at most|from \S+ to|of three digits|100)", said))


@pytest.mark.server
async def test_one_more_is_refused_by_the_admin_api(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        for place in PLACES:
            _, more = place_bound(place)
            answer = await api.ask("POST", "rules", {"rule": place.rule(more)})
            assert answer.status == 422, (place.rule(more), answer.body)
            assert refused(place, answer.json["error"]), answer.json
        lasting = {"rule": {"name": "r", "kind": "drop", "subject": "x"}, "for": "87600h1ns"}
        answer = await api.ask("POST", "rules", lasting)
        assert (answer.status, answer.json["error"]) == (400, "for must be at most 3650d, not '87600h1ns'")
        answer = await api.ask("POST", "rules", {**lasting, "for": "3650d"})
        assert answer.status == 201
        answer = await api.ask("POST", "/v1/proxies/main/drain", {"within": "87600h1ns"})
        assert answer.status == 400
        assert "within must be at most 3650d" in answer.json["error"]


@pytest.mark.long
@pytest.mark.server
async def test_the_largest_number_of_each_place_works(nats_server: NatsServer, tmp_path: Path) -> None:
    """On a connection of its own: what a rule holds back for a day does not come, and nothing fails."""
    wrong: list[str] = []
    limit = trio.CapacityLimiter(12)

    async def one(number: int, place: Place) -> None:
        most, _ = place_bound(place)
        text = to_toml([place.rule(most)])
        given = {"record": tmp_path / f"{number}.ncap", "drain": "0s"}
        settings = proxy_settings(values_of(nats_server.url, given))
        async with limit:
            _, failures = await outcome(settings, 0.3, RuleChain(load(text, KINDS), seed=number))
        wrong.extend(f"{text}{failure}" for failure in failures)

    async with trio.open_nursery() as nursery:
        for number, place in enumerate(PLACES):
            nursery.start_soon(one, number, place)
    assert not wrong, "\n".join(wrong)
