"""Configurations compared with what was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from natsproxy.errors import ConfigError
from natsproxy.permissions.comparison import PermissionDifference, compare_permissions
from natsproxy.permissions.formats import FORMATS
from natsproxy.permissions.holders import read_holders
from natsproxy.permissions.needs import needs_of
from natsproxy.permissions.uses import By
from tests.kit.accounts import Operator
from tests.permissions.kit import NUID, UUID, Sent, connect, items, msg, pub, segments, sub

REPLY = b"_INBOX.%b.1" % NUID
FRAMES: list[tuple[int, Sent]] = [
    (1, connect("it", "ann")),
    (1, sub(b"ask", b"crew")),
    (1, msg(b"ask", REPLY)),
    (1, pub(REPLY)),
    (1, pub(b"orders.%b.created" % UUID)),
    (2, connect("other", "bob")),
    (2, pub(b"tick")),
]


def _differences(
    tmp_path: Path, config: str, by: By = By.USER, conns: tuple[int, ...] = (1, 2)
) -> list[PermissionDifference]:
    captures = segments(tmp_path / "capture", items([row for row in FRAMES if row[0] in conns]), 99)
    path = tmp_path / "server.conf"
    path.write_text(config)
    return compare_permissions(captures, needs_of(captures, by), read_holders(path, by), by)


def _facts(one: PermissionDifference) -> dict[str, Any]:
    facts = one.facts()
    return {
        "denied": [row["template"] for row in facts["denied"]],
        "unused": [row["entry"] for row in facts["unused"]],
        "wide": {row["entry"]: row["used"] for row in facts["wide"]},
        "responses": facts["unused_responses"],
    }


SAME = {"denied": [], "unused": [], "wide": {}, "responses": False}
ANN = 'publish: "orders.*.created", subscribe: "ask crew", allow_responses: true'
ROWS = [
    (ANN, SAME),
    (
        'publish: "orders.>", subscribe: ask, allow_responses: true',
        {**SAME, "wide": {"orders.>": ["orders.*.created"]}},
    ),
    ("publish: [orders.*.created, x], subscribe: [ask, ask.>], allow_responses: 1", None),
    (
        "publish: [orders.*.created, x], subscribe: [ask, ask.>], allow_responses: true",
        {**SAME, "unused": ["x", "ask.>"]},
    ),
    (
        'publish: "x", subscribe: "ask others", allow_responses: true',
        {**SAME, "denied": ["orders.*.created", "ask crew"], "unused": ["x", "ask others"]},
    ),
    ('publish: "orders.*.created", subscribe: ask', {**SAME, "denied": ["_INBOX.*.*"]}),
    (
        'publish: "orders.*.created", subscribe: ask, allow_responses: { max: 1, expires: "1ms" }',
        {**SAME, "denied": ["_INBOX.*.*"]},
    ),
    (
        'publish: { deny: ">" }, subscribe: ask, allow_responses: true',
        {**SAME, "denied": ["orders.*.created"]},
    ),
    ("subscribe: ask", {**SAME, "wide": {">": ["orders.*.created"]}}),
]


@pytest.mark.parametrize(("permissions", "wanted"), ROWS, ids=[row for row, _ in ROWS])
def test_a_user(permissions: str, wanted: dict[str, Any] | None, tmp_path: Path) -> None:
    config = (
        f"authorization: {{ users: [ {{ user: ann, permissions: {{ {permissions} }} }},"
        ' { user: bob, permissions: { publish: tick, subscribe: { deny: [">"] } } } ] }'
    )
    if wanted is None:
        with pytest.raises(ConfigError, match="allow_responses"):
            _differences(tmp_path, config)
        return
    ann, bob = _differences(tmp_path, config)
    assert (_facts(ann), _facts(bob)) == (wanted, SAME)
    assert (ann.differs, bob.differs) == (wanted != SAME, False)


def test_users_that_only_one_side_has(tmp_path: Path) -> None:
    config = "authorization: { users: [ { user: eve, permissions: { publish: x } }, { user: bob } ] }"
    eve, bob, ann = _differences(tmp_path, config)
    assert list(ann.texts()) == ["ann: not in the configuration"]
    assert list(eve.texts()) == [
        "eve: not in the recording",
        '  unused publish "x"',
        '  unused subscribe ">"',
    ]
    assert _facts(bob) == {**SAME, "wide": {">": ["tick"]}, "unused": [">"]}


def test_a_generated_block_is_the_same(tmp_path: Path) -> None:
    captures = segments(tmp_path / "first", items(FRAMES), 99)
    for by in (By.USER, By.NAME):
        text = FORMATS["nats"](needs_of(captures, by), by, None)
        (tmp_path / str(by)).mkdir()
        found = _differences(tmp_path / str(by), text, by)
        assert [one.differs for one in found] == [False, False]
        assert next(found[0].texts()).endswith(": allows what was used, and no more")


def test_the_user_of_a_jwt_stands_for_all_clients(tmp_path: Path) -> None:
    user: dict[str, Any] = {
        "pub": {"allow": ["orders.>"], "deny": ["tick"]},
        "sub": {"allow": ["ask"]},
        "resp": {"max": 1, "ttl": 1_000_000_000},
        "subs": 10,
        "data": -1,
    }
    (one,) = _differences(tmp_path, Operator().creds("ann", **user))
    assert _facts(one) == {**SAME, "denied": ["tick"], "wide": {"orders.>": ["orders.*.created"]}}
    assert one.limits == {"subs": 10}
    assert list(one.texts())[-1] == "  limits subs 10"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("port: 4222", "has no users"),
        ("aaaa.bbbb.cccc", "holds a JWT that cannot be decoded"),
        ("e30.eyJuYW1lIjoieCJ9.c2ln", "holds the JWT of no user"),
        ("authorization: {", "line 1: no '}'"),
        ("authorization: { users: [ { user: a, permissions: { publish: { alow: x } } } ] }", "alow"),
    ],
)
def test_a_file_that_cannot_be_compared(config: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="server") as error:
        _differences(tmp_path, config)
    assert message in str(error.value)
