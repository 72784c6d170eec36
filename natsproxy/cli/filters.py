"""Options that select frames of a capture (`--from`, `--op`, `--subject`, ...), shared by its commands."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

import click

from natsproxy.capture.read.frames import Query
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.wire.ops import ALL_OPS, BY_TOKEN, C2S, S2C, op_mask

_DIRECTIONS = {"c2s": C2S, "s2c": S2C}


def _time(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter("give a time as 2026-01-31T12:00:00 or with an offset") from None
    return int(moment.timestamp() * 1e9)


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


_OPTIONS = (
    click.option(
        "--from",
        "start",
        callback=_time,
        metavar="TIME",
        help="Only from this time on: 2026-01-31T12:00:00, or with an offset.",
    ),
    click.option("--to", "end", callback=_time, metavar="TIME", help="Only up to this time."),
    click.option(
        "--conn", multiple=True, type=int, metavar="NUMBER", help="Only this connection (repeatable)."
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
    """Add the options to a command, which gets their values as one argument `query`."""

    @functools.wraps(command)
    def with_query(
        *args: Any,
        start: int | None,
        end: int | None,
        conn: tuple[int, ...],
        ops: int,
        subjects: tuple[bytes, ...],
        direction: str | None,
        **rest: Any,
    ) -> None:
        chosen = _DIRECTIONS[direction] if direction else None
        command(*args, query=Query(start, end, frozenset(conn), chosen, ops, subjects), **rest)

    decorated: Callable[..., None] = with_query
    for option in reversed(_OPTIONS):  # `--help` lists options in reverse order of decoration
        decorated = option(decorated)
    return decorated
