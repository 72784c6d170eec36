"""The page in a browser, before a running proxy: what a person sees and does, and clients that talk."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from natsproxy.testing import NatsServer
from tests.kit.browser import Browser
from tests.kit.process import ProxyProcess

ROWS = "[...document.querySelectorAll('.row.frame')].sort((a, b) => a.index - b.index)"
"""The rows in sight, and a few around them, from above."""
TOP = """(() => {
  const list = document.querySelector('.list'), edge = list.getBoundingClientRect().top;
  const row = %s.find((one) => one.getBoundingClientRect().bottom > edge + 1);
  return [row.row.n, Math.round(row.getBoundingClientRect().top - edge)];
})()"""


class Client:
    """A NATS client on a plain socket."""

    def __init__(self, port: int, name: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._seen = b""
        connect = {"verbose": False, "headers": True, "no_responders": True, "name": name, "lang": "test"}
        self.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
        self.ping()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send frames."""
        self.sock.sendall(data)

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Publish a message."""
        self.send(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def until(self, mark: bytes) -> bytes:
        """Return what comes until a mark."""
        while mark not in self._seen:
            data = self.sock.recv(1 << 16)
            assert data, f"the connection was closed after {self._seen[-200:]!r}"
            self._seen += data
        found, _, self._seen = self._seen.partition(mark)
        return found

    def ping(self) -> None:
        """Wait until the server has seen everything."""
        self.send(b"PING\r\n")
        self.until(b"PONG\r\n")

    def ended(self) -> bool:
        """Wait for the end of the connection."""
        while self.sock.recv(1 << 16):
            pass
        return True


class Site:
    """The page of one proxy.  url: of the page."""

    def __init__(self, browser: Browser, proxy: ProxyProcess, url: str) -> None:
        self.browser = browser
        self.proxy = proxy
        self.url = url

    def visit(self, view: str = "frames", width: int = 1280, height: int = 800) -> None:
        """Show a view of the page, anew, and wait for its stream or its first answer."""
        self.browser.visit(f"{self.url}/#{view}", width, height)
        self.until("document.querySelector('.proxy .dot.good')")
        if view.startswith("frames"):
            self.until("document.querySelector('[data-stream=open]')")

    def run(self, script: str) -> Any:
        """Return the value of a script."""
        return self.browser.run(script)

    def until(self, script: str) -> Any:
        """Wait for a value that is true."""
        return self.browser.until(script, 30)

    def text(self, selector: str) -> str:
        """Return the text of an element; "" where there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the API, as the page does."""
        given = {"method": method, "headers": {"Content-Type": "application/json"}}
        if body is not None:
            given["body"] = json.dumps(body)
        ask = f"fetch({json.dumps(f'/v1/proxies/main/{path}')}, {json.dumps(given)})"
        return self.run(f"{ask}.then((a) => a.text()).then((t) => t ? JSON.parse(t) : null)")

    def press(self, text: str, within: str = "main") -> None:
        """Press the last button with a text."""
        found = (
            f"[...document.querySelectorAll('{within} button')].findLast((one) => one.innerText === '{text}')"
        )
        self.until(found)
        self.run(f"{found}.click()")

    # -- frames

    def filter(self, **values: str) -> None:
        """Write texts into the filter, as a person does."""
        for name, value in values.items():
            self.run(f"document.querySelector('.filter').elements[{list(FIELDS).index(name)}].focus()")
            self.run("document.activeElement.select?.()")
            self.browser.type(value)

    def subjects(self) -> list[str]:
        """Return the subjects of the rows."""
        return list(self.run(f"{ROWS}.map((one) => one.querySelector('.subject').textContent)"))

    def wait_for(self, count: int, subject: str) -> None:
        """Wait until the list has as many frames of a subject."""
        told = f"(row) => row.querySelector('.subject').textContent === {json.dumps(subject)}"
        self.until(f"{ROWS}.filter({told}).length >= {count}")

    def click_row(self, *texts: str) -> None:
        """Click on the last row that has the texts."""
        has = " && ".join(f"one.textContent.includes({json.dumps(text)})" for text in texts)
        where = self.until(
            f"(() => {{ const one = {ROWS}.findLast((one) => {has});"
            " one?.scrollIntoView({block: 'nearest'}); return one?.getBoundingClientRect().toJSON(); })()"
        )
        self.browser.click_at(where["x"] + where["width"] / 2, where["y"] + where["height"] / 2)

    def top(self) -> list[int]:
        """Return the number of the first frame in sight, and its distance from the list's edge."""
        return list(self.run(TOP % ROWS))


FIELDS = ("subject", "op", "direction", "client", "role", "conn", "text")
"""The controls of the filter in their order."""


@contextmanager
def site(browser: Browser, folder: Path, *flags: str) -> Iterator[Site]:
    """Run a server and a proxy with the page."""
    with ExitStack() as stack:
        server = stack.enter_context(NatsServer(jetstream=True))
        options = ("--admin", "127.0.0.1:0", "--admin-captures", str(folder / "captures"), *flags)
        proxy = stack.enter_context(ProxyProcess(server.url, *options))
        yield Site(browser, proxy, proxy.wait_for(lambda line: line["event"] == "admin listens")["url"])
