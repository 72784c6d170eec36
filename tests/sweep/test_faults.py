"""Faults are offered where they can happen, and their rules are rules that the engine takes."""

from __future__ import annotations

from itertools import product

import pytest

from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.model.roles import ROLES
from natsproxy.sweep.faults import DEFAULTS, FAULTS, GROUPS, chosen, trials
from natsproxy.sweep.timers import Timers
from natsproxy.sweep.values import Place, Position
from natsproxy.wire.ops import OPS

ROUTES = [
    *((role.direction.label, role.name) for role in ROLES.values()),
    *(("c2s", spec.op.label) for spec in OPS if spec.from_client),
    *(("s2c", spec.op.label) for spec in OPS if spec.from_server),
]


def place(direction: str, what: str, subject: str = "", *, reply: bool = False, size: int = 0) -> Place:
    """Return a place on the connection app/1."""
    return Place(Position("app/1", direction, what, subject, 2), "", reply=reply, size=size)


def offered(one: Place, *, own_server: bool = False) -> set[str]:
    """Return the faults that are offered at a place."""
    return {trial.fault for trial in trials([one], GROUPS, own_server=own_server)}


@pytest.mark.parametrize(("route", "reply"), list(product(ROUTES, (True, False))))
def test_every_offered_fault_is_a_rule(route: tuple[str, str], reply: bool) -> None:
    direction, what = route
    subject = "" if what in ("PING", "PONG", "+OK", "-ERR", "INFO", "CONNECT", "UNSUB") else "orders.*"
    subject = {"ack": "$JS.ACK.ORDERS.worker.>", "api": "$JS.API.STREAM.INFO.ORDERS"}.get(what, subject)
    if what in ROLES and (patterns := ROLES[what].patterns) is not None:
        subject = patterns[0].decode()
    timers = Timers(1.0, 2.0, 3.0, 4.0, 1.0, 360.0, 10.0)
    size = 9 if subject and what != "SUB" else 0
    one = place(direction, what, subject, reply=reply, size=size)._replace(acked=True)
    made = trials([one], GROUPS, timers, own_server=True)
    assert made
    for trial in made:
        rules = parse_rules(trial.rules, KINDS)
        assert [direction.label for direction in rules[0].selector.directions].count(direction) == 1
        assert rules[0].gate.only == {f"{direction} app/1": frozenset({2})}
    assert len({trial.fault for trial in made}) == len(made)


@pytest.mark.parametrize(
    ("route", "lost"),
    [(("c2s", "PUB"), True), (("c2s", "ack"), True), (("s2c", "publish-ack"), True), (("s2c", "MSG"), True)]
    + [(("c2s", what), False) for what in ("SUB", "UNSUB", "CONNECT", "PING", "PONG")]
    + [(("s2c", what), False) for what in ("INFO", "+OK", "-ERR", "PING", "PONG")],
)
def test_only_messages_are_lost_alone(route: tuple[str, str], lost: bool) -> None:
    assert ("drop" in offered(place(*route))) == lost


def test_a_part_of_a_frame_is_for_clients_only() -> None:
    for end in ("cut", "reset"):
        cuts = {end, f"{end}-head", f"{end}-payload"}
        assert offered(place("s2c", "MSG", "orders.*", size=5)) & cuts == cuts
        assert offered(place("s2c", "MSG", "orders.*")) & cuts == {end, f"{end}-head"}
        assert offered(place("c2s", "PUB", "orders.*", size=5)) & cuts == {end}


def test_a_pause_stops_both_directions_at_the_login_or_at_a_message() -> None:
    (trial,) = trials([place("c2s", "PUB", "orders.*")], ["pause"])
    assert (trial.rules[0]["kind"], trial.rules[0]["both"]) == ("pause", True)
    assert "pause" in offered(place("c2s", "CONNECT"))
    assert "pause" not in offered(place("s2c", "INFO"))
    assert "pause" not in offered(place("c2s", "PING"))


def test_only_what_asks_is_repeated() -> None:
    assert "duplicate" in offered(place("c2s", "PUB", "orders.*", reply=True))
    assert "duplicate" not in offered(place("c2s", "PUB", "orders.*"))
    assert "duplicate" in offered(place("s2c", "MSG", "_INBOX.>"))
    assert "duplicate" not in offered(place("s2c", "MSG", "orders.*"))
    assert "duplicate" not in offered(place("s2c", "delivery", "orders.*", reply=True))


def test_errors_are_those_that_the_server_sends_there() -> None:
    def errors(one: Place) -> set[str]:
        return {trial.fault for trial in trials([one], ["error"])}

    assert errors(place("c2s", "pull", reply=True)) == {"error-409", "error-408", "error-503"}
    assert errors(place("c2s", "api", reply=True)) == {"error-503", "error-10008"}
    publish = place("c2s", "PUB", "orders.*", reply=True)._replace(acked=True)
    assert errors(publish) == {"error-503", "error-10077", "error-denied"}
    assert errors(place("c2s", "PUB", "time.now", reply=True)) == {"error-503", "error-denied"}
    assert errors(place("c2s", "PUB", "time.now")) == {"error-denied"}
    assert errors(place("c2s", "SUB", "time.now")) == {"error-denied"}
    assert errors(place("c2s", "CONNECT")) == {"error-login", "error-full"}
    assert errors(place("s2c", "MSG", "time.now", reply=True)) == set()
    assert errors(place("c2s", "PING")) == set()


RESTARTS = ("restart", "restart-lose-memory")


def test_a_server_is_restarted_only_where_it_is_the_sweeps_own() -> None:
    acked = place("s2c", "publish-ack", "orders.*")
    assert not {"restart", "restart-lose-memory"} & offered(acked)
    made = {trial.fault: trial.restart for trial in trials([acked], RESTARTS, own_server=True)}
    assert made == {"restart": "keep", "restart-lose-memory": "lose"}
    assert "restart-lose-memory" not in offered(place("c2s", "PUB", "orders.*"), own_server=True)


def test_late_frames_come_behind_the_timers_that_run_there() -> None:
    timers = Timers(request=1.0, api=2.0, pull=3.0, ack_wait=30.0, heartbeat=1.0)

    def delays(one: Place) -> list[str]:
        return [trial.fault for trial in trials([one], ["late"], timers)]

    assert delays(place("s2c", "publish-ack")) == ["late-600ms", "late-2500ms"]
    assert delays(place("c2s", "pull")) == ["late-600ms", "late-3800ms"]
    assert delays(place("s2c", "heartbeat")) == ["late-600ms", "late-3000ms"]
    assert delays(place("c2s", "SUB")) == ["late-600ms"]
    assert delays(place("c2s", "ack")) == ["late-600ms"]  # 30 s are not waited for


def test_faults_are_chosen_by_group_or_variant() -> None:
    assert [fault.name for fault in chosen(["cut"])] == ["cut", "cut-head", "cut-payload"]
    assert [fault.name for fault in chosen(["cut-head"])] == ["cut-head"]
    assert {*GROUPS} - {*DEFAULTS} == {"overtake", "restart-lose-memory"}
    with pytest.raises(ValueError, match="no fault 'dorp'"):
        chosen(["dorp"])
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_fault_in_a_recovery_keeps_the_rules_of_the_first() -> None:
    (first,) = trials([place("c2s", "PING")], ["reset"])
    (second,) = trials([place("s2c", "INFO")], ["cut-head"], after=first)
    assert (second.depth, second.after) == (2, "reset at app · c2s · 2nd PING")
    assert [rule["kind"] for rule in second.rules] == ["close", "reset"]
    assert len(parse_rules(second.rules, KINDS)) == 2
