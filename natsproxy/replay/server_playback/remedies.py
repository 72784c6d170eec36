"""The option of the comparison that would accept a mismatch, in the words of its user."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final, NamedTuple

from natsproxy.replay.conversation.difference import ABSENT, Difference
from natsproxy.replay.conversation.generated_values import are_alike
from natsproxy.replay.conversation.matching import pattern
from natsproxy.wire.frames import Frame

_HEADER: Final = "header "


class Remedy(NamedTuple):
    """An option and its value."""

    key: str
    value: str

    def __str__(self) -> str:
        flag = self.key.replace("_", "-")
        return (
            f"accepted with {self.key}={json.dumps(self.value, ensure_ascii=False)} (marker, TOML) or "
            f"--{flag} {shlex.quote(self.value)} (pytest: --nats-{flag})"
        )


def remedy(recorded: Frame, live: Frame, difference: Difference | None, *, used: bool) -> Remedy | None:
    """Return the narrowest option under which a live frame matches a recorded one; None where there is none.

    difference: None for frames that agree: the recorded one was used, or belongs to another client.
    """
    subject = pattern(recorded.subject, live.subject)
    if difference is None:
        return Remedy("repeat", subject) if used else Remedy("match_on", "subject,headers,body")
    place = difference.place
    if difference.field == "headers" and place.startswith(_HEADER):
        return Remedy(f"{_treatment(difference)}_headers", place.removeprefix(_HEADER))
    if difference.field == "body":
        if place.startswith("/"):
            return Remedy(f"{_treatment(difference)}_json", f"{subject} {place}")
        return Remedy("ignore_bodies", subject)
    tokens = subject.split(".")
    if difference.field == "subject" and "*" in tokens[1:] and tokens[0] != "*":
        return Remedy("like_subjects", subject)
    return None


def _treatment(difference: Difference) -> str:
    ours, theirs = _text(difference.ours), _text(difference.theirs)
    return "like" if ABSENT not in (ours, theirs) and are_alike(ours, theirs) else "ignore"


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value
