"""The proxies that run in this process, by name, as the HTTP APIs list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from natsproxy.admin.managed import ManagedProxy


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
        """Call `watcher` for each proxy that comes."""
        self._watchers.append(watcher)
