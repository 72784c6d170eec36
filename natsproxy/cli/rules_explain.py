"""`natsproxy rules explain`: the rules that would act on a frame, without sending it."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

import click

from natsproxy.addresses import Address, parse_address
from natsproxy.cli.exits import CouldNotRun
from natsproxy.cli.rules_file import rules_source
from natsproxy.errors import NatsproxyError
from natsproxy.protocol.connect import Connect
from natsproxy.protocol.info import Info
from natsproxy.protocol.subjects import is_valid_subscribe
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.explain import SERVER_ONLY, Explanation, FrameExplanation, Question, question
from natsproxy.rules.engine.explain import explain as explain_frame
from natsproxy.rules.engine.trial import TrialView
from natsproxy.rules.file import values
from natsproxy.rules.model.roles import ROLES, Role
from natsproxy.rules.model.rule import Rule
from natsproxy.rules.model.selector import WITH_SUBJECT, Peer, role_named
from natsproxy.wire.ops import Op


def _reader(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that reads an option's value, or each of several."""

    def convert(_: click.Context, __: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(read(one) for one in value)
            return None if value is None else read(value)
        except (ValueError, NatsproxyError) as error:
            raise click.BadParameter(str(error)) from None

    return convert


def _ip(value: str) -> str:
    """Return an IP address, with or without a port, in the form that a connection has it."""
    bare_ipv6 = value.count(":") > 1 and not value.startswith("[")
    try:
        address = parse_address(f"[{value}]" if bare_ipv6 else value, port=0)
        return str(Address(str(ip_address(address.host)), address.port))
    except ValueError:
        raise ValueError(f"{value!r} is not an IP address, with or without a port ([::1]:4222)") from None


def _header(value: str) -> tuple[bytes, bytes]:
    name, colon, text = value.partition(":")
    if not colon:
        raise ValueError(f"must be 'NAME: VALUE', not {value!r}")
    return _raw(name), _raw(text.strip())


def _status(value: str) -> bytes:
    if not value:
        return b""
    code, _, text = value.partition(" ")
    values.status(int(code) if code.isdecimal() else value)
    return _raw(f"{code} {text.strip()}".strip())


def _size(value: str) -> int:
    return values.size(int(value) if value.isdecimal() else value)


def _raw(text: str) -> bytes:
    """Return the bytes of an argument, as the shell gave them."""
    return text.encode("utf-8", "surrogateescape")


def _complete_role(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ROLES if name.startswith(incomplete)]


@click.command()
@rules_source
@click.option("--op", help="Its operation; without it PUB, or HPUB with headers.")
@click.option(
    "--subject", default="", callback=_reader(_raw), help="Its subject; of an answer: the request's."
)
@click.option(
    "--role", callback=_reader(role_named), shell_complete=_complete_role, help="Its role in JetStream."
)
@click.option(
    "--queue", default="", callback=_reader(_raw), help="The queue of a SUB, or of its subscription."
)
@click.option("--reply", default="", callback=_reader(_raw), help="The reply subject of a message.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_reader(_header),
    metavar="'NAME: VALUE'",
    help="A header; these are all that it has.",
)
@click.option(
    "--status",
    default="",
    callback=_reader(_status),
    metavar="CODE",
    help="Its status, as '100 Idle Heartbeat'.",
)
@click.option("--payload", "body", callback=_reader(_raw), help="Its payload, without headers.")
@click.option(
    "--size", callback=_reader(_size), metavar="SIZE", help="The size of its payload, headers included."
)
@click.option(
    "--direction", callback=_reader(values.direction), help="c2s or s2c, for an operation of both directions."
)
@click.option("--client-name", help="The name in CONNECT.")
@click.option("--client-user", help="The user in CONNECT.")
@click.option("--client-lang", help="The language in CONNECT.")
@click.option("--client-version", help="The version in CONNECT.")
@click.option("--tls-subject", help="The subject of the client's certificate.")
@click.option("--account", help="The account that the server names in INFO.")
@click.option("--server", help="The server's name in INFO.")
@click.option("--address", metavar="IP[:PORT]", callback=_reader(_ip), help="The client's address.")
@click.option(
    "--ordinal", type=click.IntRange(1), metavar="N", help="The connection's number, in order of accepting."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per rule.")
def explain(read: Callable[[], tuple[Rule, ...]], as_json: bool, **asked: Any) -> None:
    """Explain what each rule would do to a frame, by the engine that does it to traffic.

    A property that is not named has a plain value (no headers, no name), and the answer says what it assumed.
    Gates are taken to let the frame through.  Notes name the differences from nats-server that only the
    server itself could avoid.

    \b
    natsproxy rules explain faults.toml --op PUB --subject orders.eu.1
    natsproxy rules explain --config natsproxy.toml --op PUB --subject orders.eu.1
    natsproxy rules explain faults.toml --op SUB --subject 'orders.>' --client-name billing
    natsproxy rules explain faults.toml --role publish-ack --subject orders.new
    natsproxy rules explain faults.toml --subject orders.new --header 'Region: eu'
    """
    loaded = read()
    given = {_CLIENT[name]: asked.pop(name) for name in _CLIENT}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        frame = _frame(asked)
    except (ValueError, NatsproxyError) as error:
        raise CouldNotRun(f"no such frame exists: {error}") from None
    unknown = [name for name in given if name not in known]
    answer = explain_frame(RuleChain(loaded), _client(known), frame, unknown)
    if as_json:
        for step in answer.rules:
            click.echo(json.dumps({**_as_dict(step), "assumptions": answer.assumptions}))
    else:
        _print(answer, frame)


def _print(answer: FrameExplanation, frame: Question) -> None:
    steps = answer.rules
    for step in steps:
        click.echo(f"{'*' if step.acts else ' '} {step.rule.name} ({step.rule.kind}): {step.result}")
        if step.acts:
            click.echo(f"    {step.condition}")
    if not any(step.acts for step in steps):
        subject = frame.frame.subject.decode("utf-8", "replace")
        click.echo(f"No rule acts on {frame.frame.op.label} {subject}".rstrip() + ": it passes unchanged.")
    for sentence in answer.assumptions:
        click.echo(f"Assumed: {sentence}")
    if any(step.acts and step.rule.kind in ("permissions", "deny", "rewrite") for step in steps):
        for sentence in SERVER_ONLY:
            click.echo(f"Note: {sentence}")


def _client(known: dict[str, Any]) -> TrialView:
    """Return the connection with these properties."""
    texts = {name: known[name] for name in ("name", "user", "lang", "version") if name in known}
    return TrialView(
        Connect(verbose=False, pedantic=False, headers=True, **texts),
        Info(remote_account=known.get("account", ""), server_name=known.get("server", "")),
        known.get("address", ""),
        known.get("ordinal", 0),
        known.get("tls_subject", ""),
        key=known.get("name", ""),
    )


_CLIENT: Final = {
    f"client_{name}" if name in ("name", "user", "lang", "version") else name: name for name in Peer._fields
}
"""The option of each condition on a client."""


def _frame(asked: dict[str, Any]) -> Question:
    """Return the question about a frame.  Raises ValueError where there is no such frame."""
    op = asked["op"] = None if asked["op"] is None else values.op(asked["op"])
    if op is not None or asked["role"] is None:
        _check_subject(Op.PUB if op is None else op, asked["subject"], asked["role"])
    return question(**asked)


def _check_subject(op: Op, subject: bytes, role: Role | None) -> None:
    if not WITH_SUBJECT >> op & 1:
        if subject:
            raise ValueError(f"{op.label} has no subject")
        return
    if not subject and role is None:
        raise ValueError(f"{op.label} needs a subject: --subject orders.new")
    if subject and (len(subject.split()) != 1 or (op == Op.SUB and not is_valid_subscribe(subject))):
        raise ValueError(f"{op.label} cannot have the subject {subject.decode(errors='replace')!r}")


def _as_dict(step: Explanation) -> dict[str, object]:
    return {
        "rule": step.rule.name,
        "kind": step.rule.kind,
        "acts": step.acts,
        "condition": step.condition,
        "result": step.result,
    }
