"""The connections that are open when a run's time is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from natsproxy.net.proxy import Proxy
from natsproxy.sweep.open_connections import open_connections


async def test_one_that_ends_before_it_is_asked_is_not_open() -> None:
    """It is no error; one that ends while it is asked has given no answer."""

    class Ending:
        """A proxy whose connections end as soon as somebody asks the first of them."""

        def __init__(self) -> None:
            session = SimpleNamespace(pipes=(), key="app/1", subs=())
            accepted = SimpleNamespace(facts=SimpleNamespace(peer="127.0.0.1:1"))
            self.listen: tuple[Any, ...] = ()
            self.relays = {
                n: SimpleNamespace(session=session, accepted=accepted, catch_up=int) for n in (1, 2)
            }

        async def ask_client(self, conn: int) -> bool:
            ended = self.relays[conn]
            self.relays.clear()
            return not ended

    assert [one.alive for one in await open_connections(cast(Proxy, Ending()))] == [False]
