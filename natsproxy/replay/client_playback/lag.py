"""The lag of a replay behind its schedule: a histogram of frames of fixed size."""

from __future__ import annotations

from typing import Final

_BUCKET_NS: Final = 50_000
_BUCKETS: Final = 20_000


class Lag:
    """Counts frames by the time (ns) that they were sent too late.  last, worst: ns."""

    def __init__(self) -> None:
        self.last = self.worst = 0
        self._frames = 0
        self._counts: dict[int, int] = {}

    def add(self, lag: int, frames: int) -> None:
        """Count frames that were sent `lag` ns behind their time."""
        self.last = lag
        self.worst = max(self.worst, lag)
        self._frames += frames
        bucket = min(lag // _BUCKET_NS, _BUCKETS)
        self._counts[bucket] = self._counts.get(bucket, 0) + frames

    def percentile(self, share: float) -> int:
        """Return the lag in ns below which that share of the frames stayed, exact to 50 us up to a second."""
        left = share * self._frames
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return min((bucket + 1) * _BUCKET_NS, self.worst) if bucket < _BUCKETS else self.worst
        return self.worst
