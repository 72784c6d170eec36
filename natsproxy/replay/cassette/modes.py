"""The names of the record modes.  (Light: the pytest plugin imports it in every run.)"""

from __future__ import annotations

from typing import Final, Literal, get_args

Mode = Literal["none", "once", "new_episodes", "all", "rewrite"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
