"""Requests of all kinds: none of them meets a bug."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from natsproxy.admin.toxiproxy.stages import STAGES
from natsproxy.rules.file.keys import keys_of
from natsproxy.rules.kinds import KINDS
from tests.admin.toxiproxy.kit import Toxi

NAMES = sorted({setting.name for kind in KINDS.values() for setting in keys_of(kind)} - {"only"})
KINDS_OF_TOXICS = [*STAGES, "packet_loss", *(f"nats_{name}" for name in KINDS)]
words = st.text(st.characters(exclude_categories=()), max_size=9)  # half surrogate pairs too
numbers = st.integers() | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | words | st.sampled_from(["1ms", "a.>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
attributes = st.dictionaries(st.sampled_from(NAMES) | words, anything, max_size=4) | anything
toxics = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS_OF_TOXICS) | anything},
    optional={
        "name": st.sampled_from(["a", "b"]) | anything,
        "stream": st.sampled_from(["upstream", "DOWNSTREAM"]) | anything,
        "toxicity": st.floats() | anything,
        "attributes": attributes,
    },
)
proxies = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["nats", "a"]) | anything,
        "upstream": st.just("127.0.0.1:1") | anything,
        "listen": st.sampled_from(["\ud800:0", "127.0.0.1:0", ":0", "[::1]:0", "192.0.2.1:0", "x:y", "[:1"]),
        "enabled": st.booleans() | anything,
    },
)
CALLS = {
    "POST /proxies": proxies,
    "PATCH /proxies/nats": proxies,
    "POST /populate": st.lists(proxies, max_size=2) | anything,
    "POST /proxies/nats/toxics": toxics,
    "POST /proxies/nats/toxics/a": toxics,
    "DELETE /proxies/nats/toxics/a": st.none(),
    "DELETE /proxies/nats": st.none(),
    "POST /reset": anything,
    "GET /proxies": st.none(),
}


@pytest.fixture(scope="module")
def toxi() -> Iterator[Toxi]:
    with Toxi() as server:
        yield server


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_meets_a_bug(toxi: Toxi, data: st.DataObject) -> None:
    for name in toxi.call("GET", "/proxies").json:
        toxi.call("DELETE", f"/proxies/{name}") if name == "nats" else None
    toxi.call("POST", "/proxies", {"name": "nats", "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0"})
    for call in data.draw(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=8)):
        method, path = call.split()
        body: Any = json.dumps(data.draw(CALLS[call]))
        answer = toxi.call(method, path, body)
        assert not toxi.reports, (call, body, toxi.reports)
        assert answer.status != 500 or answer.json["error"].startswith("listen tcp"), (call, body, answer)
