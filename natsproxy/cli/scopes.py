"""Scopes on the command line: the options that choose one, the address to choose at, and their verdicts."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import trio

from natsproxy.cli.options import setting_flag
from natsproxy.config.admin import ADMIN_OPTIONS, ADMIN_VARIABLE, admin_token
from natsproxy.config.endpoints import HTTP_OR_UNIX, HttpListener
from natsproxy.errors import ConfigError
from natsproxy.option import Option
from natsproxy.printable import printable
from natsproxy.replay.cassette.scopes import ScopeError, Scopes, ScopeVerdict, running
from natsproxy.replay.receipt import CassetteUsed, joined

SCOPE_VARIABLE: Final = "NATS_CASSETTE_SCOPE"
"""The variable that names the first scope."""
ADMIN_URL_VARIABLE: Final = "NATS_CASSETTE_ADMIN"
"""The variable in which a program gets the URL for the choice of scopes."""
_SHOWN: Final = 5  # problems of a scope that are printed
_ADMIN: Final = Option(
    "admin",
    HTTP_OR_UNIX,
    None,
    "CAPTURE is a folder of cassettes; PUT /v1/scope at this address, with a name as body, chooses one.",
)
_OPEN: Final = f"Warning: other machines can choose the scope at {{}}: set {ADMIN_VARIABLE} for a token"


@dataclass(frozen=True, slots=True)
class ScopeOptions:
    """The options of scopes; false: there is one cassette.

    admin: where scopes are chosen by HTTP, None for nowhere.  first: the name of the first one.  by_name: the
    pattern for clients' names.
    """

    admin: HttpListener | None = None
    hosts: tuple[str, ...] = ()
    first: str = ""
    by_name: str = ""

    def __bool__(self) -> bool:
        return bool(self.admin or self.first or self.by_name)

    def check(self, folder: Path) -> None:
        """Raise ConfigError where a scope is chosen, and `folder` is a file."""
        if self and folder.exists() and not folder.is_dir():
            given = "--admin" if self.admin else "--scope" if self.first else "--scope-by-name"
            variable = f" (or {SCOPE_VARIABLE})" if given == "--scope" else ""
            raise ConfigError(f"{given}{variable} chooses a cassette of a folder, and {folder} is a file")


def scope_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of scopes to a command; it gets them as `scope`."""

    @functools.wraps(command)
    def with_scope(
        *args: Any,
        admin: HttpListener | None,
        admin_host: tuple[str, ...],
        scope: str,
        scope_by_name: str,
        **values: Any,
    ) -> None:
        command(*args, scope=ScopeOptions(admin, admin_host, scope, scope_by_name), **values)

    for option in (
        click.option(
            "--scope-by-name",
            default="",
            metavar="PATTERN",
            help="CAPTURE is a folder of cassettes; the name of a client chooses: orders-test/* plays of "
            "orders-test/pays the cassette pays.",
        ),
        click.option(
            "--scope",
            envvar=SCOPE_VARIABLE,
            default="",
            metavar="NAME",
            help=f"CAPTURE is a folder of cassettes; begin with this one.  [env: {SCOPE_VARIABLE}]",
        ),
        setting_flag(ADMIN_OPTIONS["admin_host"], help="A further host name of --admin."),
        setting_flag(_ADMIN),
    ):
        with_scope = option(with_scope)
    return with_scope


@dataclass(slots=True)
class Verdicts:
    """Prints verdicts on stderr, and counts them.

    shown: print those of scopes in which all was as recorded, too.  title: begins a line, before the name.
    uses: those of each scope, together.
    """

    shown: bool = True
    title: str = "scope "
    scopes: int = 0
    wrong: int = 0
    clients: int = 0
    frames: int = 0
    mismatches: int = 0
    unused: int = 0
    uses: dict[str, CassetteUsed] = field(default_factory=dict)

    def add(self, verdict: ScopeVerdict) -> None:
        """Count one, and print it."""
        self.scopes += 1
        self.wrong += not verdict.ok
        self.clients += verdict.clients
        self.mismatches += len(verdict.mismatches)
        self.frames += verdict.frames
        self.unused += verdict.unused
        if verdict.used is not None:
            known = self.uses.get(verdict.scope)
            self.uses[verdict.scope] = verdict.used if known is None else joined(known, verdict.used)
        for line in (
            _lines(verdict, self.title)
            if self.shown or not verdict.ok or verdict.added or verdict.hint
            else ()
        ):
            click.echo(printable(line, keep="\n"), err=True)

    def total(self, unit: str = "scopes") -> str:
        """Return a sentence about all."""
        wrong = f", {self.wrong} of them not as recorded" if self.wrong else ""
        return f"{self.scopes} {unit}{wrong}"


def _lines(verdict: ScopeVerdict, title: str) -> list[str]:
    """Return what is printed about a scope."""
    name = f"{title}{verdict.scope}"
    lines = [f"{verdict.cassette}: {verdict.added} frames were added"] if verdict.added else []
    lines += [verdict.hint] if verdict.hint else []
    if verdict.ok:
        left = f", {verdict.unused} recorded frames not used" if verdict.unused else ""
        return [*lines, f"{name}: {'recorded' if verdict.recorded else 'as recorded'}{left}"]
    problems = verdict.mismatches or [f"no client sent {one}" for one in verdict.missed]
    problems = [verdict.failure] if verdict.failure else problems
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return lines + [f"{name}: {one}" for one in (*problems[:_SHOWN], *more)]


@asynccontextmanager
async def chosen(scopes: Scopes, options: ScopeOptions) -> AsyncIterator[str]:
    """Run scopes for the length of the block, from the first one on; yield the URL of the choice, or "".

    Raises ConfigError for an address that cannot be used, and for a first scope that is none.
    """
    async with running(scopes):
        if options.first:
            try:
                await scopes.choose(options.first)
            except ScopeError as error:
                raise ConfigError(str(error)) from None
        if options.admin is None:
            yield ""
            return
        server = _imported()(scopes, options.admin, _report, token=admin_token(None, ""), hosts=options.hosts)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            if not options.admin.local and not admin_token(None, ""):
                click.echo(_OPEN.format(server.url), err=True)
            yield server.url
            nursery.cancel_scope.cancel()


def _report(text: str) -> None:
    click.echo(printable(text), err=True)


def _imported() -> Any:
    """Return the maker of the HTTP server.  Raises ConfigError without its packages."""
    try:
        from natsproxy.admin.scope_api import scope_server
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("natsproxy"):
            raise
        raise ConfigError(f"--admin needs {error.name}: pip install 'natsproxy[admin]'") from None
    return scope_server
