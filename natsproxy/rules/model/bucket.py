"""One token bucket, from which the native plane takes without Python, also in its threads (`_bucket.pyx`).

Both twins have the same interface; `NATSPROXY_PURE=1`, or a machine without a C compiler, chooses the one in
Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if not TYPE_CHECKING and os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.rules.model._bucket import Bucket
    except ImportError:  # not built: use the pure twin
        from natsproxy.rules.model._bucket_py import Bucket
else:
    from natsproxy.rules.model._bucket_py import Bucket

__all__ = ["Bucket"]
