"""A real browser for tests: headless Chromium, driven through its debugging pipe.

Two pipes, JSON between them, each message ended by a NUL.  Pages are looked at as a person would: at a given
size and scheme, by the text of the document after its scripts ran, and by the colours of its pixels, which
the browser itself counts (on a blank page, since the page under test allows no images).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 120
"""Seconds that an answer may take, on a busy machine."""
LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, pipe in enumerate(pipes, 3):
    os.dup2(pipe, fd)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from descriptor 3 and writes to 4."""
COUNT = """
(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d"), counts = new Map();
  [canvas.width, canvas.height] = [image.width, image.height];
  pen.drawImage(image, 0, 0);
  for (const pixel of new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer)) {
    counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  }
  return [...counts].map(([pixel, n]) => [[pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255], n]);
})()
"""
_WRONG = ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
_CODES = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "End": 35, "Home": 36}
Colour = tuple[int, int, int]


class Browser:
    """One Chromium with two tabs: the page under test, and a blank one that counts pixels.

    before: words before its command, as `nice`.
    """

    def __init__(self, profile: Path, *before: str) -> None:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip(f"no browser here: none of {', '.join(NAMES)} is installed")
        reading, self._out = os.pipe()
        answers, writing = os.pipe()
        command = [*before, sys.executable, "-c", LAUNCH, str(reading), str(writing), found, *FLAGS]
        with (profile.parent / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--user-data-dir={profile}", "about:blank"],
                pass_fds=(reading, writing),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(reading)
        os.close(writing)
        self._answers = os.fdopen(answers, "rb")
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._blank, self._page = self._tab(), self._tab()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._out)
        self._answers.close()

    def tell(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if not method.startswith("Target."):
            message["sessionId"] = session or self._page
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, path: Path, theme: str, width: int, *, scheme: str = "light") -> None:
        """Show a page, whole, at a width in CSS pixels; theme goes behind its #."""
        self.visit(f"{path.as_uri()}#{theme}", width, scheme=scheme)
        self.size(width, self.run("document.documentElement.scrollHeight"))
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def visit(self, url: str, width: int, height: int = 800, *, scheme: str = "light") -> None:
        """Go to a URL, by way of a blank page, and wait until it is loaded."""
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.size(width, height)
        for place in ("about:blank", url):
            self.events.clear()
            self.tell("Page.navigate", url=place)
            while not any(event["method"] == "Page.loadEventFired" for event in self.events):
                self.events.append(self._next())

    def run(self, script: str) -> Any:
        """Return the value of a script in the page, as JSON does."""
        return self._run(self._page, script)

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """Wait until the value of a script is a true one (or a node), and return it."""
        deadline = time.monotonic() + seconds
        while not (
            value := self.run(f"Promise.resolve({script}).then((value) => value instanceof Node || value)")
        ):
            assert time.monotonic() < deadline, f"not in time: {script}"
            time.sleep(0.02)
        return value

    def press(self, key: str, text: str = "", code: int = 0) -> None:
        """Press and release a key.  text: the letters that it writes."""
        given: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code or _CODES.get(key, 0)}
        self.tell("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **given)
        self.tell("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text: str) -> None:
        """Write a text into what has the focus."""
        self.tell("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click on the middle of the first element of a selector, with the mouse."""
        find = f"document.querySelector({json.dumps(selector)})"
        box = self.run(f"(({find}).scrollIntoViewIfNeeded(), ({find}).getBoundingClientRect().toJSON())")
        self.click_at(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def click_at(self, x: float, y: float) -> None:
        """Click on a place of the page."""
        for kind in ("mousePressed", "mouseReleased"):
            self.tell("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, x=x, y=y)

    def shot(self, path: Path) -> None:
        """Write what is in sight to a PNG."""
        path.write_bytes(base64.b64decode(self.tell("Page.captureScreenshot")["data"]))

    def picture(self, selector: str = "html") -> Counter[Colour]:
        """Return the colours of an element's pixels, with how many there are of each."""
        box = self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        box = {name: box[name] for name in ("x", "y", "width", "height")}
        png = self.tell("Page.captureScreenshot", clip={**box, "scale": 1}, captureBeyondViewport=True)
        return Counter({tuple(rgb): n for rgb, n in self._run(self._blank, COUNT % png["data"])})

    def complaints(self, own: str = "file:") -> list[dict[str, Any]]:
        """Return errors of scripts, refusals of the policy, dialogs, and requests that go elsewhere.

        own: the beginning of URLs that may be asked for.
        """
        wrong = [event for event in self.events if event["method"] in _WRONG]
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return wrong + [one for one in sent if not one["params"]["request"]["url"].startswith((own, "data:"))]

    def _tab(self) -> str:
        tab = self.tell("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.tell("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        return session

    def size(self, width: int, height: int) -> None:
        """Give the page a size in CSS pixels."""
        size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **size)

    def _run(self, session: str, script: str) -> Any:
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.tell("Runtime.evaluate", session, **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            more = os.read(self._answers.fileno(), 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        raw, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(raw)
        return answer
