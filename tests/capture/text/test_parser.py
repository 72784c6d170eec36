"""Texts that people write and edit, and texts that nobody should have written."""

from __future__ import annotations

import io
import random
import re
import tracemalloc
from pathlib import Path

import pytest

from natsproxy.capture.format.records import KINDS, CloseRecord, Flags, Frames, Item, OpenRecord, Preamble
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.compiled import compile_text
from natsproxy.capture.text.parser import TextParser
from natsproxy.capture.text.statements import FIRST_LINE, VERBS
from natsproxy.capture.text.writer import write_text
from natsproxy.errors import CaptureError, UnreadableCapture
from natsproxy.wire.ops import C2S
from tests.kit.captures import Scribe, write

RECORDINGS = Path(__file__).parents[3] / "recordings"
PAGE = (RECORDINGS / "TEXT.md").read_text(encoding="utf-8")
HEAD = f"{FIRST_LINE}\nconnection a\na opened\n"


def items(text: str | bytes) -> list[Item]:
    raw = text if isinstance(text, bytes) else text.encode()
    return [item for _, item in TextParser(io.BytesIO(raw), "x.nats.txt").items()]


def data(text: str) -> bytes:
    """Return the bytes of all frames."""
    return b"".join(bytes(item.data) for item in items(HEAD + text) if isinstance(item, Frames))


def test_sizes_follow_from_what_stands_below() -> None:
    assert data("a > PUB orders\n  | hello\n") == b"PUB orders 5\r\nhello\r\n"
    assert data("a > HPUB o r\n  K: v\n  | é\n") == b"HPUB o r 18 20\r\nNATS/1.0\r\nK: v\r\n\r\n\xc3\xa9\r\n"
    assert data("a < HMSG o 1\n  NATS/1.0 503\n") == b"HMSG o 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert (
        data('a > PUB o\n  json spaced {\n    "a": [1,\n      2.0]\n  }\n')
        == b'PUB o 15\r\n{"a": [1, 2.0]}\r\n'
    )
    assert data('a > PUB o\n  json {"a" : "b, c: d"}\n') == b'PUB o 16\r\n{"a":"b, c: d"}\r\n'.replace(
        b"16", b"15"
    )
    assert data("a > PUB o\n  = AAEC\n  \\ \\x03\\n\\\\\n") == b"PUB o 6\r\n\x00\x01\x02\x03\n\\\r\n"
    assert data("a > PUB o\n  | two\n  |\n  | lines\n") == b"PUB o 10\r\ntwo\n\nlines\r\n"


def test_numbers_follow_from_the_order() -> None:
    """So a frame can be added, or taken away, without a change of others."""
    found = items(HEAD + "a > PING\na > PUB x\na < PONG\n@ +2ms\na > PING\n")
    assert [(i.in_first, i.out_first, i.in_t) for i in found if isinstance(i, Frames)] == [
        (0, 0, 0),
        (1, 1, 0),
        (0, 0, 0),
        (2, 2, 2_000_000),
    ]


def test_line_ends_of_windows_and_comments_mean_nothing() -> None:
    text = HEAD + "# why\n\na > PUB x\n  | y\n"
    assert items(text) == items(text.replace("\n", "\r\n"))


def test_a_text_that_declares_no_connection_has_those_that_it_names() -> None:
    first = f"{FIRST_LINE}\n"
    found = items(first + "a > PING\nb > PING\na > PUB x\n")
    assert [item.conn for item in found if isinstance(item, Frames)] == [1, 2, 1]
    for line in ("opened\n", "a b > PING\n", "gap > PING\n", "recording > PING\n", "a\n"):
        with pytest.raises(CaptureError, match="line 2"):
            items(first + line)


