"""Items to blocks: a builder gathers items on the traffic path, and seals them as one block.

There are two of them with one interface and the same bytes: `_block` (compiled from Cython) and `_builder_py`
(pure Python).  The compiled one is used where it was built; `NATSPROXY_PURE=1` or a machine without a C
compiler chooses the other, which does not know the first tokens of a block.  Both are always tested, against
each other.

A builder packs and counts items; joining, checksum, compression and the first tokens are left to the writer's
thread.  While it *drops*, it counts the items that it is given and keeps none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from natsproxy.capture.write._builder_py import BLOCK_SIZE, Missed, SealedBlock

COMPILED = False
"""True where the compiled twin is in use."""

if not TYPE_CHECKING and os.environ.get("NATSPROXY_PURE", "") in ("", "0"):
    try:
        from natsproxy.capture.write._block import BlockBuilder

        COMPILED = True
    except ImportError:  # not built: the pure twin serves
        from natsproxy.capture.write._builder_py import BlockBuilder
else:
    from natsproxy.capture.write._builder_py import BlockBuilder

__all__ = ["BLOCK_SIZE", "COMPILED", "BlockBuilder", "Missed", "SealedBlock"]
