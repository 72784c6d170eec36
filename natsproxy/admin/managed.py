"""A proxy under a name, as the HTTP APIs know it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from natsproxy.admin.firing_log import FiringLog
from natsproxy.admin.live_frames import LiveFrames
from natsproxy.admin.statistics import Statistics
from natsproxy.events import Notice
from natsproxy.net.clock import now_ns
from natsproxy.net.proxy import Proxy


@dataclass(frozen=True)
class ManagedProxy:
    """A proxy with its name; the APIs add what they know of it."""

    name: str
    proxy: Proxy

    @cached_property
    def firings(self) -> FiringLog:
        """The latest firings, from the first time that somebody asks."""
        return FiringLog(self.proxy)

    @cached_property
    def live_frames(self) -> LiveFrames:
        """Frames as they go, for those who look on."""
        return LiveFrames(self.proxy)

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics, from the first time that somebody asks."""
        return Statistics(self.proxy, self.report)

    def report(self, text: str, level: str = "error") -> None:
        """Make a sentence about an API, mostly a bug in it, an event of the proxy, which goes on."""
        self.proxy.emit(Notice(now_ns(), None, level, text))
