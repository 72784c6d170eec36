"""Options that select frames of a capture (`--from`, `--op`, `--subject`, ...), shared by its commands."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from natsproxy.capture.format.connection import ConnectionChoice
from natsproxy.capture.listing.choice import Choice
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import last_moment, open_capture
from natsproxy.errors import ConfigError
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.model.roles import ROLES
from natsproxy.units import parse_duration
from natsproxy.wire.ops import ALL_OPS, BY_TOKEN, C2S, S2C, op_mask

_DIRECTIONS = {"c2s": C2S, "s2c": S2C}


def _conns(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> ConnectionChoice:
    try:
        return ConnectionChoice.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def check_runs(conns: ConnectionChoice, path: Path) -> None:
    """Raise ConfigError for a choice of connections in a run that a capture does not have."""
    if conns.last_run > 1 and conns.last_run > (runs := len(open_capture(path).runs)):
        held = "1 run" if runs == 1 else f"{runs} runs"
        raise ConfigError(
            f"there is no run {conns.last_run}: {path} has {held} (`natsproxy capture info` shows them)"
        )


class _BeforeEnd(int):
    """A duration (ns) before the end of the capture."""


def _time(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    with suppress(ValueError):
        return _BeforeEnd(parse_duration(value))
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        text = "give a time as 2026-01-31T12:00:00 or with an offset, or a duration before the end as 5m"
        raise click.BadParameter(text) from None
    return int(moment.timestamp() * 1e9)


def _absolute(moment: int | None, path: Path) -> int | None:
    if not isinstance(moment, _BeforeEnd):
        return moment
    end = last_moment(open_capture(path))
    return None if end is None else end - moment


def _ops(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> int:
    mask = 0
    for name in value:
        op = BY_TOKEN.get(name.upper().encode())
        if op is None:
            known = ", ".join(token.decode() for token in BY_TOKEN)
            raise click.BadParameter(f"{name} is not an operation; there are {known}")
        mask |= op_mask(op)
    return mask or ALL_OPS


def _op_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [token.decode() for token in BY_TOKEN if token.startswith(incomplete.upper().encode())]


def _subjects(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[bytes, ...]:
    patterns = tuple(text.encode("utf-8", "surrogateescape") for text in value)
    for text, pattern in zip(value, patterns, strict=True):
        if not is_valid_subscribe(pattern):
            raise click.BadParameter(f"{text!r} is not a valid subscription subject")
    return patterns


_TIMES = (
    click.option(
        "--from",
        "start",
        callback=_time,
        metavar="TIME",
        help="Only from this time on: 2026-01-31T12:00:00, perhaps with an offset, or 5m before the end.",
    ),
    click.option(
        "--to", "end", callback=_time, metavar="TIME", help="Only up to this time, in the same forms."
    ),
)
_FRAMES = (
    click.option(
        "--conn",
        "conns",
        multiple=True,
        callback=_conns,
        metavar="[RUN:]NUMBER",
        help="Only this connection, in each run of the recorder or in one (repeatable).",
    ),
    click.option(
        "--op",
        "ops",
        multiple=True,
        callback=_ops,
        shell_complete=_op_names,
        metavar="OP",
        help="Only this operation (repeatable).",
    ),
    click.option(
        "--subject",
        "subjects",
        multiple=True,
        metavar="PATTERN",
        callback=_subjects,
        help="Only subjects that match this pattern (repeatable).",
    ),
    click.option("--direction", type=click.Choice([*_DIRECTIONS]), help="Only this direction."),
)


def filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command that reads `path`; it gets their values as one argument `query`."""

    @functools.wraps(command)
    def with_query(*args: Any, start: int | None, end: int | None, query: Query, **rest: Any) -> None:
        check_runs(query.conns, rest["path"])
        first, last = (_absolute(moment, rest["path"]) for moment in (start, end))
        command(*args, query=replace(query, start=first, end=last), **rest)

    return _with(_TIMES, _live_filters(with_query))


def _live_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that are not about time."""

    @functools.wraps(command)
    def with_query(
        *args: Any,
        conns: ConnectionChoice,
        ops: int,
        subjects: tuple[bytes, ...],
        direction: str | None,
        **rest: Any,
    ) -> None:
        chosen = _DIRECTIONS[direction] if direction else None
        query = Query(conns=conns, direction=chosen, ops=ops, subjects=subjects)
        command(*args, query=query, **rest)

    return _with(_FRAMES, with_query)


def _with(options: Sequence[Callable[..., Any]], command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(options):  # `--help` lists options in reverse order of decoration
        command = option(command)
    return command


def _headers(
    _: click.Context, __: click.Parameter, value: tuple[str, ...]
) -> tuple[tuple[bytes, str | None], ...]:
    split = [text.partition(":") for text in value]
    return tuple(
        (name.strip().encode("utf-8", "surrogateescape"), glob.strip() if colon else None)
        for name, colon, glob in split
    )


_CHOICES = (
    click.option(
        "--role",
        "roles",
        multiple=True,
        type=click.Choice(list(ROLES)),
        metavar="ROLE",
        help="Only frames in this role, as in rules: ack, nak, pull, redelivery, ... (repeatable).",
    ),
    click.option(
        "--client",
        "clients",
        multiple=True,
        metavar="NAME",
        help="Only clients of this name in CONNECT, a shell pattern (repeatable).",
    ),
    click.option(
        "--header",
        "headers",
        multiple=True,
        callback=_headers,
        metavar="NAME[: VALUE]",
        help="Only with this header, in any letter case; VALUE is a shell pattern (repeatable: all of them).",
    ),
    click.option(
        "--exchange",
        is_flag=True,
        help="Also print frames that belong to the chosen ones: request, deliveries, replies, acks.",
    ),
)


def choices(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `filters`, and those about what is around a frame; the command gets `choice`."""
    return filters(_choices(command))


def live_choices(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `choices`, without those about time, to a command that reads no capture."""
    return _live_filters(_choices(command))


def _choices(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def with_choice(
        *args: Any,
        query: Query,
        roles: tuple[str, ...],
        clients: tuple[str, ...],
        headers: tuple[tuple[bytes, str | None], ...],
        exchange: bool,
        **rest: Any,
    ) -> None:
        choice = Choice(query, tuple(ROLES[name] for name in roles), clients, headers, exchange)
        command(*args, choice=choice, **rest)

    return _with(_CHOICES, with_choice)
