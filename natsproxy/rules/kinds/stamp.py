"""stamp: the server gets messages with headers that say who published them, which no client can write.

Lines that name such a header are taken out of all publishes of all clients, whatever subject the rule has.
Then those on its subjects get a stamp, if somebody has verified who the client is: natsproxy itself, its
certificate, or the server, which has accepted the login.  The client's own word is not enough, so what a
client publishes before its first PONG has no stamp.  `protocol/stamps.py` has the headers, and what a
signature covers; `.github/SECURITY.md` what is promised.

A publish that ought to have a stamp and cannot have one does not pass.  Where the client or the server has no
headers, and for a header block that readers disagree on, the answer is the -ERR of a denied publish; where
the stamp makes it larger than the server's max_payload, it is the server's own -ERR for that, and the end.

A firing says "stamp" where nothing else was done, which is no news, and "strip" where a client has tried.

What the server reads itself ($JS and $SYS, acks among it) is left alone, unless the rule names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

from natsproxy.addresses import split_host_port
from natsproxy.protocol import stamps
from natsproxy.protocol.credentials import KeyPair, read_seed
from natsproxy.protocol.errors import MAX_PAYLOAD, err_frame, publish_denied
from natsproxy.protocol.headers import header_line, is_bare
from natsproxy.protocol.patternset import PatternSet
from natsproxy.protocol.secret_files import SECRET, file_of, read_secret
from natsproxy.rules.file import values
from natsproxy.rules.interface import View
from natsproxy.rules.model.delivery_filter import DeliveryFilter
from natsproxy.rules.model.roles import PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind, Setting, Stage
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Close, Deny, Replace, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.interest import Clause
from natsproxy.wire.ops import C2S, Direction, Op

_SERVERS_OWN: Final = (b"$JS", b"$SYS")


def _account(view: View) -> str:
    """Return the account: as the server says, or as the JWT that it has accepted does."""
    claimed = view.connect.jwt.account if view.who.user_by == "server" else ""
    return view.info.remote_account or claimed


def _address(view: View) -> str:
    try:
        return split_host_port(view.address)[0]
    except ValueError:  # a Unix socket
        return view.address


FACTS: Final[dict[str, tuple[str, Callable[[View], str]]]] = {
    "user": (stamps.USER, lambda view: view.connect.user_key),
    "account": (stamps.ACCOUNT, _account),
    "client": (stamps.CLIENT, lambda view: view.connect.name),
    "address": (stamps.ADDRESS, _address),
}
"""The facts that a stamp may state: header and source of each.  The client's name is its own word."""
WITNESSES: Final = ("natsproxy", "certificate", "server")
"""Those whose word for a user may count."""


