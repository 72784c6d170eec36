"""A position is the same frame in every run: engine and live proxy count as the recording is counted."""

from __future__ import annotations

import asyncio
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from natsproxy.protocol.connect import parse_connect
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.rule_engine import RuleEngine
from natsproxy.rules.engine.trial import TrialView, ask
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.file.serialize import to_toml
from natsproxy.rules.kinds import KINDS
from natsproxy.sweep.faults import GROUPS, trials
from natsproxy.sweep.positions import common, name, places, places_of
from natsproxy.sweep.timers import Timers
from natsproxy.sweep.traffic import RunTraffic, common_names, traffic
from natsproxy.sweep.values import Place, Position
from natsproxy.wire.ops import Op
from tests.sweep import conversations
from tests.sweep.recorded import PROGRAMS, run

pytestmark = pytest.mark.server
Fired = dict[str, list[tuple[str, str, int]]]
"""By rule: the connection key, the direction and the ordinal of each frame at which it fired."""


def _rules(found: list[Place]) -> list[dict[str, Any]]:
    """Return a rule for each place that holds its frame a moment, named by its position."""
    made = trials(found, ["late"])
    assert len(made) == len(found)
    return [{**trial.rules[0], "name": str(trial.place.position), "delay": "1us"} for trial in made]


def _expected(found: list[Place]) -> Fired:
    return {
        str(place.position): [(place.position.connection, place.position.direction, place.ordinal)]
        for place in found
    }


def _asked(capture: Path, rules: list[dict[str, Any]]) -> Fired:
    """Put the frames of a capture through the engine, as the proxy does; return the firings of the rules."""
    chain = RuleChain(parse_rules(rules, KINDS))
    bound: dict[object, tuple[RuleEngine, TrialView]] = {}
    fired: Fired = {}
    for one in traffic(capture).frames:
        if one.conn not in bound:
            view = TrialView(key=one.key)
            bound[one.conn] = chain.bind(view, None, one.t), view
        engine, view = bound[one.conn]
        if one.frame.op == Op.CONNECT:
            view.key, view.connect = one.key, parse_connect(one.frame.args)
            bound[one.conn] = engine, view = chain.bind(view, engine, one.t), view
        decision = ask(engine, view, one.direction, one.frame, one.t)
        for firing in decision.firings if decision is not None else ():
            fired.setdefault(firing.rule, []).append((firing.key, firing.direction, one.ordinal))
    return fired


def test_the_engine_fires_at_each_place_of_the_zoo_and_nowhere_else(zoo: Path) -> None:
    for capture in sorted(zoo.glob("*.ncap")):
        found = places(capture)
        assert len({place.position for place in found}) == len(found), capture
        assert _asked(capture, _rules(found)) == _expected(found), capture


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_live_proxy_fires_at_each_place(program: str, tmp_path: Path) -> None:
    run(PROGRAMS[program], tmp_path / "clean.ncap")
    found = places(tmp_path / "clean.ncap")
    fired: Fired = {}
    for event in run(PROGRAMS[program], tmp_path / "again.ncap", _rules(found)):
        for firing in event.each():
            fired.setdefault(firing.rule, []).append((firing.key, firing.direction, firing.ordinal or 0))
    assert fired == _expected(found)


def test_each_fault_fires_first_at_its_place(tmp_path: Path) -> None:
    for program, run_ in PROGRAMS.items():
        capture = tmp_path / f"{program}.ncap"
        run(run_, capture)
        made = trials(places(capture), GROUPS, Timers(request=2.0, pull=1.0), own_server=True)
        assert {"deny", "answer", "error", "close", "latency"} <= {trial.rules[0]["kind"] for trial in made}
        for trial in made:
            (fired,) = _asked(capture, list(trial.rules)).values()
            place = trial.place
            wanted = [(place.position.connection, place.position.direction, place.ordinal)]
            assert fired == wanted, trial


def test_names_say_what_a_frame_is(tmp_path: Path) -> None:
    run(PROGRAMS["queue"], tmp_path / "clean.ncap")
    found = places(tmp_path / "clean.ncap")
    names = [name(place) for place in found]
    for wanted in (
        "#1 · s2c · 1st INFO",
        "worker · c2s · 1st CONNECT",
        "worker · c2s · 1st call of STREAM.CREATE ORDERS",
        "worker · s2c · 1st answer of STREAM.CREATE ORDERS",
        "worker · s2c · 3rd publish ack of orders.*",
        "worker · c2s · 2nd pull from ORDERS/worker",
        "worker · s2c · 3rd delivery of ORDERS/worker (orders.*)",
        "worker · c2s · 3rd ack of ORDERS/worker",
        "worker · s2c · 1st status of a pull from ORDERS/worker",
    ):
        assert wanted in names
    assert len(set(names)) == len(names)
    assert [place.t for place in found] == sorted(place.t for place in found)
    timed = {name(place) for place in found if place.by_clock}
    assert timed == {
        "worker · c2s · 4th pull from ORDERS/worker",
        "worker · s2c · 1st status of a pull from ORDERS/worker",
    }


