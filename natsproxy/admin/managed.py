"""The proxies that run in this process, by name, as the HTTP APIs list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    """A proxy with its name, and the state that the APIs keep for it."""

    name: str
    proxy: Proxy

    @cached_property
    def firings(self) -> FiringLog:
        """The latest firings, kept from the first use on."""
        return FiringLog(self.proxy)

    @cached_property
    def live_frames(self) -> LiveFrames:
        """Live frames, for viewers."""
        return LiveFrames(self.proxy)

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics, counted from the first use on."""
        return Statistics(self.proxy, self.report)

    def report(self, text: str, level: str = "error") -> None:
        """Log a message about an API, mostly a bug in it, as an event of the proxy, which goes on."""
        self.proxy.emit(Notice(now_ns(), None, level, text))


class ProxyCollection(Mapping[str, ManagedProxy]):
    """The running proxies, in the order in which they started."""

    def __init__(self) -> None:
        self._proxies: dict[str, ManagedProxy] = {}
        self._watchers: list[Callable[[ManagedProxy], None]] = []

    def __getitem__(self, name: str) -> ManagedProxy:
        return self._proxies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._proxies))

    def __len__(self) -> int:
        return len(self._proxies)

    def add(self, managed: ManagedProxy) -> None:
        """Add a proxy that is about to serve; its name is not in use."""
        assert managed.name not in self._proxies
        self._proxies[managed.name] = managed
        for watcher in self._watchers:
            watcher(managed)

    def remove(self, name: str) -> None:
        """Remove a proxy that has stopped."""
        del self._proxies[name]

    def watch(self, watcher: Callable[[ManagedProxy], None]) -> None:
        """Call `watcher` for each proxy that is added."""
        self._watchers.append(watcher)
