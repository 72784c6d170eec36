"""Counts of matches: those of a rule, and those of the substreams of its random numbers.

The native plane counts in the compiled ones without Python (`_gates.pyx`), also from its threads.  Both twins
have the same interface; `NATSPROXY_PURE=1`, or a machine without a C compiler, chooses the one in Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if not TYPE_CHECKING and os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.rules.model._gates import Count, RecentCounts
    except ImportError:  # not built: use the pure twin
        from natsproxy.rules.model._counts_py import Count, RecentCounts
else:
    from natsproxy.rules.model._counts_py import Count, RecentCounts

__all__ = ["Count", "RecentCounts"]
