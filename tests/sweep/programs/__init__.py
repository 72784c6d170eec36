"""Programs by which the sweep is judged: plain ones, as people write them, that know nothing of a proxy.

Each finds its server in NATS_URL, ends by itself, and exits with 0 if all went well.  A victim hangs or gets
wrong data under a fault of its own; a sound program gets over each fault, or fails loudly in its own time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from natsproxy.sweep.values import Verdict
from tests.kit import c, go
from tests.kit.node import MISSING as MISSING_NODE
from tests.kit.node import has_node, node_path
from tests.testing import zoo

HERE: Final = Path(__file__).parent


class Finding(NamedTuple):
    """What a sweep has to find.

    fault: a name of the sweep's faults, without its variant.  what: the role or op of the frame.
    """

    verdict: Verdict
    fault: str
    what: str


class Program(NamedTuple):
    """A program and what the sweep has to say of it.

    name: unique.  language: "python", "javascript", "go" or "c".  source: its file.  arguments: of its
    command line.  setup: arguments of `fill.py`, which makes the stream that it needs; () for none.
    finds: () for a sound program.  why: the sentence behind a finding, with the thread that knows it.
    """

    name: str
    language: str
    source: Path
    arguments: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    finds: tuple[Finding, ...] = ()
    why: str = ""

    @property
    def missing(self) -> str:
        """The reason why this machine cannot run it; "" if it can."""
        has, reason = _NEEDS[self.language]
        return "" if has() else reason

    def command(self) -> list[str]:
        """Return its command line; build it first where its language wants that."""
        return [*_START[self.language](self.source), *self.arguments]

    def setup_command(self) -> list[str]:
        """Return the command line that fills a fresh server for it; empty for none."""
        return [sys.executable, str(HERE / "fill.py"), *self.setup] if self.setup else []

    def environment(self, url: str) -> dict[str, str]:
        """Return the environment in which it runs, with the URL of its server."""
        node = {"NODE_PATH": node_path()} if self.language == "javascript" else {}
        return {**os.environ, **node, "NATS_URL": url}


def _always() -> bool:
    return True


_NEEDS: Final = {
    "python": (_always, ""),
    "javascript": (has_node, MISSING_NODE),
    "go": (go.has_go, go.MISSING),
    "c": (c.has_c, c.MISSING),
}
_START: Final[dict[str, Callable[[Path], list[str]]]] = {
    "python": lambda source: [sys.executable, str(source)],
    "javascript": lambda source: ["node", str(source)],
    "go": lambda source: [str(go.built(source))],
    "c": lambda source: [str(c.built(source))],
}

PYTHON, JAVASCRIPT, GO, C = HERE / "python", HERE / "javascript", HERE / "go", HERE / "c"
_PHOTOS = ("PHOTOS", "photos.new", "24", "200000")
_JOBS = ("JOBS", "jobs.new", "6", "2")
_LOG = ("LOG", "log.line", "12", "2")
_HUNG, _DEAF, _WRONG = Verdict.HUNG, Verdict.DEAF, Verdict.WRONG

VICTIMS: Final = (
    Program(
        "flush",
        "python",
        PYTHON / "flush.py",
        finds=(Finding(_DEAF, "late", "PONG"),),
        why="nats-py 2.16.0: a PONG behind the time-out of its flush() ends the task that reads",
    ),
    Program(
        "publish_async",
        "python",
        PYTHON / "publish_async.py",
        finds=(Finding(_HUNG, "drop", "publish-ack"), Finding(_HUNG, "cut", "publish-ack")),
        why="nats-py 2.16.0: publish_async_completed() waits for a lost ack for ever",
    ),
    Program(
        "upload",
        "python",
        PYTHON / "upload.py",
        finds=(Finding(_HUNG, "pause", "PUB"),),
        why="nats-py 2.16.0: a half-open link with unsent bytes is never given up (nats.py#671)",
    ),
    Program(
        "push-3.3.1",
        "javascript",
        JAVASCRIPT / "push.js",
        ("jetstream-3.3.1",),
        setup=_PHOTOS,
        finds=(Finding(_HUNG, "drop", "flow-reply"),),
        why="@nats-io/jetstream 3.3.1: a lost answer to flow control stops the consumer (nats.js#375)",
    ),
    Program(
        "import",
        "go",
        GO / "import.go",
        finds=(Finding(_HUNG, "drop", "publish-ack"), Finding(_HUNG, "cut", "publish-ack")),
        why="nats.go 1.22.1: PublishAsyncComplete() waits for a lost ack for ever (nats.go#1819)",
    ),
    Program(
        "ordered-forever",
        "python",
        PYTHON / "ordered.py",
        setup=_LOG,
        finds=(Finding(_HUNG, "cut", "delivery"),),
        why="nats-py 2.16.0: an ordered consumer that is cut at its first message gets heartbeats only",
    ),
    Program(
        "objects",
        "python",
        PYTHON / "objects.py",
        finds=(Finding(_HUNG, "cut", "delivery"),),
        why="nats-py 2.16.0: an object is read by an ordered consumer, with the same weakness",
    ),
    Program(
        "js-ordered",
        "javascript",
        JAVASCRIPT / "ordered.js",
        setup=_LOG,
        finds=(Finding(_HUNG, "cut", "delivery"), Finding(_HUNG, "drop", "delivery")),
        why="@nats-io/jetstream 3.4.0: an ordered consumer pulls on behind a lost end of the stream",
    ),
    Program(
        "go-ordered",
        "go",
        GO / "ordered.go",
        finds=(Finding(_HUNG, "cut", "delivery"), Finding(_HUNG, "drop", "delivery")),
        why="nats.go 1.22.1: an ordered consumer does not miss its first message",
    ),
    Program(
        "echo",
        "c",
        C / "echo.c",
        finds=(Finding(_WRONG, "cut", "MSG"),),
        why="libnats 3.4.1 with libuv: the INFO of the next connection ends a cut payload (nats.c#1007)",
    ),
)
"""Programs with a weakness."""

TWINS: Final = (
    Program("flush-deadline", "python", PYTHON / "flush.py", ("--deadline",)),
    Program("publish_async-deadline", "python", PYTHON / "publish_async.py", ("--deadline",)),
    Program("upload-small", "python", PYTHON / "upload.py", ("--small",)),
    Program("push-3.4.0", "javascript", JAVASCRIPT / "push.js", ("@nats-io/jetstream",), setup=_PHOTOS),
    Program("import-deadline", "go", GO / "import.go", ("-deadline", "2s")),
    Program("objects-deadline", "python", PYTHON / "objects.py", ("--deadline",)),
    Program("js-ordered-deadline", "javascript", JAVASCRIPT / "ordered.js", ("--deadline",), setup=_LOG),
    Program("go-ordered-deadline", "go", GO / "ordered.go", ("-deadline", "3s")),
    Program("echo-threads", "c", C / "echo.c", ("threads",)),
)
"""The victims without their weakness: of a mended version, or with a deadline."""

SOUND: Final = (
    Program("pull", "python", PYTHON / "pull.py", setup=_JOBS),
    Program("ask", "python", PYTHON / "ask.py"),
    Program("ordered", "python", PYTHON / "ordered.py", ("--deadline",), setup=_LOG),
    Program("work-queue", "python", PYTHON / "work_queue.py"),
    Program("settings", "python", PYTHON / "settings.py"),
    Program("group", "python", PYTHON / "group.py"),
    Program("submit", "python", PYTHON / "submit.py"),
    Program("count", "python", PYTHON / "count.py"),
    Program("js-pull", "javascript", JAVASCRIPT / "pull.js", setup=_JOBS),
    Program("js-ask", "javascript", JAVASCRIPT / "ask.js"),
    Program("js-submit", "javascript", JAVASCRIPT / "submit.js"),
    Program("go-ask", "go", GO / "ask.go"),
    Program("go-pull", "go", GO / "pull.go", setup=_JOBS),
)
"""Programs that get over each fault, or fail loudly in their own time."""

_ZOO: Final = Path(zoo.__file__).parent / "python"
ZOO: Final = tuple(
    Program(f"zoo-{name}", "python", _ZOO / f"{name}.py")
    for name in ("crew", "seats", "tally", "catalog", "desk")
)
"""Sound programs of the zoo that need nobody else; `crew` is its work queue, with an ack_wait of 30 s."""
