"""The command that re-records a cassette, for the message of a run that differed from its recording.

A recording keeps the options that it is given, so the command gives those that the old one kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from natsproxy.replay.conversation.match_options import MatchOptions

ANY_SERVER: Final = "nats://HOST:PORT"


def option_flags(options: MatchOptions, given: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """Return the flags for options of the comparison, except those that are given in another way.

    given: those, as plain data.
    """
    words: list[str] = []
    for key, value in options.stored().items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            words += [] if given.get(key) == value else [f"{prefix}{'' if value else 'no-'}{name}"]
            continue
        known = given.get(key, ())
        left = [one for one in value if one not in known]
        if key == "match_on" and left:
            left = [",".join(value)]
        words += [f"{prefix}{name}={one}" for one in left]
    return words


def shell_line(words: Iterable[str]) -> str:
    """Return a command quoted for a shell."""
    return " ".join(one if one == ANY_SERVER else shlex.quote(one) for one in words)
