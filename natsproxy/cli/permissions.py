"""`natsproxy permissions`: the smallest permissions that the traffic of captures needs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from natsproxy.cli.foreground import run_stoppable
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import ConfigError, Exit, Stopped
from natsproxy.permissions.comparison import PermissionDifference, compare_permissions
from natsproxy.permissions.formats import FORMATS
from natsproxy.permissions.holders import read_holders
from natsproxy.permissions.needs import CLIENTS, ClientNeeds, needs_of, needs_of_rows
from natsproxy.permissions.proof import PermissionProof
from natsproxy.permissions.proving import Prover
from natsproxy.permissions.rows import FOLDED
from natsproxy.permissions.templates import DISTINCT, WORDS
from natsproxy.permissions.uses import By


@click.command()
@click.argument("captures", nargs=-1, type=FilePath())
@click.option(
    "--tables",
    metavar="DIR",
    type=FilePath(),
    help="Read the table permissions in this folder instead of captures (natsproxy analyze makes it).",
)
@click.option(
    "--by",
    type=click.Choice([str(one) for one in By]),
    default=str(By.USER),
    show_default=True,
    help="One block for each user, client name or account; a client without it goes by its name.",
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="nats", show_default=True)
@click.option(
    "--distinct",
    type=click.IntRange(2),
    default=DISTINCT,
    show_default=True,
    help="Values from which on a number or an id becomes *.",
)
@click.option(
    "--words",
    type=click.IntRange(2),
    default=WORDS,
    show_default=True,
    help="Values from which on a word becomes *.",
)
@click.option(
    "--clients",
    "most",
    type=click.IntRange(1),
    default=CLIENTS,
    show_default=True,
    help="Stop with an error where there are more blocks to make: all are held in memory.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Replay the clients on a real nats-server with the block, and without each line.",
)
@click.option(
    "--diff",
    "config",
    metavar="CONFIG",
    type=FilePath(),
    help="Compare a nats-server configuration, a .creds file or a JWT with what was used.",
)
def permissions(
    captures: tuple[Path, ...],
    tables: Path | None,
    by: str,
    form: str,
    distinct: int,
    words: int,
    most: int,
    prove: bool,
    config: Path | None,
) -> None:
    """Write the smallest permissions that the traffic of captures needs.

    Each line has its evidence.  What was never used is left out; calls that a client library makes too
    rarely to be in a recording are listed as choices, with their reasons.
    --prove starts nats-server with the block and replays the recorded clients: there must be no violation,
    and one without each line.
    --diff shows what a configuration allows and nobody used, and what it denies and somebody used.
    Exit code: 0 done, 1 the proof failed or the configuration differs, 2 could not run.

    \b
    natsproxy permissions traffic.ncap
    natsproxy permissions monday.ncap tuesday.ncap --by name --format nsc
    natsproxy permissions --tables tables --by account
    natsproxy permissions traffic.ncap --format rule > rules.toml
    natsproxy permissions traffic.ncap --prove
    natsproxy permissions traffic.ncap --diff nats-server.conf
    """
    if prove and config is not None:
        raise ConfigError("--prove is about the block that is needed: leave out --diff or --prove")
    if (tables is None) == (not captures):
        raise click.UsageError("Give captures, or --tables DIR.")
    if tables is not None:
        if prove or config is not None:
            raise ConfigError("--prove and --diff look at each frame: give captures instead of --tables")
        needs = _of_tables(tables, By(by), distinct, words, most)
    else:
        needs = needs_of(captures, By(by), distinct=distinct, words=words, most=most, lost=tell_lost)
    if config is not None:
        found = compare_permissions(captures, needs, read_holders(config, By(by)), By(by))
        _show(found, as_json=form == "json")
        raise SystemExit(Exit.FOUND_WRONG if any(one.differs for one in found) else Exit.OK)
    proof = _prove(captures, needs, By(by)) if prove else None
    click.echo(FORMATS[form](needs, By(by), proof), nl=False)
    raise SystemExit(Exit.FOUND_WRONG if proof is not None and proof.violations else Exit.OK)


def _of_tables(tables: Path, by: By, distinct: int, words: int, most: int) -> list[ClientNeeds]:
    if distinct > FOLDED:
        raise ConfigError(f"--tables keeps {FOLDED} values of a token: --distinct may be up to {FOLDED}")
    from natsproxy.spark.session import need_pyspark

    need_pyspark()
    from natsproxy.spark.storage.permission_rows import read_rows

    return needs_of_rows(read_rows(tables, tell_lost), by, distinct=distinct, words=words, most=most)


def _show(found: list[PermissionDifference], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"differences": [one.facts() for one in found]}, indent=2))
        return
    for one in found:
        for line in one.texts():
            click.echo(line)


def _prove(captures: tuple[Path, ...], needs: list[ClientNeeds], by: By) -> PermissionProof:
    prover = Prover(captures, needs, by)
    made: list[PermissionProof] = []

    async def main() -> None:
        made.append(await prover.prove())

    if run_stoppable(main):
        raise Stopped("the proof was stopped")
    return made[0]
