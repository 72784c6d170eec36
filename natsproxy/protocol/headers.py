"""Header blocks of HPUB and HMSG: reading, the server's look-up, and edits that keep every other byte.

    NATS/1.0[ <code>[ <description>]] CRLF  { <name>:[ws]<value> CRLF }  CRLF

nats-server forwards a block unread (only its length counts), so any bytes may come.  Three readers differ:

1. `parse` is as lenient as the clients: it takes LF alone as a line end, a missing blank line, a line without
   a colon, a missing version line.  `odd` lists the deviations from the grammar.
2. `get` is the server's look-up: the name byte for byte, after CRLF and right before `:`; spaces (not TABs)
   are skipped, and the first one counts.
3. `trace_span` is the server's look-up of `Nats-Trace-Dest` alone, which has rules of its own.

A rule that guards the server must read as the server does (2, 3); a report for people reads as clients do.
`HeaderEditor` works on the bytes: a change touches the lines of that name and nothing else.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from re import Pattern, compile
from typing import Final

from natsproxy.protocol.subjects import has_wildcard, is_valid_strict

VERSION_LINE: Final = b"NATS/1.0"
CRLF: Final = b"\r\n"
BLANKS: Final = b" \t"
_NAME: Final = re.compile(rb"[!-9;-~]+")
_BARE: Final = re.compile(rb"NATS/1\.0(?:[ \t]+)?\r\n\r\n")
_LINES: Final = 256  # per step


@dataclass(frozen=True, slots=True)
class Headers:
    """The contents of a header block.

    code: the status ("503") or `b""`.  description: the text after it.
    pairs: name and value in wire order, case kept, blanks around the value removed.
    odd: the deviations from the grammar, one clause each; empty for a proper block.
    """

    code: bytes
    description: bytes
    pairs: tuple[tuple[bytes, bytes], ...]
    odd: tuple[str, ...] = ()

    @property
    def status(self) -> int | None:
        """The status code as a number; None without one, and for one that is not a number."""
        return int(self.code) if self.code.isdigit() else None

    def first(self, name: bytes) -> bytes | None:
        """Return the first value of `name` (case counts), None without one."""
        return next((value for key, value in self.pairs if key == name), None)

    def all(self, name: bytes) -> tuple[bytes, ...]:
        """Return every value of `name` in wire order (case counts)."""
        return tuple(value for key, value in self.pairs if key == name)


NO_HEADERS: Final = Headers(b"", b"", ())


def parse(block: bytes) -> Headers:
    """Read a header block.  Never fails: `odd` lists the deviations."""
    if not block:
        return NO_HEADERS
    odd: list[str] = []
    lines, ended = _lines(block, odd)
    code, description = _status(lines, odd)
    pairs: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            odd.append("a line without a colon")
            continue
        if _NAME.fullmatch(name) is None:
            odd.append("a name with other than printable ASCII")
        pairs.append((name, value.strip(BLANKS)))
    if not ended:
        odd.append("no blank line at the end")
    return Headers(code, description, tuple(pairs), tuple(dict.fromkeys(odd)))


def _lines(block: bytes, odd: list[str]) -> tuple[list[bytes], bool]:
    """Split a block into its lines up to the blank one, and tell whether there was a blank one."""
    lines: list[bytes] = []
    *ended, rest = block.split(b"\n")
    for at, line in enumerate(ended, 1):
        if line.endswith(b"\r"):
            line = line[:-1]
        else:
            odd.append("a line that ends in LF alone")
        if not line:
            if rest or at < len(ended):
                odd.append("bytes after the blank line")
            return lines, True
        lines.append(line)
    if rest:
        odd.append("a last line without a line end")
        lines.append(rest)
    return lines, False


def _status(lines: list[bytes], odd: list[str]) -> tuple[bytes, bytes]:
    """Return code and description of the version line; a missing one is replaced by an empty line."""
    if not lines or not lines[0].startswith(VERSION_LINE):
        odd.append("no NATS/1.0 line")
        if not lines or b":" in lines[0]:
            lines.insert(0, b"")
        return b"", b""
    rest = lines[0][len(VERSION_LINE) :]
    if rest and rest[:1] not in (b" ", b"\t"):
        odd.append("no blank after NATS/1.0")
    fields = rest.strip(BLANKS)
    code, description = fields[:3], fields[3:].strip(BLANKS)  # nats.go takes the first three bytes, too
    if code and not (code.isdigit() and len(code) == 3):
        odd.append("a status that is not three digits")
    return code, description


def get(block: bytes, name: bytes) -> bytes | None:
    """Return the value that nats-server would see for `name`, None without one.

    name: its exact bytes; case counts.  Only the first occurrence counts, spaces before the value are
    skipped, TABs are not, and a line that does not start after CRLF is invisible (`server/client.go`).
    """
    found = span(block, name)
    return None if found is None else block[found[0] : found[1]]


def span(block: bytes, name: bytes) -> tuple[int, int] | None:
    """Return the start and the end of the value that `get` returns, None without one."""
    at = block.find(CRLF + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    while block[start : start + 1] == b" ":
        start += 1
    end = block.find(CRLF, start)
    return start, len(block) if end < 0 else end


TRACE_DEST: Final = b"Nats-Trace-Dest"


def trace_span(block: bytes) -> tuple[int, int] | None:
    """Return the start and the end of the subject that nats-server publishes traces to, None without one.

    The server (since 2.11) reads this header by other rules than the rest (`server/msgtrace.go`): only after
    a bare version line; a name is everything up to the next colon; a value of blanks alone does not count.
    """
    *_, last = trace_steps(block)
    return last


def trace_steps(block: bytes) -> Iterator[tuple[int, int] | None]:
    """Do the work of `trace_span` in steps: yield None after each, and the result last."""
    at, lines = len(VERSION_LINE + CRLF), 0
    if TRACE_DEST not in block or not block.startswith(VERSION_LINE + CRLF):
        yield None
        return
    while True:
        colon = block.find(b":", at)
        end = -1
        if colon >= 0:
            start = colon + 1
            while block[start : start + 1] in (b" ", b"\t"):
                start += 1
            end = block.find(CRLF, start)
        if end < 0:
            yield None
            return
        stop = start + len(block[start:end].rstrip(BLANKS))
        if stop > start and block[at:colon] == TRACE_DEST:
            yield start, stop
            return
        at = end + 2
        lines += 1
        if lines % _LINES == 0:
            yield None


def trace_subject(block: bytes) -> bytes:
    """Return the subject to which the server publishes the trace of a message, `b""` for none.

    The server checks this subject before the message's own.  To one that is not valid it publishes nothing,
    and then it neither checks nor traces.
    """
    return traced_subject(block, trace_span(block))


def traced_subject(block: bytes, found: tuple[int, int] | None) -> bytes:
    """Return the trace subject from the result of `trace_span`."""
    subject = b"" if found is None else block[found[0] : found[1]]
    return subject if is_valid_strict(subject) and not has_wildcard(subject) else b""


def build(
    pairs: list[tuple[bytes, bytes]] | tuple[tuple[bytes, bytes], ...] = (),
    *,
    code: bytes = b"",
    description: bytes = b"",
) -> bytes:
    """Return a header block.

    Raises ValueError where a name or a value would break the block (line ends; a colon or blank in a name).
    """
    status = b" ".join(part for part in (VERSION_LINE, code, description) if part)
    if b"\r" in status or b"\n" in status:
        raise ValueError("a status line holds no line end")
    return b"".join([status, CRLF, *(header_line(name, value) for name, value in pairs), CRLF])


def header_line(name: bytes, value: bytes) -> bytes:
    """Return the line of a header.  Raises ValueError as `build` does."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a header name: printable ASCII without a colon")
    if b"\r" in value or b"\n" in value:
        raise ValueError(f"the value of header {name!r} holds a line end")
    return name + b": " + value + CRLF


