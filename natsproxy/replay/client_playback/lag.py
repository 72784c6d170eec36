"""How far behind its schedule a replay is: each frame counted, in a table of fixed size."""

from __future__ import annotations

from typing import Final

_STEP: Final = 50_000
_STEPS: Final = 20_000


class Lag:
    """Counts frames by how late they went out.  last, worst: ns."""

    def __init__(self) -> None:
        self.last = self.worst = 0
        self._frames = 0
        self._counts: dict[int, int] = {}

    def add(self, lag: int, frames: int) -> None:
        """Count frames that went out `lag` ns behind their time."""
        self.last = lag
        self.worst = max(self.worst, lag)
        self._frames += frames
        step = min(lag // _STEP, _STEPS)
        self._counts[step] = self._counts.get(step, 0) + frames

    def percentile(self, share: float) -> int:
        """Return the lag in ns below which that share of the frames stayed; up to a second, to 50 us."""
        left = share * self._frames
        for step in sorted(self._counts):
            left -= self._counts[step]
            if left <= 0:
                return min((step + 1) * _STEP, self.worst) if step < _STEPS else self.worst
        return self.worst
