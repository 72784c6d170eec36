"""A row in a table of options: flags, files and other forms of an option are made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    read: returns the typed value of a text or a TOML value; raises ValueError with the end of a sentence that
    begins with the option's name.  default: as a user would write it, or None; a bool makes it a flag.
    many: the option may be given several times.  metavar: the placeholder in `--help`; `a|b` lists the words
    that are valid, for completion.  secret: the option names what holds a secret.  Its value may be the
    secret itself by mistake, and is shown to nobody unless it can be opened.
    """

    name: str
    read: Callable[[Any], Any]
    default: str | bool | None
    help: str
    many: bool = False
    required: bool = False
    metavar: str = "TEXT"
    secret: bool = False

    @property
    def key(self) -> str:
        """The name as an identifier: `record_flush` for `record-flush`."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """True if the option is only on or off, and takes no value."""
        return isinstance(self.default, bool)
