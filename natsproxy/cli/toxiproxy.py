"""`natsproxy toxiproxy`: Toxiproxy's API over proxies for NATS, as Toxiproxy's own server is started.

Go programs write flags with one dash or with two, so both are taken.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from natsproxy.addresses import Address
from natsproxy.cli.foreground import STOP, run_with_signals
from natsproxy.cli.options import OptionType
from natsproxy.cli.paths import FilePath
from natsproxy.cli.service import log_proxy
from natsproxy.config.admin import ADMIN_OPTIONS
from natsproxy.config.endpoints import HttpListener
from natsproxy.config.files import read_text
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError
from natsproxy.log import LogFile, logger

if TYPE_CHECKING:  # it needs packages of an extra
    from natsproxy.admin.managed import ProxyCollection
    from natsproxy.admin.toxiproxy.server import ToxiproxyServer


@click.command()
@click.option("-host", "--host", default="localhost", help="Listen address of the API.  [localhost]")
@click.option("-port", "--port", type=click.IntRange(0, 65535), default=8474, help="Port of the API.  [8474]")
@click.option(
    "-config", "--config", type=FilePath(), help="Proxies to start with: a JSON array, as for POST /populate."
)
@click.option(
    "-seed",
    "--seed",
    type=int,
    help="Seed of all random choices; default: a random one, which the log shows.",
)
@click.option("-proxy-metrics", "--proxy-metrics", is_flag=True, help="Serve GET /metrics, for Prometheus.")
@click.option(
    "-admin-host",
    "--admin-host",
    type=OptionType(ADMIN_OPTIONS["admin_host"]),
    multiple=True,
    help="A further host name of the API.  (repeatable)",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "console", "json"]),
    default="auto",
    help="Form of the log.",
)
def toxiproxy(
    host: str,
    port: int,
    config: Path | None,
    seed: int | None,
    proxy_metrics: bool,
    admin_host: tuple[str, ...],
    log_format: str,
) -> None:
    """Serve Toxiproxy's HTTP API, whose proxies are proxies for NATS.

    Any Toxiproxy client can make proxies and toxics: those of Toxiproxy, and each kind of rule as
    nats_<kind> (see natsproxy rules list).  The API has no authentication.  Requests for an unknown host
    name, or from a foreign web page, are refused.

    \b
    natsproxy toxiproxy
    natsproxy toxiproxy -host=0.0.0.0 -config=proxies.json
    """
    body = None if config is None else read_text(config, "configuration").encode()
    seed = secrets.randbits(32) if seed is None else seed
    with LogFile(None) as file:
        log = logger(file, log_format)
        make, proxies = _imported()
        proxies.watch(partial(log_proxy, log, 0))
        listener, base = HttpListener(Address(host, port)), ProxySettings(seed=seed)

        def report(text: str, *, level: str) -> None:
            getattr(log, level)(text)

        server = make(listener, base, proxies, report, config=body, metrics=proxy_metrics, hosts=admin_host)

        async def main(signals: AsyncIterator[int]) -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve)
                log.info("toxiproxy listens", url=server.url, seed=seed)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()

        run_with_signals(main, *STOP)


def _imported() -> tuple[type[ToxiproxyServer], ProxyCollection]:
    """Return the class of the server, and a collection for it.  Raises ConfigError without their packages."""
    try:
        from natsproxy.admin.managed import ProxyCollection
        from natsproxy.admin.toxiproxy.server import ToxiproxyServer
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("natsproxy"):
            raise
        raise ConfigError(f"toxiproxy needs {error.name}: pip install 'natsproxy[admin]'") from None
    return ToxiproxyServer, ProxyCollection()
