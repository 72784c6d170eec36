"""The twins of scanner, recorder, decoder and plane, compared on frames of the last operation of the table.

`added_operation.py` runs it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from natsproxy.capture.columns import arrow
from natsproxy.capture.columns.table import FIELDS
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.wire import _interest_py, _scanner_py
from natsproxy.wire.frames import Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, OPS, Op
from natsproxy.wire.scanner import Interest, Scanner
from tests.capture.columns.test_table import refs
from tests.capture.filter.test_selection import joined, record, written
from tests.kit.captures import write
from tests.net.test_planes import Conversation, Piece, on_all

XPUB = OPS[-1].op
RAWS = [
    b"PUB a 2\r\nhi\r\n",
    b"XPUB x 2\r\nho\r\n",
    b"xpub  x r 5\r\nXPUB \r\n",
    b"PUB a 2\r\nhi\r\n",
    b"PING\r\n",
]
DATA = b"".join(RAWS)


def scanned(scanner: _scanner_py.Scanner, cut: int) -> list[object]:
    """Return what a scanner says of the frames, which come in two reads."""
    found: list[object] = []
    for part in (DATA[:cut], DATA[cut:]):
        scanner.feed(part)
        while (segment := scanner.next()) is not None:
            found.append((type(segment).__name__, *segment))
    return [*found, scanner.ordinal, list(scanner.counts)]


def compare_scanners() -> None:
    for clauses in (
        (),
        (Clause(1 << XPUB, Need.LINE, (b"x",)),),
        (Clause(1 << XPUB | Op.PUB.bit, Need.PAYLOAD),),
    ):
        for cut in range(len(DATA)):
            one = scanned(Scanner(C2S, Interest(clauses)), cut)
            other = scanned(_scanner_py.Scanner(C2S, _interest_py.Interest(clauses)), cut)
            assert one == other, (clauses, cut, one, other)


def compare_records() -> None:
    run = record(C2S, 1, RAWS, 0)
    for selection in (
        Selection(),
        Selection(subjects=(b"b",)),
        Selection(payloads=(PayloadPolicy(b">", "drop"),)),
        Selection(payloads=(PayloadPolicy(b">", "hash"),)),
    ):
        blocks = [
            written(make(RecordingFilter(selection)), [run])
            for make in (BlockBuilder, _builder_py.BlockBuilder)
        ]
        assert joined(blocks[0]) == joined(blocks[1]), selection
        assert blocks[0].summary[5:7] == blocks[1].summary[5:7]  # frames and ops
        if selection == Selection():  # the pure builder knows no first tokens
            assert blocks[0].summary[9] == [b"a", b"x"]


def compare_columns() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x.ncap", [record(C2S, 1, RAWS, 0)])
        for file, ref in refs(path):
            one, other = (make(file, ref, list(FIELDS)) for make in (arrow.batch, arrow.pure_batch))
            assert one.equals(other)
            assert one.column("op").to_pylist() == ["PUB", "XPUB", "XPUB", "PUB", "PING"]


def compare_planes() -> None:
    script = Conversation([[Piece(C2S, raw, True)] for raw in (DATA, *RAWS) * 2], "client", (b"", b""))
    for rules in (
        "",
        '[[rules]]\nname = "r"\nkind = "drop"\nop = "XPUB"\n',
        '[[rules]]\nname = "r"\nkind = "rewrite"\nprefix = "t"\n',
        '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "x"\n',
    ):
        twin, *natives = on_all(script, rules, True)
        for native in natives:
            assert (native.received, native.counts) == (twin.received, twin.counts), rules
            assert native.frames == twin.frames, rules


def compare() -> None:
    compare_scanners()
    compare_records()
    compare_columns()
    compare_planes()