WRONG = {
    "a > PUB\n": (4, "PUB is followed by SUBJECT or SUBJECT REPLY"),
    "a > PUB x y z\n": (4, "PUB is followed by"),
    "a > PUB x\n  hello\n": (4, "'hello' is neither a header"),
    "a > PUB x\n  K: v\n": (4, "PUB has no headers (HPUB and HMSG have)"),
    "a > PUB x\n  json {1}\n": (4, "not JSON"),
    "a > PUB x\n  \\ \\q\n": (4, "not an escape"),
    "a > PUB x\n  = A\n": (4, "not Base64"),
    "a > PUB x\n  | y\n  K: v\n": (4, "'K: v' is not a payload line"),
    "a > MSG x 1\n": (4, "c2s"),
    "a > SUB x x x x\n": (4, "SUB is followed by SUBJECT SID or SUBJECT QUEUE SID"),
    "a > PING\n  | x\n": (4, "PING has no payload"),
    "a > NOP\n": (4, "'NOP' is not an operation"),
    "a > raw\n  \\ PING\\r\\nPING\\r\\n\n": (4, "2 frames, not one"),
    "a > raw\n  \\ PIN\n": (4, "not a NATS frame"),
    "a < INFO\n  \\ {\\r\\n}\n": (4, "one line"),
    "a < INFO {}\n  | {}\n": (4, "on its line or below it"),
    "a ? PING\n": (4, "a connection is followed by one of > FRAME"),
    "b > PING\n": (4, "'b' is not a connection"),
    "connection a\n": (4, "connection a is already declared"),
    "connection a b\n": (4, "not a label"),
    "@ later\n": (4, "not an offset such as +1.5ms"),
    "@ +1.5ns\n": (4, "not an offset"),
    "@ +9999999999999999999s\n": (4, "beyond what a clock shows"),
    "@ +1s 2026-13-01T00:00:00Z\n": (4, "does not exist"),
    "@ +1s today\n": (4, "not a time such as"),
    "a > PING\n  * in: -1\n": (4, "in: not a number"),
    "a > PING\n  * out: 1.5\n": (4, "out: not a number"),
    "a > PING\n  * flags: LOST\n": (4, "flags: CUT, TRUNCATED"),
    "a > PING\n  * extra: 1\n": (4, "extra: not a map"),
    "a > PING\n  * colour: red\n": (4, "'colour' is unknown here"),
    "a > PING\n  * cause: x\n  * cause: x\n": (4, "'cause' is given twice"),
    "a opened\n  client\n": (4, "not a line such as key: value"),
    "a opened\n  client: [\n": (4, "not JSON"),
    "a opened\n  client: " + "[" * 100_000 + "\n": (4, "not JSON"),
    "recording\n": (4, "recording must come once, before"),
    "names\n  x: y\n": (4, "names must come once, before"),
    "a > opaque x\n": (4, "opaque: not a number"),
    " a > PING\n": (4, "indented by two blanks"),
    "\ta > PING\n": (4, "indented by two blanks"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_named_with_its_line(text: str) -> None:
    number, reason = WRONG[text]
    with pytest.raises(CaptureError) as caught:
        items(HEAD + text)
    assert str(caught.value).startswith(f"x.nats.txt: line {number}: ")
    assert reason in str(caught.value)


def test_other_versions_and_other_files_are_refused() -> None:
    with pytest.raises(UnreadableCapture, match="upgrade natsproxy"):
        items("natsproxy text 2\n")
    with pytest.raises(CaptureError, match="not the text of a capture"):
        items("hello\n")
    with pytest.raises(CaptureError, match="line 2: not UTF-8"):
        items(FIRST_LINE.encode() + b"\n\xff\n")
    with pytest.raises(CaptureError, match="line 2: it is indented"):
        items(f"{FIRST_LINE}\n  | x\n")
    with pytest.raises(CaptureError, match="line 2: x: not a text"):
        items(f"{FIRST_LINE}\nnames\n  x: 1\n")
    with pytest.raises(CaptureError, match="line 2: recorder"):
        items(f"{FIRST_LINE}\nrecording\n  recorder: xyz\n")


PARTS = [
    "  ",
    "* ",
    "| ",
    "\\ ",
    "= ",
    "json ",
    "@ ",
    "a > ",
    "\x00",
    "{",
    '"',
    "\\x",
    "é",
    "9" * 30,
    "connection ",
    "\n",
    "rules",
]


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*-v1.1.ncap")), ids=lambda path: path.stem)
def test_damaged_texts_are_read_or_refused(path: Path) -> None:
    out = io.BytesIO()
    write_text(open_capture(path), out)
    whole = out.getvalue().decode()
    rng = random.Random(1)
    refused = []
    for _ in range(60):
        at = rng.randrange(len(whole))
        damaged = whole[:at] + rng.choice(PARTS) + whole[at + rng.choice([0, 1, 3, 40]) :]
        try:
            compile_text(io.BytesIO(damaged.encode()), "x.nats.txt", io.BytesIO())
        except CaptureError as error:
            refused.append(str(error))
    assert 5 < len(refused) < 60
    assert all(
        re.match(r"x\.nats\.txt: line \d+: |x\.nats\.txt: this is not the text", one) for one in refused
    )


def test_secrets_written_by_hand_go_no_further() -> None:
    text = (
        HEAD
        + 'a > CONNECT\n  | {"pass": "s3cr3t"}\na preamble\n'
        + '  connect: {"$bytes": "CONNECT {\\"pass\\":\\"s3cr3t\\"}\\r\\n"}\n'
    )
    assert b"s3cr3t" in text.encode()
    out = io.BytesIO()
    compile_text(io.BytesIO(text.encode()), "x.nats.txt", out)
    assert b"CONNECT" in out.getvalue()
    assert b"s3cr3t" not in out.getvalue()


def test_connections_have_labels_of_their_own(tmp_path: Path) -> None:
    """Whatever their clients call themselves."""
    scribe = Scribe()
    names = ["shop", "shop", "gap", "x y\\n", "", "connection"]
    for conn, name in enumerate(names, 1):
        scribe.frame(conn, conn, C2S, b'CONNECT {"name":"%b"}\r\n' % name.encode())
    out = io.BytesIO()
    write_text(open_capture(write(tmp_path / "x.ncap", scribe.items)), out)
    labels = re.findall(r"(?m)^(.*) > CONNECT", out.getvalue().decode())
    assert labels == ["shop", "shop-2", "gap-2", "x-y", "conn-5", "connection-2"]


def test_memory_does_not_follow_the_text(tmp_path: Path) -> None:
    scribe = Scribe()
    for number in range(400):
        scribe.frame(number, 1, C2S, b"PUB x 50000\r\n%b\r\n" % (b"y" * 50_000))
    path, text = write(tmp_path / "x.ncap", scribe.items, per_block=20), tmp_path / "x.nats.txt"
    tracemalloc.start()
    try:
        with text.open("wb") as out:
            write_text(open_capture(path), out)
        with text.open("rb") as file, (tmp_path / "y.ncap").open("wb") as out:
            assert compile_text(file, text, out) == 400
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < text.stat().st_size / 2


def test_a_text_that_was_edited_is_read_anew(tmp_path: Path) -> None:
    """Though its size is the same, and the clock of its file system as well."""
    path = tmp_path / "x.nats.txt"
    for word in ("one", "two", "one"):
        path.write_text(f"{HEAD}a > PUB x\n  | {word}\n")
        assert [item.data for _, item in open_capture(path).items() if isinstance(item, Frames)] == [
            b"PUB x 3\r\n%b\r\n" % word.encode()
        ]


# -- recordings/TEXT.md


def test_the_example_of_the_page_is_a_text() -> None:
    (example,) = re.findall(r"```\n(natsproxy text.*?)```", PAGE, re.DOTALL)
    assert [type(item) for item in items(example)] == [
        OpenRecord,
        Frames,
        Frames,
        Frames,
        Frames,
        Frames,
        CloseRecord,
    ]
    assert (
        b'HPUB quotes.new 26 55\r\nNATS/1.0\r\nTrace-Id: 17\r\n\r\n{"name":"acme","price":42.50}\r\n'
        in data(example.split("client: 127.0.0.1:38486\n")[1].replace("service ", "a "))
    )


def test_the_page_names_all_statements_and_flags() -> None:
    assert PAGE.startswith(f"# The text form of a capture, version {FIRST_LINE.split()[-1]}\n")
    statements = re.findall(r"(?m)^\| `([^`]+)`", PAGE.split("## Frames")[0])
    assert set(VERBS.values()) <= {word for line in statements for word in line.split()}
    assert set(VERBS) == set(KINDS) - {Frames} - {type(items(HEAD + "a > opaque 1\n")[-1])}
    assert {OpenRecord, Preamble} < set(VERBS)
    assert Flags.__members__.keys() >= set(re.findall(r"\b(?:CUT|REDACTED)\b", PAGE))
