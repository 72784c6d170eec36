"""A cassette beside the real server: how long a request takes, there and back.

An asker and an answerer, raw sockets in lockstep, each run with inboxes of its own; a request passes the
server twice.  It is recorded once and then measured in interleaved rounds, in fresh processes, on

- a real nats-server,
- `natsproxy cassette run`, both of them live, or the asker alone (the answers then come from the capture),
- `natsproxy.testing.cassette`, in the process of the test, where a proxy for faults and frames stands before
  the player.

Shown are medians over the rounds, and their ratio to the real server.  Loopback only.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.testing import TestProxy, cassette
from tests.kit.servers import NatsServer

ROUNDS = 5
COUNT = 2_000
WARM = 100  # requests that are not counted
NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
Percentiles = tuple[float, float]


class Client:
    """A connection whose reads end at a line end."""

    def __init__(self, url: str, name: str) -> None:
        host, port = url.removeprefix("nats://").split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=15)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.say(b'CONNECT {"verbose":false,"headers":true,"name":"%b"}\r\n' % name.encode())
        self.flush()

    def say(self, data: bytes) -> None:
        """Send at once."""
        self.sock.sendall(data)

    def flush(self) -> None:
        """Wait until the server has handled all that was said."""
        self.say(b"PING\r\n")
        seen = b""
        while b"PONG\r\n" not in seen:
            seen += self.sock.recv(65536)

    def hear(self) -> list[bytes]:
        """Return the fields of the next message's line, and its payload; answer a PING on the way."""
        data = b""
        while data.count(b"\r\n") < 2:
            data += self.sock.recv(65536)
            if b"PING\r\n" in data:
                data = data.replace(b"PING\r\n", b"")
                self.say(b"PONG\r\n")
        line, payload, _ = data.split(b"\r\n")
        return [*line.split(), payload]


def ask(ask_url: str, answer_url: str | None) -> Percentiles:
    """Return p50 and p99 of the requests, in microseconds; no answer_url: somebody else answers."""
    inbox = f"_INBOX.{secrets.token_hex(11)}".encode()
    answerer = None if answer_url is None else Client(answer_url, "answerer")
    if answerer is not None:
        answerer.say(b"SUB ask 1\r\n")
        answerer.flush()
    asker = Client(ask_url, "asker")
    asker.say(b"SUB %b.* 1\r\n" % inbox)
    asker.flush()
    took = []
    for number in range(WARM + COUNT):
        began = time.perf_counter()
        asker.say(b"PUB ask %b.%d 5\r\n%05d\r\n" % (inbox, number, number))
        if answerer is not None:
            *_, reply, _, body = answerer.hear()
            answerer.say(b"PUB %b 5\r\n%b\r\n" % (reply, body))
        assert asker.hear()[-1] == b"%05d" % number
        took.append(time.perf_counter() - began)
    for client in (asker, answerer):
        if client is not None:
            client.sock.close()
    ordered = sorted(took[WARM:])
    return ordered[len(ordered) // 2] * 1e6, ordered[len(ordered) * 99 // 100] * 1e6


def run_asker(*before: str, answer_url: str = "", **environment: str) -> Percentiles:
    """Ask in a process of its own, with `before` in front of its command; answer_url: "" for the same one."""
    done = subprocess.run(
        [*before, sys.executable, __file__, "ask", answer_url],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    p50, p99 = json.loads(done.stdout)
    return p50, p99


def in_a_test(capture: Path) -> Percentiles:
    """Ask the cassette of a test, in this process."""
    with cassette(capture, strict=True) as tape:
        return ask(tape.url, tape.url)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server:
        both, alone = Path(folder) / "both.ncap", Path(folder) / "alone.ncap"
        with TestProxy(server.url, record=both) as proxy:
            run_asker(NATS_URL=proxy.url)
        with TestProxy(server.url, record=alone) as proxy:
            run_asker(NATS_URL=proxy.url, answer_url=server.url)
        play = (NATSPROXY, "cassette", "run", "--strict")
        paths: dict[str, Callable[[], Percentiles]] = {
            "nats-server": partial(run_asker, NATS_URL=server.url),
            "cassette, both live": partial(run_asker, *play, str(both), "--"),
            "cassette, asker alone": partial(run_asker, *play, str(alone), "--", answer_url="none"),
            "cassette in a test": partial(in_a_test, both),
        }
        found: dict[str, list[Percentiles]] = {name: [] for name in paths}
        for _ in range(ROUNDS):
            for name, measure in paths.items():
                found[name].append(measure())
    medians = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)]
        for name, rounds in found.items()
    }
    base = medians["nats-server"]
    print(f"{'request and reply, µs':<26}{'p50':>8}{'p99':>8}{'of the server':>18}")
    for name, (p50, p99) in medians.items():
        print(f"{name:<26}{p50:>8.0f}{p99:>8.0f}{p50 / base[0]:>10.2f} / {p99 / base[1]:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        url = os.environ["NATS_URL"]
        print(json.dumps(ask(url, None if sys.argv[2] == "none" else sys.argv[2] or url)))
    else:
        main()
