"""Names for values that differ from one recording to the next: identifiers, server keys, times.

    names
      inbox: r8G668IODDjtMIW47EBioo
      quotes.acme: r8G668IODDjtMIW47EBiqg04f6

    client > PUB quotes.acme _INBOX.<inbox>.<quotes.acme>

So two recordings of one conversation differ in little but the values of names, and a reader sees which
request an answer belongs to.  A name comes from the subject of the first frame with the value, or of the
request that this frame answers, so that an added message changes no other names.

Names are substituted in finished lines, and undone before lines are parsed.  A frame that has `<name>` in its
own bytes is written with `\\x3c` instead.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from natsproxy.capture.text.frames import FrameText, dump_raw
from natsproxy.protocol.identifiers import find_inbox, is_nuid
from natsproxy.protocol.template import template
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import Op

_MOST: Final = 10_000  # names of a text, which bounds memory
_LOOKED_AT: Final = 64 << 10  # bytes of a frame
_STEM: Final = 48  # characters of a name, without the suffixes for kind and number
_VALUE: Final = re.compile(
    rb"(?<![0-9A-Za-z])(?:"
    rb"(?P<nuid>[0-9A-Za-z]{22})(?:[0-9a-f]{4})?"
    rb"|(?P<key>[NX][A-Z2-7]{55})"
    rb"|(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    rb"|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{16,64}"
    rb"|(?=[A-Z]*[0-9])[0-7][0-9A-HJKMNP-TV-Z]{25})"
    rb"|(?P<time>(?:19|20)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
    rb"|1[5-9]\d{8}(?:\.\d{2,9}|\d{3}(?:\d{3}(?:\d{3})?)?))"
    rb")(?![0-9A-Za-z])"
)
_TEXT_VALUE: Final = re.compile(_VALUE.pattern.decode(), re.ASCII)
_NAMED: Final = re.compile(r"<([\w.-]+)>", re.ASCII)
_UNLIKE_NAME: Final = re.compile(rb"[^0-9A-Za-z_.-]+|(?<=\.)[*>](?:\.|$)")


class Names:
    """The names of a text, by their value."""

    def __init__(self) -> None:
        self.by_value: dict[str, str] = {}
        self._taken: Counter[str] = Counter()
        self._known: set[str] = set()

    def learn(self, frame: Frame) -> None:
        """Name the values of a frame that have no name yet."""
        stem: str | None = None
        for found in _VALUE.finditer(frame.raw[:_LOOKED_AT]):
            value = found[0].decode()
            if value in self.by_value or len(self.by_value) >= _MOST:
                continue
            kind = found.lastgroup or ""
            if kind == "nuid" and not is_nuid(found["nuid"]):
                continue
            stem = stem or self._stem(frame)
            self._name(value, f"{stem}-{kind}" if kind in ("id", "time") else stem)

    def _name(self, value: str, stem: str) -> None:
        self._taken[stem] += 1
        name = stem if self._taken[stem] == 1 else f"{stem}-{self._taken[stem]}"
        if name in self._known:
            return self._name(value, stem)
        self._known.add(name)
        self.by_value[value] = name
        return None

    def _stem(self, frame: Frame) -> str:
        """Return the stem of a name from the subject of a frame."""
        if not frame.subject:
            return "server" if frame.op == Op.INFO else "client"
        answered = self.by_value.get(frame.subject.rpartition(b".")[2].decode(errors="replace"))
        if answered is not None:
            return answered[:_STEM]
        subject = template(frame.subject)
        if find_inbox(frame.subject) is not None:
            return "inbox"
        subject = subject.removeprefix(b"$JS.").removeprefix(b"API.").removesuffix(b".>")
        words = [word for word in subject.split(b".") if word not in (b"*", b">", b"")]
        return _UNLIKE_NAME.sub(b"-", b".".join(words)).decode().strip("-.")[:_STEM] or "message"

    def put_in(self, lines: FrameText, frame: Frame | None) -> FrameText:
        """Return the lines of a frame with values replaced by their names."""
        if not self.by_value:
            return lines
        if any(name in self._known for one in (lines.line, *lines.below) for name in _NAMED.findall(one)):
            assert frame is not None or lines.line == "raw"
            raw = dump_raw(frame.raw) if frame is not None else lines
            return FrameText(raw.line, [one.replace("<", "\\x3c") for one in raw.below])
        return FrameText(self._named(lines.line), [self._named(one) for one in lines.below])

    def _named(self, line: str) -> str:
        def name(found: re.Match[str]) -> str:
            known = self.by_value.get(found[0])
            return found[0] if known is None else f"<{known}>"

        return _TEXT_VALUE.sub(name, line)


def with_values(text: str, values: dict[str, str]) -> str:
    """Return a line with names replaced by their values."""
    if "<" not in text:
        return text
    return _NAMED.sub(lambda found: values.get(found[1], found[0]), text)
