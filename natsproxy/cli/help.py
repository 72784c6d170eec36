"""`natsproxy help`: short texts on topics, made of the tables that the program itself reads.

A topic is a row of `TOPICS`: its name, a line on it, and a function that prints it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Final

import click

from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.rules_cookbook import show_cookbook
from natsproxy.cli.rules_list import show_section
from natsproxy.config.admin import ADMIN_OPTIONS
from natsproxy.config.recording import RECORD
from natsproxy.config.settings import OPTIONS, TLS_OPTIONS
from natsproxy.option import Option
from natsproxy.sweep.faults import FAULTS
from natsproxy.sweep.values import Verdict

EXIT_CODES: Final = {
    "0": "done; also a service that Ctrl-C or SIGTERM ended in good order",
    "1": "a check found something: a damaged capture, a difference, a mistake in a rules file, clients that "
    "did not send what was recorded, a rule that never fired, a proxy that is not ready, traffic in which "
    "natsproxy check finds something, a finding of a sweep that is not accepted",
    "2": "it could not run: usage, a file that is missing, nobody at the address",
    "3": "some frames are lost: capture recover wrote what was whole, run could not write the end of its "
    "capture",
    "130": "Ctrl-C or SIGTERM interrupted the work; for a service: the second signal",
    "141": "the reader of the output has gone (| head)",
}
"""The exit codes of all commands; `cassette run` ends with the code of its program."""


def _say(text: str) -> None:
    click.echo(cleandoc(text))


def _rows(rows: Iterable[tuple[str, str]]) -> None:
    formatter = click.HelpFormatter()
    with formatter.indentation():
        formatter.write_dl(list(rows))
    click.echo(formatter.getvalue(), nl=False)


def _show_options(options: Iterable[Option]) -> None:
    rows = []
    for option in options:
        shown = "required" if option.required else option.shown_default
        rows.append((f"--{option.name}", option.help + (f" [{shown}]" if shown else "")))
    _rows(rows)


def _rules() -> None:
    _say(
        """
        A rule selects frames, its gate chooses among them, and its kind says what
        happens. Rules are TOML:

            [[rules]]
            name = "slow orders"
            kind = "latency"
            subject = "orders.>"
            probability = 0.1
            delay = "250ms"

        Subjects are the client's, in both directions. A rule that names no property
        of frames, such as subject or op, is about whole links. On the way to the
        server faults come first, then permissions, then rewriting; on the way back
        it is the other way round. One --seed gives the same verdicts for the same
        traffic. SIGHUP loads the file again.

            natsproxy rules list        kinds, selectors, gates, roles; or one word
            natsproxy rules cookbook    faults and policies, ready to use
            natsproxy rules check FILE  mistakes, with their line
            natsproxy rules explain FILE --op PUB --subject orders.new
            natsproxy run --rules FILE --upstream nats://127.0.0.1:4223
        """
    )


def _selectors() -> None:
    show_section("selectors")
    click.echo()
    show_section("gates")
    click.echo()
    show_section("roles")


def _captures() -> None:
    _say(
        """
        A capture holds the frames of both sides of each connection, their times, and
        the rules that acted on them. It is a file (x.ncap) or a folder of segments,
        survives a crash up to its last block, and holds no passwords, tokens or keys.

            natsproxy run --record traffic.ncap --upstream nats://127.0.0.1:4223
            natsproxy capture info traffic.ncap      what it holds (cat: its frames)
            natsproxy capture export traffic.ncap --jsonl traffic.jsonl
            natsproxy replay to-server traffic.ncap --to nats://127.0.0.1:4223
            natsproxy cassette run traffic.ncap -- COMMAND
            natsproxy analyze traffic.ncap --out tables   tables and a report

        Settings of recordings:
        """
    )
    _show_options(option for option in OPTIONS if option.name.startswith(RECORD))


def _sweep() -> None:
    _say(
        """
        A sweep runs a program once for each place in its conversation with the server
        and each fault that can happen there. The program finds the server in NATS_URL,
        does its work, ends by itself, and says by its exit code if it succeeded.

            natsproxy sweep --server -- python worker.py
            natsproxy sweep --server --faults drop,cut --for 5m -- python worker.py

        Verdicts on a run with a fault; wrong, hung and deaf are findings if each of
        --confirm runs has them:
        """
    )
    _rows((verdict.value, verdict.meaning) for verdict in Verdict)
    click.echo()
    _say(
        """
        Faults, and why each happens in life. --faults takes these names, or their first
        word for all of them:
        """
    )
    _rows((fault.name, fault.text) for fault in FAULTS)
    click.echo()
    _say(
        """
        With --page, a browser shows the sweep while it runs: what was tried, the
        verdicts and the findings so far, and the time left of --for.

        Each finding has a folder in sweep-out, whose README.txt has its commands. Read
        stack.txt (where the program was) and conversation.txt (the frames around the
        fault), mend the program or set it a time limit, and run that trial again. What
        you cannot mend now goes into a file of names: then only new findings fail.

            natsproxy sweep --server --only 01 -- python worker.py
            natsproxy run --rules fault.toml --upstream nats://127.0.0.1:4223
            natsproxy sweep --server --accept known-findings -- python worker.py

        A remark is not a finding, and does not change the exit code. It says that
        the program passed, but a stream then holds a message twice or in another
        order, or core NATS has lost one, as delivery at least once and at most once
        allow. If that must not be, let --check count the messages.

        natsproxy.testing.sweep sweeps a callable or a command from a test. pytest
        --nats-sweep sweeps the tests that have nats_proxy or nats_cassette.
        """
    )


def _tls() -> None:
    _say(
        """
        Each leg has TLS or not, whatever the other one has: --listen tls://HOST:PORT
        for clients, --upstream tls://HOST:PORT for the server. natsproxy cert makes
        certificates for trying it out, and says how to use them.

            natsproxy cert certs

        SIGHUP reads certificates and keys again. Settings:
        """
    )
    _show_options(TLS_OPTIONS.values())


def _monitoring() -> None:
    _say(
        """
        --monitor serves what nats-server's monitoring port does, so that nats-top,
        exporters and dashboards show the proxy as a server, and metrics for
        Prometheus. --admin serves the HTTP API that steers a running proxy: rules,
        connections, captures. Both are off by default.

            natsproxy run --monitor 127.0.0.1:8222 --upstream nats://127.0.0.1:4223

            natsproxy run --admin 127.0.0.1:8223 --upstream nats://127.0.0.1:4223
            export NATSPROXY_ADMIN_URL=http://127.0.0.1:8223
            natsproxy ctl page         a link to the page of the proxy
            natsproxy ctl rules list   rules; see natsproxy ctl --help for more
            natsproxy top              connections and their rates
            natsproxy tap              frames as they pass

        Settings:
        """
    )
    _show_options(ADMIN_OPTIONS.values())


def _settings() -> None:
    _say(
        """
        A setting comes from a flag (--record-keep), else from a variable
        (NATSPROXY_RECORD_KEEP), else from the file of --config (record-keep = "7d"),
        else it has its default. natsproxy config shows each with its source.
        """
    )
    click.echo()
    _show_options(OPTIONS)


def _exit_codes() -> None:
    _rows(EXIT_CODES.items())


TOPICS: Final[dict[str, tuple[str, Callable[[], None]]]] = {
    "rules": ("what a rule is, and where to look further", _rules),
    "selectors": ("the frames that a rule is about: selectors, gates, roles", _selectors),
    "cookbook": ("faults and policies that people ask for", show_cookbook),
    "captures": ("recording, and what can be done with it", _captures),
    "sweep": ("faults at each place of a program's conversation, and verdicts", _sweep),
    "tls": ("TLS on both legs", _tls),
    "monitoring": ("the monitoring port, metrics and the admin API", _monitoring),
    "settings": ("flags, variables and files, and their defaults", _settings),
    "exit-codes": ("the exit codes of all commands", _exit_codes),
}


def _complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return [
        name for name in (*TOPICS, *_group(context).list_commands(context)) if name.startswith(incomplete)
    ]


def _group(context: click.Context) -> click.Group:
    command = context.find_root().command
    assert isinstance(command, click.Group)
    return command


@click.command("help")
@click.argument("words", nargs=-1, metavar="[TOPIC | COMMAND...]", shell_complete=_complete)
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of a topic or a command; without one, the topics.

    \b
    natsproxy help
    natsproxy help selectors
    natsproxy help rules explain
    """
    if not words:
        click.echo("Topics:")
        _rows((name, text) for name, (text, _) in TOPICS.items())
        click.echo("\nnatsproxy help TOPIC prints one, natsproxy help COMMAND the help of a command.")
        return
    name = "-".join(words)
    if name in TOPICS:
        TOPICS[name][1]()
        return
    click.echo(_command_help(context.find_root(), words))


def _command_help(context: click.Context, words: tuple[str, ...]) -> str:
    """Return the help of the command that the words name.  Raises CouldNotRun where there is none."""
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            known = [*TOPICS, *(group.list_commands(context) if isinstance(group, click.Group) else [])]
            near = difflib.get_close_matches(word, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise CouldNotRun(f"there is no help on {' '.join(words)!r}; {hint}")
        context = click.Context(command, context, word)
    return context.get_help()
