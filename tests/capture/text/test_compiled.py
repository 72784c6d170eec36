"""The binary form of a text, made in memory that does not follow its connections."""

from __future__ import annotations

import io
from pathlib import Path
from weakref import WeakSet

import pytest

from natsproxy.capture.filter.redact import Secrets
from natsproxy.capture.format.records import CloseRecord, OpenRecord
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text import compiled
from natsproxy.capture.text.writer import write_text
from natsproxy.wire.ops import C2S
from tests.kit.captures import MONO, Scribe, write


def test_a_connection_that_ended_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing that it has learned could be needed again."""
    scribe = Scribe()
    for conn in range(50):
        scribe.items.append(OpenRecord(conn, MONO, {}))
        secret = b"PUB $SYS.REQ.USER.AUTH _INBOX.1 1\r\nx\r\n" if conn in (3, 4) else b"PUB a 1\r\nx\r\n"
        scribe.frame(0, conn, C2S, secret)
        scribe.items.append(CloseRecord(conn, MONO, "", {}))
    text, alive, most = io.BytesIO(), WeakSet[Secrets](), 0

    class Seen(Secrets):
        def __init__(self) -> None:
            super().__init__()
            nonlocal most
            alive.add(self)
            most = max(most, len(alive))

    write_text(open_capture(write(tmp_path / "x.ncap", scribe.items)), text)
    text.seek(0)
    monkeypatch.setattr(compiled, "Secrets", Seen)
    assert compiled.compile_text(text, "x", io.BytesIO()) == 50
    assert most == 3
