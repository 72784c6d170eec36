"""Statements and the frames that prove them: plain data."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

Finding = Literal["found", "cannot say"]
FOUND: Final = "found"
CANNOT_SAY: Final = "cannot say"
_NO_RULES: Final = ("", "proxy", "unsent")
"""Causes that are no rule: none, the proxy's own doing, and a connection that ended before its frame left."""


class ProofFrame(NamedTuple):
    """A frame of a recording.

    capture: the path of the recording, as given.  connection: as `--conn` takes it.  direction: "c2s" or
    "s2c".  ordinal: its number as it arrived at the proxy; of a frame that the proxy made, as it left.
    t: ns since the start of the recording.  text: its control line, and its status if it has one.
    rule: the rule (or `proxy`) that dropped, made or changed it; `unsent` where its connection ended first;
    "" for a frame that passed.
    """

    capture: str
    connection: str
    direction: str
    ordinal: int | None
    t: int
    text: str
    rule: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the fields as an object of JSON."""
        return self._asdict()


class Statement(NamedTuple):
    """A check's judgement on a recording.

    check: its name.  verdict: "found", or "cannot say" where the recording is too partial; the sentence then
    has the reason.  frames: the proof, in order.  clients: the names of the clients that it is about, of
    unnamed ones the numbers of their connections.
    """

    check: str
    verdict: Finding
    sentence: str
    frames: tuple[ProofFrame, ...] = ()
    clients: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """True if something is wrong."""
        return self.verdict == FOUND

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that dropped, made or changed frames of the proof."""
        return tuple(dict.fromkeys(one.rule for one in self.frames if one.rule not in _NO_RULES))

    def facts(self) -> dict[str, Any]:
        """Return an object of JSON."""
        return {
            **self._asdict(),
            "frames": [frame.facts() for frame in self.frames],
            "clients": list(self.clients),
            "rules": list(self.rules),
        }