class Stamping(Action):
    """Takes stamps of clients away, and sets those of the proxy.

    facts: of `FACTS`.  by: of `WITNESSES`.  key: signs, None for stamps without signature.  signed: the
    headers that a signature covers as well.  deny: what has no verified sender is denied.
    subjects, unless: the patterns of the messages that get a stamp; None: all.  files: that of the key.
    """

    stage = Stage.STAMP
    label = "stamp"
    need = Need.PAYLOAD
    on_frame = "change"
    guards = True
    alone = True

    def __init__(
        self,
        facts: tuple[str, ...],
        by: tuple[str, ...],
        key: KeyPair | None,
        signed: tuple[bytes, ...],
        subjects: tuple[bytes, ...] | None,
        unless: tuple[bytes, ...],
        *,
        deny: bool,
        files: tuple[Path, ...] = (),
    ) -> None:
        self.files = files
        self._facts, self._by, self._key, self._signed, self._deny = facts, by, key, signed, deny
        own = [top for top in _SERVERS_OWN if not any(one.startswith(top) for one in subjects or ())]
        self._match, self._unless = subjects, (*unless, *(top + b".>" for top in own))
        self._chosen = None if subjects is None else PatternSet((one, None) for one in subjects)
        self._left = PatternSet((one, None) for one in self._unless)
        self._known: tuple[object, ...] = ()
        self._stamp: dict[str, str] | None = None
        self._told = ""
        self._unix: Callable[[int], int] = int

    @property
    def fingerprint(self) -> str:
        """The key that is in the file which the rule names."""
        return "" if self._key is None else self._key.public

    def bind(self, view: View, deliveries: DeliveryFilter) -> Action:
        """Return the instance of one connection, which keeps what its stamps have in common."""
        return copy(self)

    def set_clock(self, unix: Callable[[int], int]) -> None:
        """Take the clock for the times of signatures."""
        self._unix = unix

    def clauses(self, selector: Selector) -> tuple[tuple[Direction, Clause], ...]:
        """Return the clauses: all publishes with headers, and the others that may get some."""
        with_headers = Clause(Op.HPUB.bit, Need.PAYLOAD)
        return (C2S, with_headers), (C2S, Clause(Op.PUB.bit, Need.PAYLOAD, self._match, self._unless))

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Strip the frame, and stamp it if it is to have one."""
        view, block = hit.view, frame.headers
        agreed = view.connect.headers and view.info.headers
        if block and not agreed:
            return None  # the server closes the connection for it
        clean = stamps.stripped(block)
        if clean is None:
            return self._refuse(frame, "its headers name stamps in a way that is not taken apart")
        self.label, self._told = "stamp", ""
        if clean is not block:
            self.label, self._told = "strip", "headers of stamps were removed; "
        stamp = self._stamp_of(view) if self._selects(frame.subject) else {}
        if stamp is None and self._deny:
            return self._refuse(frame, "nobody has verified its sender")
        if not stamp:
            return None if clean is block else self._replace(frame, clean, "it has no stamp")
        if not agreed:
            return self._refuse(frame, "the client or the server has no headers, and so it can have no stamp")
        if self._key is not None:
            named = self._named(clean)
            if named is None:
                return self._refuse(frame, "a header that is to be signed has too many values")
            stamp = self._sign(self._key, stamp, frame, named, self._unix(hit.now))
        headers = stamps.stamped(clean, stamp)
        if headers is None:
            return self._refuse(frame, "its header block does not begin as one does")
        most = view.info.max_payload
        if 0 < most < len(headers) + len(frame.body):
            self.label = "close"
            self._told += "it would be larger than the server's max_payload"
            return Close(f"with its stamp, {self._told}", err_frame(MAX_PAYLOAD.text))
        return self._replace(frame, headers, stamp.get(stamps.USER, ""))

    def _replace(self, frame: Frame, headers: bytes, told: str) -> Verdict:
        self._told += told
        return Replace(encode.with_payload(frame, headers=b"" if is_bare(headers) else headers))

    def _refuse(self, frame: Frame, why: str) -> Verdict:
        self.label, self._told = "deny", why
        return Deny(publish_denied(frame.subject))

    def _selects(self, subject: bytes) -> bool:
        chosen = self._chosen is None or self._chosen.matches(subject)
        return chosen and not self._left.matches(subject)

    def _stamp_of(self, view: View) -> dict[str, str] | None:
        """Return the stamp of all messages of a client, None for one whom nobody has verified."""
        witness = view.who.user_by
        known = (view.connect, view.info, witness)
        if known != self._known:
            self._known, self._stamp = known, self._made(view, witness)
        return self._stamp

    def _made(self, view: View, witness: str) -> dict[str, str] | None:
        if witness not in self._by:
            return None
        told = [(FACTS[fact][0], FACTS[fact][1](view)) for fact in self._facts]
        stamp = {name: stamps.encoded(value.encode("utf-8", "replace")) for name, value in told if value}
        stamp[stamps.BY] = witness
        if self._key is not None:
            stamp[stamps.KEY] = self._key.public
            if self._signed:
                stamp[stamps.HEADERS] = b",".join(self._signed).decode()
        return stamp

    def _named(self, block: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the headers that the signature covers beside the stamp; None where it cannot."""
        found: list[tuple[bytes, bytes]] = []
        for name in self._signed:
            these = stamps.values_of(block, name)
            if these is None:
                return None
            found += [(name, value) for value in these]
        return found

    @staticmethod
    def _sign(
        key: KeyPair, stamp: dict[str, str], frame: Frame, named: list[tuple[bytes, bytes]], unix: int
    ) -> dict[str, str]:
        """Return a stamp with subject, time and signature; unix: ns."""
        whole = {
            **stamp,
            stamps.SUBJECT: stamps.encoded(frame.subject),
            stamps.TIME: stamps.time_of(unix),
        }
        whole[stamps.SIGNATURE] = key.sign(stamps.signed_text(whole, named, frame.body))
        return whole

    def detail(self) -> str:
        """Return what happened to the last frame."""
        return self._told

    def describe(self) -> str:
        """Return its effect in a few words."""
        signed = "" if self._key is None else f", signed by {self._key.public}"
        return f"say who published it ({', '.join(self._facts)}){signed}"


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action.  Raises ValueError, and ConfigError where the key cannot be read."""
    source = settings["key"]
    if settings["sign_headers"] and source is None:
        raise ValueError("sign_headers needs a key")
    for name in settings["sign_headers"]:
        try:
            header_line(name.encode(), b"")
        except ValueError as error:
            raise ValueError(f"sign_headers is wrong: {error}") from None
        if "," in name or name.lower().startswith(stamps.PREFIX.lower()):
            raise ValueError(f"sign_headers is wrong: {name!r} has a comma, or is a header of stamps")
    return Stamping(
        settings["facts"],
        settings["by"],
        None if source is None else read_secret(source, "key", read_seed),
        tuple(dict.fromkeys(name.encode() for name in settings["sign_headers"])),
        selector.subjects,
        selector.unless,
        deny=settings["unverified"] == "deny",
        files=file_of(source),
    )


KIND = Kind(
    "stamp",
    "messages get headers that say who published them, which no client can write",
    make,
    """
[[rules]]
name = "who published it"
kind = "stamp"
subject = "orders.>"
facts = ["user", "account"]
by = ["natsproxy", "certificate", "server"]
""",
    (
        Setting(
            "facts",
            values.several(values.one_of(*FACTS)),
            ("user", "account", "address"),
            'what a stamp says of its sender: "user" (Nats-Sender-User; of an nkey or JWT its public key), '
            '"account" (Nats-Sender-Account), "address" (Nats-Sender-Address), "client" (Nats-Sender-Client, '
            "the name that the client gives itself)",
        ),
        Setting(
            "by",
            values.several(values.one_of(*WITNESSES)),
            WITNESSES,
            'whose word for a user counts; it stands in Nats-Sender-By. Leave "server" out where an auth '
            "callout makes users of logins",
        ),
        Setting(
            "unverified",
            values.one_of("pass", "deny"),
            "pass",
            "publishes on these subjects of clients that nobody has verified: they pass without a stamp, or "
            "are denied",
            'unverified = "deny"',
        ),
        Setting(
            "key",
            SECRET.read,
            None,
            "the file with the seed of an nkey, or env:NAME: stamps are signed, for `natsproxy verify`",
        ),
        Setting(
            "sign_headers",
            values.several(values.line),
            (),
            "headers of the publisher that the signature covers as well",
            'sign_headers = ["Nats-Msg-Id"]',
        ),
    ),
    ops=PUBS,
    takes=PUBS,
    direction=C2S,
    selects=frozenset({"subject", "unless"}),
    gated=False,
)
