"""The keys of connections: by the name of their client, and by the template of that name.

`app/2` is the second client of the name "app" to introduce itself.  `worker-*/3` is the third one whose name
differs from the others in generated parts only.  A client without a name has the ordinal of its connection.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from natsproxy.protocol.template import name_template

_MOST_NAMES: Final = 10_000
"""Names that are remembered: clients choose them, so they are hostile."""


class ClientKeys:
    """The clients of one run of the proxy, counted by their names."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._alike: Counter[str] = Counter()

    def of(self, name: str, ordinal: int) -> tuple[str, str]:
        """Count a client in; return the key of its connection, and that of its name's template."""
        return _counted(self._names, name, ordinal), _counted(self._alike, name_template(name), ordinal)

    def known(self, key: str, ordinal: int) -> str:
        """Count in a client that has its key already; return the key of its name's template."""
        name, _, number = key.rpartition("/")
        if not name or not number.isdecimal():
            return key
        self._names[name] = max(self._names[name], int(number))
        return _counted(self._alike, name_template(name), ordinal)


def _counted(names: Counter[str], name: str, ordinal: int) -> str:
    if not name or (len(names) >= _MOST_NAMES and name not in names):
        return f"#{ordinal}"
    names[name] += 1
    return f"{name}/{names[name]}"