ODD = [b"../../x", b"bad\xff.y", b"a..b", b"tab\x0c.z"]
"""Subjects that a server takes in a PUB, and that no selector can name."""


def test_frames_on_subjects_that_no_rule_can_name_have_a_rule(tmp_path: Path) -> None:
    def publish(url: str) -> None:
        host, _, port = url.removeprefix("nats://").rpartition(":")
        with socket.create_connection((host, int(port))) as link, link.makefile("rb") as lines:
            lines.readline()
            pubs = b"".join(b"PUB %b 0\r\n\r\n" % subject for subject in (b"fine", *ODD))
            link.sendall(b'CONNECT {"name":"evil\\n","verbose":false}\r\n' + pubs + b"PING\r\n")
            while lines.readline() != b"PONG\r\n":
                pass

    async def odd(url: str) -> None:
        await asyncio.to_thread(publish, url)

    capture = tmp_path / "odd.ncap"
    run(odd, capture)
    found = places(capture)
    assert [place.position.subject for place in found if place.position.what == "PUB"] == ["fine", *[""] * 4]
    for trial in trials(found, ["drop"]):
        (fired,) = _asked(capture, tomllib.loads(to_toml(trial.rules))["rules"]).values()
        assert fired == [(trial.place.position.connection, "c2s", trial.place.ordinal)]


def _ordered(path: Path, name: str, asked: str, config: str = "{}") -> RunTraffic:
    """Return a run in which a consumer of this name delivers; asked: the end of the subject that makes it."""
    text = (
        'w opened\nw > CONNECT {"name":"worker"}\nw > SUB _INBOX.x.> 1\n'
        f"w > PUB $JS.API.CONSUMER.CREATE.LOG{asked} _INBOX.x.a\n"
        f'  | {{"stream_name":"LOG","config":{config}}}\n'
        f'w < MSG _INBOX.x.a 1\n  | {{"stream_name":"LOG","name":"{name}","config":{config}}}\n'
        f"w < MSG log.line 1 $JS.ACK.LOG.{name}.1.1.1.1.0\n  | one\n"
        f"w > PUB $JS.API.CONSUMER.DELETE.LOG.{name} _INBOX.x.b\n  | \n"
    )
    return traffic(conversations.capture(path, text))


@pytest.mark.parametrize(
    ("names", "config", "shown"),
    [
        (["yXehxvrs", "abcdefgh", "KLMnopqr"], "{}", "*"),
        (["readers", "readers", "readers"], "{}", "readers"),
        (["yXehxvrs"], "{}", "*"),
        (["yXehxvrs"], '{"durable_name":"yXehxvrs"}', "yXehxvrs"),
    ],
    ids=["new in each run", "the same in each run", "one run, ephemeral", "one run, durable"],
)
@pytest.mark.parametrize("named", [True, False], ids=["in the request", "in the answer"])
def test_a_consumer_whose_name_is_made_up_is_known_by_its_template(
    names: list[str], config: str, shown: str, named: bool, tmp_path: Path
) -> None:
    runs = [
        _ordered(tmp_path / f"{n}.nats.txt", name, f".{name}.log.line" if named else "", config)
        for n, name in enumerate(names)
    ]
    known = common_names(runs)
    found, differs = common([places_of(run.known_by(known)) for run in runs])
    assert differs == []
    assert f"worker · s2c · 1st delivery of LOG/{shown} (log.line)" in map(name, found)
    assert f"worker · c2s · 1st call of CONSUMER.DELETE LOG {shown}" in map(name, found)
    subjects = {place.position.subject for place in found}
    assert f"$JS.API.CONSUMER.DELETE.LOG.{shown}" in subjects
    assert (f"$JS.API.CONSUMER.CREATE.LOG.{shown}.log.line" in subjects) == named


def _place(n: int, *, what: str = "PUB", by_clock: bool = False) -> Place:
    return Place(Position("app/1", "c2s", what, "orders.*", n), "", by_clock=by_clock, of="orders.*")


def test_common_keeps_what_all_baselines_have_and_says_what_differs() -> None:
    two, three = [_place(1), _place(2)], [_place(1), _place(2), _place(3)]
    kept, sentences = common([three, two, three])
    assert kept == two
    assert sentences == ["app · c2s · PUB on orders.*: 3, 2 and 3 in the baselines"]
    assert common([two, two]) == (two, [])


def test_common_is_silent_on_what_a_clock_decides() -> None:
    pings = [_place(1, what="PING", by_clock=True)]
    assert common([[_place(1)], [_place(1), *pings]]) == ([_place(1)], [])
