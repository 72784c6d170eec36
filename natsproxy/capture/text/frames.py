"""A frame as a line, with its headers and its payload in the lines below it.

    HPUB orders.new _INBOX.a1.b2
      Trace-Id: 17
      | {"qty": 3}

The sizes on the wire follow from the lines, so a payload can be edited.  A frame that would not
round-trip byte for byte (odd spacing, other line ends) is `raw`: its bytes with escapes.

Readers raise ValueError with the reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from natsproxy.capture.text.payload import dump_escaped, dump_payload, load_payload
from natsproxy.protocol.headers import CRLF, VERSION_LINE
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import BY_TOKEN, OPS, Op

RAW: Final = "raw"
REMARK: Final = "* "
_PAYLOAD: Final = ("|", "\\ ", "= ", "json ")
_SIZES: Final = {"size", "header_size"}
_IN_LINES: Final = frozenset(spec.op for spec in OPS if spec.gap == "any")
"""Ops whose arguments are one text: on their line, or below it like a payload where they do not fit there."""
_FORMS: Final = {
    spec.op: {sum(field not in _SIZES for field in form): form for form in spec.forms.values()}
    for spec in OPS
}
"""The fields of each op by their number, sizes not counted."""


class FrameText(NamedTuple):
    """A frame: the line, and the lines below it without their indentation."""

    line: str
    below: list[str]


def leaves_empty(frame: Frame) -> bool:
    """Tell whether a frame lacks a field, and has it as an empty one on the wire."""
    words = _words(frame)
    if frame.op in _IN_LINES or len(words) == max(_FORMS[frame.op]):
        return False
    return _line(frame.op, words, True, frame) == frame.line


def dump_frame(frame: Frame, *, padded: bool = False, pretty: bool = True) -> FrameText:
    """Return a frame as lines.

    padded: frames of this op write missing fields as empty ones.  pretty: long JSON gets a line per member.
    """
    try:
        words = [word.decode() for word in _words(frame)]
        headers = _header_lines(frame.headers)
    except ValueError:
        return dump_raw(frame.raw)
    if frame.op in _IN_LINES:
        lines = _with_arguments(frame.op, frame.args)
    else:
        lines = FrameText(
            " ".join([frame.op.label, *words]), [*headers, *dump_payload(frame.body, pretty=pretty)]
        )
    try:
        same = all(map(str.isprintable, words)) and load_frame(*lines, padded=padded) == frame.raw
    except ValueError:
        same = False
    return lines if same else dump_raw(frame.raw)


def _with_arguments(op: Op, args: bytes) -> FrameText:
    try:
        text = args.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and text == text.strip():
        return FrameText(f"{op.label} {text}", [])
    return FrameText(op.label, dump_payload(args, pretty=False))


def dump_raw(data: bytes) -> FrameText:
    """Return bytes other than a frame as lines."""
    return FrameText(RAW, dump_escaped(data))


def load_frame(line: str, below: list[str], *, padded: bool = False) -> bytes:
    """Return the wire bytes of a frame."""
    if line == RAW:
        return load_payload(below)
    token, *words = line.encode().split(b" ")
    op = BY_TOKEN.get(token)
    if op is None:
        raise ValueError(f"{token.decode()[:20]!r} is not an operation")
    if op in _IN_LINES:
        return _load_arguments(op, line.encode()[len(token) + 1 :], below)
    if len(words) not in _FORMS[op] or not all(words):
        raise ValueError(f"{op.label} is followed by {_expected(op)}")
    count = next((place for place, one in enumerate(below) if one.startswith(_PAYLOAD)), len(below))
    body = load_payload(below[count:])
    if below and not OPS[op].payload:
        raise ValueError(f"{op.label} has no payload")
    headers = _header_block(below[:count]) if count or OPS[op].headers else b""
    if count and not OPS[op].headers:
        raise ValueError(f"{op.label} has no headers (HPUB and HMSG have)")
    payload = headers + body
    shape = Frame(b"", 0, 0, 0, op, header_size=len(headers), size=len(payload))
    return _line(op, words, padded, shape) + (payload + CRLF if OPS[op].payload else b"")


def _load_arguments(op: Op, args: bytes, below: list[str]) -> bytes:
    if args and below:
        raise ValueError(f"the arguments of {op.label} are on its line or below it, not both")
    args = args or load_payload(below)
    if b"\n" in args or b"\r" in args:
        raise ValueError(f"the arguments of {op.label} are one line")
    return encode.info(args) if op == Op.INFO else OPS[op].token + b" " + args + CRLF


def _expected(op: Op) -> str:
    if not any(_FORMS[op]):
        return "nothing on its line"
    forms = (_fields(op, count) for count in _FORMS[op])
    return " or ".join(" ".join(form).upper().replace("ARGS", "MAX") for form in forms)


def _words(frame: Frame) -> list[bytes]:
    """Return the fields on the line of a frame, without sizes."""
    if frame.op in _IN_LINES:
        return []
    return [value for field in _fields(frame.op, max(_FORMS[frame.op])) if (value := getattr(frame, field))]


def _fields(op: Op, count: int) -> list[str]:
    """Return the fields of that form of an op, without sizes."""
    return [field for field in _FORMS[op][count] if field not in _SIZES]


def _line(op: Op, words: list[bytes], padded: bool, frame: Frame) -> bytes:
    """Return the control line; padded: in its longest form, with empty fields in place of missing ones."""
    values = dict(zip(_fields(op, len(words)), words, strict=True))
    form = _FORMS[op][max(_FORMS[op]) if padded else len(words)]
    fields = [b"%d" % getattr(frame, one) if one in _SIZES else values.get(one, b"") for one in form]
    return b" ".join([OPS[op].token, *fields]) + CRLF


def _header_lines(block: bytes) -> list[str]:
    """Return the lines of a header block.  Raises ValueError for one that would not round-trip."""
    if not block:
        return []
    first, *lines = block.decode().split("\r\n")
    if lines[-2:] != ["", ""] or "" in lines[:-2]:
        raise ValueError("a header block without its blank line")
    lines = lines[:-2] if first == VERSION_LINE.decode() else [first, *lines[:-2]]
    for line in lines:
        if not line.isprintable() or line != line.strip() or line.startswith((*_PAYLOAD, REMARK, "#")):
            raise ValueError("a header that does not fit on a line")
    return lines


def _header_block(lines: list[str]) -> bytes:
    first = VERSION_LINE.decode()
    if lines and lines[0].startswith(first):
        first, *lines = lines
    for line in lines:
        if ":" not in line:
            raise ValueError(
                f"{line[:60]!r} is neither a header (Name: value) nor a payload line (|, \\, = or json)"
            )
    return b"".join(line.encode() + CRLF for line in (first, *lines, ""))
