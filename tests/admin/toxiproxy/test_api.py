"""Routes, codes, bodies and headers of the API, as Toxiproxy has them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

from natsproxy.addresses import Address
from natsproxy.config.endpoints import HttpListener
from tests.admin.toxiproxy.kit import Toxi


@pytest.fixture(scope="module")
def shared() -> Iterator[Toxi]:
    with Toxi() as server:
        yield server


@pytest.fixture
def toxi(shared: Toxi) -> Toxi:
    """Give the server without any proxy."""
    for name in shared.call("GET", "/proxies").json:
        assert shared.call("DELETE", f"/proxies/{name}").status == 204
    return shared


def connects(listen: str) -> bool:
    host, _, port = listen.rpartition(":")
    with closing(socket.socket()) as sock:
        return sock.connect_ex((host, int(port))) == 0


# -- routes


def test_version(toxi: Toxi) -> None:
    answer = toxi.call("GET", "/version")
    assert (answer.status, answer.text) == (200, '{"version": "2.12.0"}\n')
    assert answer.headers["content-type"] == "application/json;charset=utf-8"


def test_a_proxy_from_creation_to_end(toxi: Toxi) -> None:
    assert (toxi.call("GET", "/proxies").status, toxi.call("GET", "/proxies").text) == (200, "{}")
    proxy = toxi.make()
    assert list(proxy) == ["name", "listen", "upstream", "enabled", "toxics"]
    assert proxy["listen"].startswith("127.0.0.1:")
    assert not proxy["listen"].endswith(":0")
    assert (proxy["enabled"], proxy["toxics"]) == (True, [])
    assert connects(proxy["listen"])
    shown = toxi.call("GET", "/proxies/nats")
    assert (shown.status, shown.json, shown.headers["content-type"]) == (200, proxy, "application/json")
    assert toxi.call("GET", "/proxies").json == {"nats": proxy}
    gone = toxi.call("DELETE", "/proxies/nats")
    assert (gone.status, gone.text) == (204, "")
    assert not connects(proxy["listen"])
    assert toxi.call("GET", "/proxies/nats").error == (404, "proxy not found")
    assert toxi.call("GET", "/proxies").json == {}


def test_proxies_are_sorted_by_name(toxi: Toxi) -> None:
    for name in ("b", "a", "c"):
        toxi.make(name=name)
    assert list(toxi.call("GET", "/proxies").json) == ["a", "b", "c"]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_proxy_is_changed(toxi: Toxi, method: str) -> None:
    proxy = toxi.make()
    off = toxi.call(method, "/proxies/nats", {"enabled": False, "name": "other"})
    assert (off.status, off.json) == (200, {**proxy, "enabled": False})
    assert not connects(proxy["listen"])
    on = toxi.call(method, "/proxies/nats", {"ENABLED": True})
    assert (on.status, on.json) == (200, proxy)
    assert connects(proxy["listen"])
    moved = toxi.call(method, "/proxies/nats", {"listen": "127.0.0.1:0", "upstream": "127.0.0.1:2"}).json
    assert moved["enabled"]
    assert moved["upstream"] == "127.0.0.1:2"
    assert moved["listen"] != proxy["listen"]
    assert connects(moved["listen"])
    assert not connects(proxy["listen"])
    same = toxi.call(method, "/proxies/nats", {"listen": moved["listen"].replace("127.0.0.1", "localhost")})
    assert same.json == moved
    assert toxi.call(method, "/proxies/none", {}).error == (404, "proxy not found")


def test_a_disabled_proxy_is_made_and_enabled(toxi: Toxi) -> None:
    proxy = toxi.make(enabled=False)
    assert (proxy["enabled"], proxy["listen"]) == (False, "127.0.0.1:0")
    listen = toxi.call("POST", "/proxies/nats", {"enabled": True}).json["listen"]
    assert connects(listen)
    toxi.call("POST", "/proxies/nats", {"enabled": False})
    assert toxi.call("POST", "/proxies/nats", {"enabled": True}).json["listen"] == listen


def test_a_proxy_without_listen_gets_a_port(toxi: Toxi) -> None:
    listen = toxi.call("POST", "/proxies", {"name": "nats", "upstream": "127.0.0.1:1"}).json["listen"]
    assert connects(f"127.0.0.1:{listen.rpartition(':')[2]}")


def test_toxics_from_creation_to_end(toxi: Toxi) -> None:
    toxi.make()
    path = "/proxies/nats/toxics"
    assert (toxi.call("GET", path).status, toxi.call("GET", path).text) == (200, "[]")
    first = toxi.call("POST", path, {"type": "latency", "attributes": {"latency": 5, "other": "x"}})
    latency = {
        "attributes": {"latency": 5, "jitter": 0},
        "name": "latency_downstream",
        "type": "latency",
        "stream": "downstream",
        "toxicity": 1,
    }
    assert (first.status, first.json) == (200, latency)
    second = {"name": "slow", "type": "bandwidth", "stream": "upstream", "toxicity": 0.5}
    assert toxi.call("POST", path, second).json == {**second, "attributes": {"rate": 0}}
    third = toxi.call("POST", path, {"type": "noop"}).json
    assert third["attributes"] == {}
    listed = toxi.call("GET", path).json
    assert [toxic["name"] for toxic in listed] == ["slow", "latency_downstream", "noop_downstream"]
    assert toxi.call("GET", "/proxies/nats").json["toxics"] == listed
    assert toxi.call("GET", f"{path}/latency_downstream").json == latency
    for method in ("POST", "PATCH"):
        change = {"attributes": {"Jitter": 2}, "name": "x", "type": "noop", "stream": "upstream"}
        changed = toxi.call(method, f"{path}/latency_downstream", change)
        assert changed.status == 200
        assert changed.json == {**latency, "attributes": {"latency": 5, "jitter": 2}}
    assert toxi.call("POST", f"{path}/slow", {"toxicity": 0.25}).json["toxicity"] == 0.25
    gone = toxi.call("DELETE", f"{path}/slow")
    assert (gone.status, gone.text) == (204, "")
    for method in ("GET", "DELETE", "POST", "PATCH"):
        assert toxi.call(method, f"{path}/slow").error == (404, "toxic not found")
        assert toxi.call(method, "/proxies/none/toxics/slow").error == (404, "proxy not found")
    assert toxi.call("GET", "/proxies/none/toxics").error == (404, "proxy not found")
    assert toxi.call("POST", "/proxies/none/toxics", "{").error == (404, "proxy not found")


def test_reset(toxi: Toxi) -> None:
    proxy = toxi.make()
    toxi.toxic("latency", latency=5)
    toxi.call("POST", "/proxies/nats", {"enabled": False})
    assert [t["name"] for t in toxi.call("GET", "/proxies/nats").json["toxics"]] == ["latency_downstream"]
    answer = toxi.call("POST", "/reset")
    assert (answer.status, answer.text) == (204, "")
    assert toxi.call("GET", "/proxies/nats").json == proxy


def test_reset_where_a_port_is_taken(toxi: Toxi) -> None:
    listen = toxi.make()["listen"]
    toxi.call("POST", "/proxies/nats", {"enabled": False})
    with closing(socket.create_server(("127.0.0.1", int(listen.rpartition(":")[2])))):
        said = f"listen tcp {listen}: bind: address already in use"
        assert toxi.call("POST", "/reset").error == (500, said)
        assert toxi.call("POST", "/proxies", {"name": "x", "upstream": "u:1", "listen": listen}).error == (
            500,
            said,
        )
        local = listen.replace("127.0.0.1", "localhost")
        body = [
            {"name": "y", "upstream": "u:1", "enabled": False},
            {"name": "x", "upstream": "u:1", "listen": local},
        ]
        populated = toxi.call("POST", "/populate", body)
        assert populated.status == 500
        assert (populated.json["error"], populated.json["status"]) == (said, 500)
        assert [proxy["name"] for proxy in populated.json["proxies"]] == ["y"]
    assert list(toxi.call("GET", "/proxies").json) == ["nats", "y"]


# -- populate


def test_populate(toxi: Toxi) -> None:
    body = [
        {"name": "one", "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0"},
        {"name": "two", "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0", "enabled": False, "toxics": [1]},
    ]
    answer = toxi.call("POST", "/populate", body)
    assert (answer.status, answer.headers["content-type"]) == (201, "application/json")
    assert [(each["name"], each["enabled"]) for each in answer.json["proxies"]] == [
        ("one", True),
        ("two", False),
    ]
    assert toxi.call("POST", "/populate", []).text == '{"proxies":[]}'


def test_populate_leaves_the_same_and_replaces_others(toxi: Toxi) -> None:
    listen = toxi.make()["listen"]
    toxi.toxic("latency", latency=5)
    toxi.call("POST", "/proxies/nats", {"enabled": False})
    before = toxi.call("GET", "/proxies/nats").json
    same = {"name": "nats", "upstream": "127.0.0.1:1", "listen": listen.replace("127.0.0.1", "localhost")}
    assert toxi.call("POST", "/populate", [same]).json["proxies"] == [before]
    replaced = toxi.call("POST", "/populate", [{**same, "upstream": "127.0.0.1:2"}]).json["proxies"]
    assert replaced == [{**before, "upstream": "127.0.0.1:2", "enabled": True, "toxics": []}]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            '[{"name": "a", "upstream": "u:1"}, {"upstream": "u:1"}]',
            "missing required field: name at proxy 2",
        ),
        ('[{"name": "a"}]', "missing required field: upstream at proxy 1"),
        ("{}", "bad request body: "),
        ("", "bad request body: EOF"),
        ("[1]", "bad request body: "),
    ],
)
def test_populate_makes_nothing_from_a_wrong_list(toxi: Toxi, body: str, error: str) -> None:
    answer = toxi.call("POST", "/populate", body)
    assert answer.status == answer.json["status"] == 400
    assert answer.json["error"].startswith(error)
    assert answer.json["proxies"] == []
    assert toxi.call("GET", "/proxies").json == {}


# -- errors


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/proxies", "", 400, "bad request body: EOF"),
        ("/proxies", "nonsense", 400, "bad request body: "),
        ("/proxies", "[]", 400, "bad request body: json: cannot unmarshal array"),
        ("/proxies", '{"name": 1}', 400, "bad request body: json: cannot unmarshal number"),
        (
            "/proxies",
            '{"name": "a", "enabled": "yes"}',
            400,
            "bad request body: json: cannot unmarshal string",
        ),
        ("/proxies", "null", 400, "missing required field: name"),
        ("/proxies", '{"upstream": "u:1"}', 400, "missing required field: name"),
        ("/proxies", '{"name": "a"}', 400, "missing required field: upstream"),
        ("/proxies", '{"name": "nats", "upstream": "u:1"}', 409, "proxy already exists"),
        (
            "/proxies",
            '{"name": "a", "upstream": "u:1", "listen": "x"}',
            500,
            "listen tcp: address x: missing port",
        ),
        (
            "/proxies",
            '{"name": "a", "upstream": "u:1", "listen": "localhost:99999"}',
            500,
            "listen tcp: address 99999: invalid port",
        ),
        ("/proxies/nats", "{", 400, "bad request body: "),
        ("/proxies/nats/toxics", "", 400, "bad request body: EOF"),
        (
            "/proxies/nats/toxics",
            '{"type": "none", "stream": "sideways"}',
            400,
            "stream was invalid, can be either upstream or downstream",
        ),
        ("/proxies/nats/toxics", '{"name": "here", "type": "none"}', 400, "invalid toxic type"),
        ("/proxies/nats/toxics", "{}", 400, "invalid toxic type"),
        ("/proxies/nats/toxics", '{"type": "nats_none"}', 400, "invalid toxic type"),
        (
            "/proxies/nats/toxics",
            '{"name": "here", "type": "latency", "stream": "upstream", "attributes": {"latency": "x"}}',
            409,
            "toxic already exists",
        ),
        (
            "/proxies/nats/toxics",
            '{"type": "latency", "attributes": {"latency": "x"}}',
            400,
            "bad request body: json: cannot unmarshal string into Go struct field .latency of type int64",
        ),
        (
            "/proxies/nats/toxics",
            '{"type": "latency", "attributes": {"latency": 1.5}}',
            400,
            "bad request body: ",
        ),
        ("/proxies/nats/toxics", '{"type": "latency", "toxicity": "x"}', 400, "bad request body: "),
        (
            "/proxies/nats/toxics",
            '{"type": "nats_drop", "toxicity": 0.5, "attributes": {"probability": "x"}}',
            400,
            "bad request body: toxic: rule 'nats_drop_downstream': probability must be",
        ),
        (
            "/proxies/nats/toxics",
            '{"type": "packet_loss", "toxicity": 0.5, "attributes": {"loss_rate": [1]}}',
            400,
            "bad request body: toxic: rule 'packet_loss_downstream': probability must be",
        ),
        ("/proxies/nats/toxics/here", "{", 400, "bad request body: "),
        ("/proxies/nats/toxics/here", '{"attributes": {"latency": true}}', 400, "bad request body: "),
    ],
)
def test_errors(toxi: Toxi, path: str, body: str, status: int, error: str) -> None:
    toxi.make()
    toxi.call("POST", "/proxies/nats/toxics", {"name": "here", "type": "latency"})
    before = toxi.call("GET", "/proxies").json
    code, text = toxi.call("POST", path, body).error
    assert code == status
    assert text.startswith(error)
    assert toxi.call("GET", "/proxies").json == before


def test_bodies_are_read_as_go_reads_them(toxi: Toxi) -> None:
    body = '  {"NAME": "nats", "Upstream": "u:1", "lISTEN": "127.0.0.1:0", "enabled": null, "x": {}} rest ['
    answer = toxi.call("POST", "/proxies", body, Content_Type="text/html")
    assert (answer.status, answer.json["name"], answer.json["enabled"]) == (201, "nats", True)
    toxic = '{"type": "timeout", "attributes": null} {"type": "noop"}'
    assert toxi.call("POST", "/proxies/nats/toxics", toxic).json["attributes"] == {"timeout": 0}


def test_stream_in_any_case(toxi: Toxi) -> None:
    toxi.make()
    toxic = toxi.call("POST", "/proxies/nats/toxics", {"type": "noop", "stream": "UpStream"}).json
    assert (toxic["name"], toxic["stream"]) == ("noop_UpStream", "UpStream")


@pytest.mark.parametrize(
    "path", ["/not_found", "/", "/metrics", "/proxies/", "/proxies/a/toxics/b/c", "/version/"]
)
def test_unknown_paths(toxi: Toxi, path: str) -> None:
    answer = toxi.call("GET", path)
    assert (answer.status, answer.text) == (404, "404 page not found\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/version"),
        ("HEAD", "/version"),
        ("DELETE", "/proxies"),
        ("PUT", "/proxies/a"),
        ("GET", "/reset"),
        ("GET", "/populate"),
        ("PATCH", "/proxies/a/toxics"),
    ],
)
def test_wrong_methods(toxi: Toxi, method: str, path: str) -> None:
    answer = toxi.call(method, path)
    assert (answer.status, answer.text) == (405, "")


def test_browsers_are_refused(toxi: Toxi) -> None:
    answer = toxi.call("GET", "/proxies", User_Agent="Mozilla/5.0 (X11)")
    assert (answer.status, answer.text) == (403, "User agent not allowed\n")
    assert toxi.call("GET", "/proxies", User_Agent="toxiproxy-cli/2 Mozilla/5.0").status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8474"}, 200),
        ({"Host": "[::1]:8474"}, 200),
        ({"Host": "toxi.example"}, 200),
        ({"Host": "rebound.example:8474"}, 421),
        ({"Host": "10.0.0.1:8474"}, 421),
        ({"Host": "toxiproxy:8474"}, 421),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost", "Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], status: int) -> None:
    """By the names that they bring, whatever browser they say that they are."""
    with Toxi(hosts=["toxi.example"]) as server:
        answer = server.call("POST", "/reset", **headers)
        assert answer.status == (204 if status == 200 else status)
        assert server.call("GET", "/version", **headers).status == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("toxiproxy:8474", 200),
        ("172.17.0.1:8474", 200),
        ("[fd00::1]:8474", 200),
        ("host.docker.internal:8474", 200),
        ("toxiproxy.ci.svc.cluster.local", 200),
        ("localhost.evil.example", 421),
        ("rebound.example:8474", 421),
        ("10.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_a_server_for_a_network_has_the_names_of_one(host: str, status: int) -> None:
    with Toxi(listener=HttpListener(Address("0.0.0.0", 0))) as server:
        assert server.call("GET", "/version", Host=host).status == status


def test_each_answer_has_a_request_id(toxi: Toxi) -> None:
    calls = [("GET", "/proxies"), ("GET", "/none"), ("POST", "/version"), ("POST", "/proxies")]
    found = {toxi.call(*call).headers["x-toxiproxy-request-id"] for call in calls}
    assert len(found) == len(calls)


def test_an_upstream_that_is_no_address_closes_clients(toxi: Toxi) -> None:
    listen = toxi.make(upstream="no address at all")["listen"]
    host, _, port = listen.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as client:
        assert client.recv(1) == b""


def test_the_collection_has_those_that_run(toxi: Toxi) -> None:
    toxi.make(name="b")
    toxi.make(name="a")
    toxi.make(name="c", enabled=False)
    assert list(toxi.collection) == ["b", "a"]
    toxi.call("POST", "/proxies/b", {"enabled": False})
    assert list(toxi.collection) == ["a"]


# -- the server


def test_metrics_move_while_a_connection_is_open() -> None:
    with Toxi(metrics=True) as toxi, closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        listen = toxi.make(f"127.0.0.1:{port}")["listen"]
        with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2]))) as client:
            server, _ = listener.accept()
            server.sendall(b'INFO {"max_payload":1000}\r\n')
            said = client.recv(100)  # INFO as the proxy writes it
            text = toxi.call("GET", "/metrics").text
            server.close()
    labels = f'{{direction="downstream",listener="{listen}",proxy="nats",upstream="127.0.0.1:{port}"}}'
    assert f"toxiproxy_proxy_sent_bytes_total{labels} {len(said)}.0" in text
    assert "toxiproxy_proxy_received_bytes_total" in text


def test_a_warning_beyond_loopback() -> None:
    with Toxi(listener=HttpListener(Address("0.0.0.0", 0))) as toxi:
        ((level, text),) = toxi.reports
    assert level == "warning"
    assert "no authentication" in text


@pytest.mark.parametrize(("written", "name"), [("a?b", "a?b"), ("a#b", "a#b"), (r"a\ud800", "a\ufffd")])
def test_odd_names_are_found_again(toxi: Toxi, written: str, name: str) -> None:
    body = f'{{"name": "{written}", "upstream": "u:1", "listen": "127.0.0.1:0"}}'
    assert toxi.call("POST", "/proxies", body).json["name"] == name
    toxic = f'{{"name": "{written}", "type": "nats_drop", "attributes": {{"subject": "a"}}}}'
    assert toxi.call("POST", f"/proxies/{quote(name)}/toxics", toxic).json["name"] == name
    assert toxi.call("DELETE", f"/proxies/{quote(name)}/toxics/{quote(name)}").status == 204
    assert toxi.call("DELETE", f"/proxies/{quote(name)}").status == 204
