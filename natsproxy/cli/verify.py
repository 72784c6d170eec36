"""`natsproxy verify`: check the signed stamps of messages, in captures or alone."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from natsproxy.capture.read.frames import Query, read_frames
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli.exits import FoundWrong
from natsproxy.cli.paths import FilePath, tell_lost
from natsproxy.errors import ConfigError
from natsproxy.printable import printable
from natsproxy.protocol import stamps
from natsproxy.protocol.credentials import raw_key
from natsproxy.protocol.stamps import StampCheck
from natsproxy.wire.ops import Op, op_mask

_WITH_HEADERS: Final = op_mask(Op.HPUB, Op.HMSG)
_CUT: Final = "cut"
"""The state of a message that the capture does not hold whole."""


class _Message(NamedTuple):
    """A message that was checked.  where: its place, for people."""

    where: str
    subject: bytes
    check: StampCheck


def _keys_of(given: tuple[str, ...]) -> frozenset[str]:
    """Return the public keys that are given, or stand in files that are.  Raises ConfigError.

    No error quotes what was given: it may be a seed, by mistake.
    """
    found: set[str] = set()
    for one in given:
        try:
            raw_key(one)
            found.add(one)
        except ValueError:
            found |= _keys_in(one)
    return frozenset(found)


def _keys_in(file: str) -> set[str]:
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, ValueError, RuntimeError):
        raise ConfigError(
            "--key is neither the public key of an nkey nor a file that can be read, with such keys"
        ) from None
    found: set[str] = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            try:
                raw_key(line)
            except ValueError:
                raise ConfigError(
                    f"line {number} of the file of --key is not the public key of an nkey"
                ) from None
            found.add(line)
    return found


@click.command()
@click.argument("captures", nargs=-1, type=FilePath())
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    metavar="KEY",
    help="The public key of a signer that counts, or a file with such keys, one on a line; repeatable.",
)
@click.option(
    "--message",
    "messages",
    multiple=True,
    type=FilePath(),
    metavar="FILE",
    help="A stored message as $JS.API.STREAM.MSG.GET answers it; - for stdin.",
)
@click.option("--moved", is_flag=True, help="Let a message have another subject than it was published to.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each stamped message.")
def verify(
    captures: tuple[Path, ...], keys: tuple[str, ...], messages: tuple[Path, ...], moved: bool, as_json: bool
) -> None:
    """Check the signed stamps of messages: who published them, and that nobody changed them.

    Rules of kind stamp make them. In captures, messages are those that went on to a client or the server.
    Exit code: 0 all stamps are valid, 1 one is not (or a --message has none), 2 could not run.

    \b
    natsproxy verify traffic.ncap --key signers.txt
    nats req '$JS.API.STREAM.MSG.GET.ORDERS' '{"seq": 7}' --raw > seven.json
    natsproxy verify --message seven.json --key signers.txt
    """
    if not (captures or messages):
        raise click.UsageError("Give captures, or --message FILE.")
    counts: Counter[str] = Counter()
    wrong = 0
    for alone, one in _checked(captures, messages, _keys_of(keys), moved=moved):
        state = one.check.state
        counts[state] += 1
        wrong += state == "invalid" or (alone and state != "valid")
        if as_json and (alone or state != "none"):
            click.echo(json.dumps(_facts(one)))
        elif not as_json and (alone or state == "invalid"):
            click.echo(_line(one))
    if not as_json:
        click.echo(_summary(counts))
    if wrong:
        raise FoundWrong(f"{wrong} of the messages: no key that was given vouches for the sender")


def _checked(
    captures: tuple[Path, ...], messages: tuple[Path, ...], keys: frozenset[str], *, moved: bool
) -> Iterator[tuple[bool, _Message]]:
    """Yield the messages, and whether each was given alone."""
    for path in captures:
        for found in _in_capture(path, keys, moved=moved):
            yield False, found
    for path in messages:
        subject, block, body = _read_message(path)
        check = stamps.check(None if moved else subject, block, body, keys)
        yield True, _Message(str(path), subject, check)


def _in_capture(path: Path, keys: frozenset[str], *, moved: bool) -> Iterator[_Message]:
    for one in read_frames(open_capture(path, tell_lost), Query(ops=_WITH_HEADERS)):
        if one.out_ordinal is None or (head := one.head) is None:
            continue  # as a client sent it, before the proxy took its stamps away
        where = f"{path}: {one.conn} {one.direction.label} #{one.out_ordinal}"
        if one.frame is None:
            yield _Message(where, head.subject, StampCheck(_CUT))
            continue
        subject = None if moved else head.subject
        yield _Message(where, head.subject, stamps.check(subject, one.frame.headers, one.frame.body, keys))


def _read_message(path: Path) -> tuple[bytes, bytes, bytes]:
    """Return subject, header block and payload of a stored message.  Raises ConfigError."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        answer = json.loads(text)
        message = answer.get("message", answer)
        hdrs, data = message.get("hdrs") or "", message.get("data") or ""
        subject: bytes = message["subject"].encode()
        return subject, base64.b64decode(hdrs, validate=True), base64.b64decode(data, validate=True)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"{path}: not a stored message: a JSON object with subject, hdrs and data, as "
            "$JS.API.STREAM.MSG.GET answers"
        ) from None


def _facts(one: _Message) -> dict[str, Any]:
    check = one.check
    why = {"why": check.why} if check.why else {}
    subject = one.subject.decode("utf-8", "replace")
    return {"where": one.where, "subject": subject, "state": check.state, **why, "stamp": dict(check.stamp)}


def _line(one: _Message) -> str:
    check, subject = one.check, one.subject.decode("utf-8", "replace")
    told = check.why or " ".join(
        f"{name.removeprefix(stamps.PREFIX).lower()}={value}"
        for name, value in check.stamp.items()
        if name != stamps.SIGNATURE
    )
    return printable(f"{check.state}  {subject}  {told}  ({one.where})")


_STATES: Final = {
    "valid": "valid",
    "invalid": "invalid",
    "unsigned": "not signed",
    "none": "without a stamp",
    _CUT: "not whole in the capture",
}


def _summary(counts: Counter[str]) -> str:
    told = [f"{counts[state]} {words}" for state, words in _STATES.items() if counts[state]]
    return f"messages with headers: {', '.join(told) or 'none'}"
