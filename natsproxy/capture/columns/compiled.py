"""The compiled decoder of blocks where it is in use; None where the pure twin serves."""

from __future__ import annotations

import os
from typing import Any

decoder: Any = None
if os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.capture.columns import _columns as decoder  # type: ignore[attr-defined, no-redef, unused-ignore]
    except ImportError:  # not built: the pure twin serves
        decoder = None