def is_bare(block: bytes) -> bool:
    """Tell whether a proper block has neither a status nor a header."""
    return _BARE.fullmatch(block) is not None


def set_header(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return `block` with `name` set to `value`; see `HeaderEditor`.  Raises ValueError as `build` does."""
    editor = HeaderEditor(block, frozenset((name,)))
    while not editor.read_on():
        pass
    editor.set(name, header_line(name, value))
    while not editor.write_on():
        pass
    return editor.block()


PART: Final = 256
"""Lines or values per call: less than a tenth of a millisecond."""


class HeaderBlock:
    """A header block that is read once, in steps, for all rules that ask for its headers `names`.

    A block may have a megabyte of short lines, and any number of rules may want some header of it.  It is
    read as `parse` reads it, from where the last call stopped; only the values of `names` are kept.  The
    caller says how much to do per call.

    It is read to its end: nats-server's look-up does not stop at the blank line.  What stands behind that is
    there for those who forbid a header (`has`), and not for those who ask for one (`all_match`).
    """

    __slots__ = ("_answers", "_at", "_behind", "_block", "_looked", "_names", "_shown", "_values", "status")

    def __init__(self, block: bytes, names: Collection[bytes]) -> None:
        end = block.find(b"\n") + 1
        line = block[:end] if end else block
        self.status = parse(line).status
        self._block = block
        self._names = names
        # A first line that is not a version line is a header if it has a colon; otherwise it is ignored.
        self._at = len(line) if line.startswith(VERSION_LINE) or b":" not in line else 0
        if not names:
            self._at = len(block)
        self._behind = line in (b"\n", b"\r\n")  # the blank line
        self._shown: set[bytes] = set()  # the names before it
        self._values: dict[bytes, list[bytes]] = {}
        self._answers: dict[tuple[bytes, str | None, bool], bool] = {}
        self._looked: dict[tuple[bytes, str | None, bool], int] = {}

    def read_on(self, lines: int = PART) -> bool:
        """Read up to `lines` more lines; return whether all were read."""
        block, at, size, names = self._block, self._at, len(self._block), self._names
        while at < size:
            if not lines:
                self._at = at
                return False
            lines -= 1
            end = block.find(b"\n", at)
            line = block[at:] if end < 0 else block[at : end - 1 if block[end - 1] == 0x0D else end]
            at = size if end < 0 else end + 1
            self._behind = self._behind or not line
            name, colon, value = line.partition(b":")
            if colon and name in names:
                self._values.setdefault(name, []).append(value.strip(BLANKS))
                if not self._behind:
                    self._shown.add(name)
        self._at = size
        return True

    def look_on(self, name: bytes, glob: str | None, values: int = PART, *, every: bool = False) -> bool:
        """Compare up to `values` more values of a header with a pattern; return whether the answer is known.

        every: the answer of `all_match`, else that of `has`.
        """
        key = name, glob, every
        if key in self._answers:
            return True
        found, at = self._values.get(name, []), self._looked.get(key, 0)
        if glob is None:
            self._answers[key] = name in self._shown if every else bool(found)
        elif any(_fits(value, glob) is not every for value in found[at : at + values]):
            self._answers[key] = not every
        elif at + values >= len(found):
            self._answers[key] = every and name in self._shown
        self._looked[key] = at + values
        return key in self._answers

    def has(self, name: bytes, glob: str | None) -> bool:
        """Tell whether a header is there with a value that matches a shell pattern (None: any value)."""
        return self._answer(name, glob, every=False)

    def all_match(self, name: bytes, glob: str | None) -> bool:
        """Tell whether a header is there, and each of its values matches a shell pattern."""
        return self._answer(name, glob, every=True)

    def _answer(self, name: bytes, glob: str | None, *, every: bool) -> bool:
        while not self.read_on():
            pass
        while not self.look_on(name, glob, every=every):
            pass
        return self._answers[name, glob, every]


_WINDOW: Final = 4096
"""Bytes that an editor reads per call: half a millisecond if each line is short and one that it wants."""


class HeaderEditor:
    """Sets and removes the headers `names` of one block, which is read once for all changes, in steps.

    A block may have a megabyte of lines, and any number of rules may change it: a change costs the same
    whatever the block is, and the new block is made once.  Call `read_on` until all is read, then make the
    changes, then call `write_on` until all is written.  Names count byte by byte, and have no colon.  The
    version line is no header, nor is anything from the first line on that has no bytes but CR.  Every byte
    that is not of a changed line is kept.  Only what stands behind that blank line is cut off where it holds
    a changed name: no client reads it, but nats-server's look-up does.  Memory: 24 bytes per line of a wanted
    name.
    """

    __slots__ = (
        "_added",
        "_at",
        "_behind",
        "_block",
        "_closed",
        "_end",
        "_ends",
        "_first",
        "_names",
        "_out",
        "_owners",
        "_place",
        "_put",
        "_read",
        "_repeated",
        "_rest",
        "_starts",
        "_written",
    )

    def __init__(self, block: bytes, names: frozenset[bytes]) -> None:
        start = block.find(b"\n") + 1 if block.startswith(VERSION_LINE) else 0
        # A line is found by the LF before it, the first one as well.
        self._block = block if start else b"\n" + block
        self._at = start - 1 if start else 0
        self._end = self._rest = -1  # of the lines, and of the blank one, once they are known
        self._read = False
        self._behind: set[bytes] = set()  # the wanted names behind it
        self._names = names
        # The wanted lines, and for each the place of the first line of its name.
        self._starts, self._ends, self._owners = array("Q"), array("Q"), array("Q")
        self._first: dict[bytes, int] = {}
        self._repeated: set[int] = set()
        # The changes: by place, what stands there instead of all lines of that name, and lines at the end.
        self._put: dict[int, bytes] = {}
        self._added: dict[bytes, bytes] = {}
        self._closed = False  # with a line at the end, the block needs a blank one
        self._out: list[bytes | memoryview] = []
        self._place = 0
        self._written = 0 if start else 1

    def read_on(self) -> bool:
        """Read some more lines; return whether all were read."""
        if self._read:
            return True
        block, at, names = self._block, self._at, self._names
        # A part ends before an LF, or at the end of the block: CRs up to there are a blank line.
        stop = block.find(b"\n", at + _WINDOW)
        if stop < 0:
            self._read, stop = True, len(block)
        starts, ends, owners, first_of = self._starts, self._ends, self._owners, self._first
        for found in _wanted(names).finditer(block, at, stop):
            name = found[1]
            if name is None and self._end < 0:
                self._end, self._rest = found.start() + 1, found.end() + 1
            if name not in names:
                continue
            if self._end >= 0:
                self._behind.add(name)
                continue
            start, end = found.start() + 1, block.find(b"\n", found.end()) + 1 or len(block)
            first = first_of.setdefault(name, len(starts))
            if first in self._repeated and owners[-1] == first and ends[-1] == start:
                ends[-1] = end  # a neighbour: one piece
                continue
            if first != len(starts):
                self._repeated.add(first)
            starts.append(start)
            ends.append(end)
            owners.append(first)
        self._at = stop
        if self._read and self._end < 0:
            self._end = stop
        return self._read

    def change(self, remove: Iterable[bytes], put: Mapping[bytes, bytes]) -> bool:
        """Remove headers, then set others (name and line); return whether that changes the block."""
        effect = False
        for name in remove:
            effect |= self.remove(name)
        for name, line in put.items():
            effect |= self.set(name, line)
        return effect

    def remove(self, name: bytes) -> bool:
        """Remove the lines of `name`; return whether there were any."""
        place, behind = self._first.get(name), self._cut_off(name)
        if place is not None and self._put.get(place) != b"":
            self._put[place] = b""
            return True
        return self._added.pop(name, None) is not None or behind

    def _cut_off(self, name: bytes) -> bool:
        """Cut off what stands behind the blank line if that holds `name`; return whether it did."""
        if name not in self._behind:
            return False
        self._behind.clear()
        self._block = self._block[: self._rest]
        return True

    def set(self, name: bytes, line: bytes) -> bool:
        """Give `name` one line, as `header_line` returns it; return whether that changes the block.

        The first line of that name is replaced and further ones are removed; without one, the line is added
        before the blank one.  An empty block (a frame without headers) becomes a whole one.
        """
        place, behind = self._first.get(name), self._cut_off(name)
        if place is not None and (before := self._put.get(place)) != b"":
            if before is None and place not in self._repeated:
                before = self._block[self._starts[place] : self._ends[place]]
                if self._closed and not before.endswith(b"\n"):
                    before += CRLF  # the last line, which an earlier change ended
            self._put[place] = line
            return behind or line != before
        before = self._added.get(name)
        self._added[name] = line
        self._closed = True
        return behind or line != before

    def write_on(self, lines: int = PART) -> bool:
        """Write the new block up to `lines` more wanted lines; return whether all is written."""
        block: bytes | memoryview = self._block
        if len(block) > _WINDOW:
            block = memoryview(block)  # its parts are copied once, when they are joined
        out, at, last = self._out, self._written, len(self._starts)
        stop = min(self._place + lines, last)
        for place in range(self._place, stop):
            owner = self._owners[place]
            line = self._put.get(owner)
            if line is None:
                continue
            if at < self._starts[place]:
                out.append(block[at : self._starts[place]])
            if line and owner == place:
                out.append(line)
            at = self._ends[place]
        self._place, self._written = stop, at
        if stop < last:
            return False
        if at < self._end:
            out.append(block[at : self._end])
        self._write_end()
        return True

    def _write_end(self) -> None:
        """Write what stands behind the last header."""
        out, rest = self._out, self._block[self._end :]
        if self._closed:
            if not out and not rest:
                out.append(VERSION_LINE + CRLF)
            elif out and out[-1][-1:] != b"\n":
                out.append(CRLF)
            out += self._added.values()
            rest = rest or CRLF
        out.append(rest)

    def block(self) -> bytes:
        """Return the new block."""
        return b"".join(self._out)


@lru_cache(maxsize=256)
def _wanted(names: frozenset[bytes]) -> Pattern[bytes]:
    """Return what matches the LF before a line that may have one of these names, and before a blank line.

    A line that begins with another byte than all of them is skipped without a match.
    """
    first = b"".join(re.escape(byte) for byte in sorted({(name + b":")[:1] for name in names}))
    longest = max(map(len, names))
    return re.compile(rb"\n(?:(?=[%s])([^:\n]{0,%d}):|\r*(?=\n|\Z))" % (first, longest))


def _fits(value: bytes, glob: str) -> bool:
    return _matcher(glob).match(value.decode("utf-8", "replace")) is not None


@lru_cache(maxsize=1024)
def _matcher(glob: str) -> Pattern[str]:
    return compile(translate(glob))
