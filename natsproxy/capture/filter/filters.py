"""The user's filters: places whose values never reach a disk.  (`scrub.py` applies them.)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from natsproxy.protocol.places import Place


@dataclass(frozen=True, slots=True)
class Filters:
    """The places of an application's secrets; empty: none.

    headers: globs of names.  json: pointers.  bodies: patterns of subjects whose payloads are secret.
    subjects: patterns whose wildcards stand for secret tokens.
    """

    headers: tuple[str, ...] = ()
    json: tuple[Place, ...] = ()
    bodies: tuple[bytes, ...] = ()
    subjects: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.headers or self.json or self.bodies or self.subjects)

    def described(self) -> dict[str, list[str]]:
        """Return the filters as plain data, without those that are empty."""
        given = {
            "filter_headers": list(self.headers),
            "filter_json": [str(place) for place in self.json],
            "filter_bodies": _texts(self.bodies),
            "filter_subjects": _texts(self.subjects),
        }
        return {name: value for name, value in given.items() if value}


def _texts(patterns: tuple[bytes, ...]) -> list[str]:
    return [pattern.decode("utf-8", "surrogateescape") for pattern in patterns]


NO_FILTERS: Final = Filters()
