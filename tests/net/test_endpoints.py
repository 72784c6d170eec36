"""The addresses of servers, from a resolver that answers, fails, is slow or is silent."""

from __future__ import annotations

import socket

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.config.endpoints import Server
from natsproxy.net.endpoints import Resolver

LIMIT = 2.0
FOREVER = 1_000.0


class Names(trio.abc.HostnameResolver):
    """A resolver: of each name the seconds that it takes and the addresses, none for an error."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[float, list[str]]] = {}
        self.asked: list[str] = []

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # type: ignore[no-untyped-def]
        """Answer as `socket.getaddrinfo`."""
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        delay, found = self.answers[name]
        await trio.sleep(delay)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        """Never asked for."""
        raise NotImplementedError


@pytest.fixture
async def names() -> Names:
    """Give the resolver of this run."""
    found = Names()
    trio.socket.set_custom_hostname_resolver(found)
    return found


class Case:
    """A resolver with the servers that it is asked for."""

    def __init__(self, *hosts: str) -> None:
        self.servers = [Server(Address(host, 4222)) for host in hosts]
        self._resolver = Resolver(LIMIT)

    async def look_up(self) -> tuple[list[str], list[str], float]:
        """Return the IP addresses, the reasons, and the seconds that it took."""
        begin = trio.current_time()
        endpoints, reasons = await self._resolver.look_up(self.servers)
        seconds = round(trio.current_time() - begin, 6)
        return [endpoint.address.host for endpoint in endpoints], reasons, seconds


async def test_an_ip_address_is_not_looked_up(names: Names, autojump_clock: trio.abc.Clock) -> None:
    case = Case("10.0.0.1", "::1", "fe80::1%1")
    hosts, reasons, seconds = await case.look_up()
    assert hosts == ["10.0.0.1", "::1", "fe80::1"]
    assert (reasons, seconds, names.asked) == ([], 0, [])


async def test_names_are_looked_up_at_once_and_each_time(
    names: Names, autojump_clock: trio.abc.Clock
) -> None:
    """In the order of the servers, and of the resolver within a name."""
    case = Case("a", "10.0.0.9", "b")
    names.answers = {"a": (0.5, ["10.0.0.2", "10.0.0.1"]), "b": (0.3, ["10.0.0.3"])}
    assert await case.look_up() == (["10.0.0.2", "10.0.0.1", "10.0.0.9", "10.0.0.3"], [], 0.5)
    names.answers = {"a": (0, ["10.0.0.7"]), "b": (0, [])}
    assert await case.look_up() == (["10.0.0.7", "10.0.0.9", "10.0.0.3"], [], 0)  # b's last one
    assert len(names.asked) == 4


async def test_a_silent_resolver_takes_no_longer_than_its_limit(
    names: Names, autojump_clock: trio.abc.Clock
) -> None:
    case = Case("a", "b")
    names.answers = {"a": (FOREVER, []), "b": (0, [])}
    assert await case.look_up() == (
        [],
        [
            "cannot connect to a:4222: no answer from the resolver in time",
            "cannot connect to b:4222: Name or service not known",
        ],
        LIMIT,
    )


async def test_with_other_endpoints_there_is_less_patience(
    names: Names, autojump_clock: trio.abc.Clock
) -> None:
    """Those known before, by address, or just found."""
    silent = (FOREVER, ["10.0.0.1"])
    names.answers = {"a": silent, "b": (0.5, ["10.0.0.2"])}
    assert (await Case("a", "10.0.0.9").look_up())[::2] == (["10.0.0.9"], 1)
    case = Case("a", "b")
    assert (await case.look_up())[::2] == (["10.0.0.2"], 1.5)
    names.answers = {"a": silent, "b": silent}
    assert (await case.look_up())[::2] == (["10.0.0.2"], 1)


async def test_a_name_that_is_asked_for_no_more_is_forgotten(
    names: Names, autojump_clock: trio.abc.Clock
) -> None:
    case = Case("a", "b")
    names.answers = {"a": (0, ["10.0.0.1"]), "b": (0, ["10.0.0.2"])}
    await case.look_up()
    a, b = case.servers
    case.servers = [a]
    await case.look_up()
    case.servers = [a, b]
    names.answers["b"] = (0, [])
    assert await case.look_up() == (["10.0.0.1"], ["cannot connect to b:4222: Name or service not known"], 0)


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\u2028"])
async def test_a_text_that_is_no_host_name_is_a_reason(host: str) -> None:
    found, reasons = await Resolver(LIMIT).look_up([Server(Address(host, 1))])
    assert found == []
    assert reasons[0].startswith(f"cannot connect to {host}:1: ")
