"""Every call of toxiproxy-python: client.py PORT UPSTREAM."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable

from toxiproxy import Toxiproxy
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists


def fails(error: type[Exception], act: Callable[[], object]) -> None:
    """Raise AssertionError unless `act` raises the error."""
    try:
        act()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def connects(listen: str) -> bool:
    """Tell whether somebody listens."""
    host, _, port = listen.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


def main(port: int, upstream: str) -> None:
    """Make the calls."""
    server = Toxiproxy()
    server.update_api_consumer("127.0.0.1", port)
    assert server.running()
    assert json.loads(server.version()) == {"version": "2.12.0"}
    assert server.proxies() == {}

    proxy = server.create(upstream=upstream, name="nats")
    assert proxy.enabled
    assert (proxy.name, proxy.upstream) == ("nats", upstream)
    assert connects(proxy.listen)
    fails(ProxyExists, lambda: server.create(upstream=upstream, name="nats"))
    fails(ProxyExists, lambda: APIConsumer.post("/proxies", json={"name": "nats", "upstream": upstream}))
    assert server.get_proxy("nats").listen == proxy.listen
    assert server.get_proxy("other") is None
    off = server.create(upstream=upstream, name="off", enabled=False)
    assert not off.enabled
    assert sorted(server.proxies()) == ["nats", "off"]

    proxy.disable()
    assert not connects(proxy.listen)
    assert not server.get_proxy("nats").enabled
    proxy.enable()
    assert connects(proxy.listen)
    assert server.get_proxy("nats").listen == proxy.listen
    with proxy.down():
        assert not connects(proxy.listen)
    assert connects(proxy.listen)

    assert proxy.toxics() == {}
    proxy.add_toxic(type="latency", attributes={"latency": 2000, "jitter": 200})
    proxy.add_toxic(name="cut", type="bandwidth", stream="upstream", toxicity=0.5, attributes={"rate": 0})
    proxy.add_toxic(type="nats_drop", attributes={"subject": "orders.>", "every": 3})
    toxics = proxy.toxics()
    assert sorted(toxics) == ["cut", "latency_downstream", "nats_drop_downstream"]
    assert toxics["latency_downstream"].attributes == {"latency": 2000, "jitter": 200}
    assert (proxy.get_toxic("cut").stream, proxy.get_toxic("cut").toxicity) == ("upstream", 0.5)
    assert proxy.get_toxic("other") is None
    fails(InvalidToxic, lambda: proxy.add_toxic(type="none"))
    fails(InvalidToxic, lambda: proxy.add_toxic(type="latency", stream="sideways"))
    fails(ProxyExists, lambda: proxy.add_toxic(type="latency"))
    assert proxy.destroy_toxic("cut")
    fails(NotFound, lambda: proxy.destroy_toxic("cut"))
    assert server.reset()
    assert proxy.toxics() == {}
    assert server.get_proxy("off").enabled

    made = server.populate(
        [
            {"name": "nats", "upstream": "127.0.0.1:1", "listen": proxy.listen},
            {"name": "more", "upstream": upstream, "listen": "127.0.0.1:0"},
        ]
    )
    assert [one.name for one in made] == ["nats", "more"]
    assert server.get_proxy("nats").upstream == "127.0.0.1:1"
    fails(NotFound, lambda: APIConsumer.get("/not_found"))
    assert server.destroy(made[1])
    fails(NotFound, lambda: made[1].destroy())
    server.destroy_all()
    assert server.proxies() == {}
    print("all calls made")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
