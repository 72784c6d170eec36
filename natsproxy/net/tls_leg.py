"""A leg with TLS, over `ssl.MemoryBIO`: the inner leg carries the records.

Theory
1. The handshake needs no task of its own: it goes on where bytes are received.  What is written before its
   end waits in the leg, and goes out as the first records.
2. NATS upgrades in the middle of a stream: `after_line` lets the first line that is written (INFO) pass as it
   is, and what follows is TLS.  Nothing is received before, because a ClientHello may be early.
3. A peer ends its stream by close_notify.  A stream that ends without it was cut off, so the leg is `lost`; a
   handshake that fails, or takes too long, loses the leg as well, and `lost` has the reason.
4. Where TLS is optional, a peer whose first bytes are not TLS gets a plain leg.
5. Under TLS 1.3 a peer verifies our certificate after our side of the handshake is done: if it refuses, its
   alert is the first thing that is received, and the reason.  A server that accepts the certificate sends a
   session ticket at that time (Go and OpenSSL do so, unless they are told not to).
6. A server may still end the connection then, for a certificate that is not among those that it pins.  So
   `on_word` tells what comes first after the handshake: bytes, or the end.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from natsproxy.net.certificates import expiry
from natsproxy.net.layered_leg import LayeredLeg
from natsproxy.net.leg import AnyLeg, LegLost
from natsproxy.session.values import Certificate
from natsproxy.units import format_duration

_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "postalCode": "POSTALCODE",
    "serialNumber": "SERIALNUMBER",
    "domainComponent": "DC",
}
_SPECIAL: Final = re.compile(r'[,+"\\<>;]|^[ #]| $')
_NAMES: Final = ("email", "DNS", "URI")


def certificate_of(found: Mapping[str, Any] | None) -> Certificate:
    """Return the names in a peer's certificate, as nats-server reads them for `verify_and_map`.

    found: as `ssl.SSLSocket.getpeercert` gives it.  The subject is text as in RFC 2253: the last name first.

    A certificate without a subject is known by its first alternative name.
    """
    if not found:
        return Certificate()
    alternatives: Sequence[tuple[str, str]] = found.get("subjectAltName", ())
    parts = ["+".join(map(_part, names)) for names in found.get("subject", ())]
    subject = ",".join(reversed(parts))
    names = [value for kind in _NAMES for each, value in alternatives if each == kind]
    return Certificate(
        subject or next((f"{kind}:{value}" for kind, value in alternatives), ""),
        tuple(names + [subject] * bool(subject)),
    )


def _part(part: tuple[str, str]) -> str:
    name, value = part
    return f"{_SHORT.get(name, name)}={_SPECIAL.sub(_escaped, value)}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


_SLICE: Final = 32_768  # bytes through a BIO at once: it keeps the largest size that it ever had
_RECORD: Final = 16_384  # bytes of the largest record
_TLS: Final = (b"\x15", b"\x16")  # the first byte of an alert and of a handshake
_CLOSED: Final = "the peer closed the connection, perhaps for a certificate that it does not trust"


class TlsLeg(LayeredLeg):
    """A leg with TLS.

    server_name: the name that a server's certificate must have, with a client's context; None with a
    server's.  timeout: the longest time (ns) of the handshake, 0 for none.  after_line: see 2.  optional: see
    4.  on_secured: called with the peer's certificate at the end of the handshake.  on_word: called once (see
    6), with "" or the reason why the peer ended the stream; None for nobody.  plain: the first bytes of a
    peer that speaks no TLS.
    """

    def __init__(
        self,
        inner: AnyLeg,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
        timeout: int,
        after_line: bool = False,
        optional: bool = False,
    ) -> None:
        super().__init__(inner)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self.secured = False
        self._optional = optional
        self._is_plain = False
        self._early: list[bytes] = []  # written before the handshake was done
        self._first: bytes | None = None  # received together with its end
        self._timeout = timeout
        self._deadline = float("inf")
        self.on_secured: Callable[[Certificate], None] = _nothing
        self.on_word: Callable[[str], None] | None = None
        self._line_written: trio.Event | None = trio.Event() if after_line else None
        self.plain = b""
        self._heard = False
        self._finished = False
        if not after_line:
            self._begin()

    def _begin(self) -> None:
        if self._timeout:
            self._deadline = trio.current_time() + self._timeout / 1e9

    # -- the handshake

    async def handshake(self) -> None:
        """Return when the handshake is done.  Raises LegLost."""
        self._shake_hands()  # a client speaks first
        while not self.secured:
            self._first = self.try_receive()
            if self._ended and not self.secured:
                raise LegLost(self, "the peer closed the connection before a TLS handshake")
            if not self.secured:
                await self.wait_readable()

    async def judged(self) -> None:
        """Return when the server has accepted our certificate (see 5).  Raises LegLost where it refuses."""
        while not (self._first or self._ended or self._has_ticket):
            await self.wait_readable()
            self._first = self.try_receive()
        if self._ended and not self._first:
            raise LegLost(self, f"TLS: {_CLOSED}")

    @property
    def _has_ticket(self) -> bool:
        """True if the server has sent a session ticket, or its handshake had to end before ours."""
        session = self._ssl.session
        return self._ssl.version() != "TLSv1.3" or (session is not None and session.has_ticket)

    def _shake_hands(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_records()
            return False
        except ssl.SSLError as error:
            raise self._fail(error) from None
        self.secured = True
        early, self._early = self._early, []
        self.on_secured(self.certificate)
        self._send(self._encode([*early]) if early else [self._outgoing.read()])
        return True

    def _fail(self, error: ssl.SSLError) -> LegLost:
        with suppress(LegLost):  # the peer may have gone as well
            self._send_records()
        part = "TLS" if self.secured else "TLS handshake"
        return self._lose(f"{part}: {reason_of(error)}")

    # -- bytes

    def try_receive(self) -> bytes | None:
        """Return bytes, `b""` at the end of the stream, or None when there are none yet.  Raises LegLost."""
        if self._first:
            first, self._first = self._first, None
            return first
        if self._line_written is not None:
            return None
        if self.on_word is None:
            return super().try_receive()
        try:
            data = super().try_receive()
        except LegLost as lost:
            self._tell_word(str(lost))
            raise
        if data is not None:
            self._tell_word("" if data else f"TLS: {_CLOSED}")
        return data

    def _tell_word(self, reason: str) -> None:
        tell, self.on_word = self.on_word, None
        if tell is not None and not (reason and self._finished):
            tell(reason)

    async def wait_readable(self) -> None:
        """Wait until there may be something to receive, or the leg is lost; `try_receive` tells which."""
        if self._line_written is not None:
            await self._line_written.wait()
        elif self.secured or self._is_plain:
            await self._inner.wait_readable()
        else:
            with trio.move_on_at(self._deadline) as scope:
                await self._inner.wait_readable()
            if scope.cancelled_caught:
                self._lose(f"TLS handshake: not completed in {format_duration(self._timeout)}")

    def _decode(self, data: bytes) -> bytes | None:
        if self._is_plain:
            self._ended = not data
            return data
        if not self._heard and data:
            self._heard = True
            if data[:1] not in _TLS:
                return self._without_tls(data)
        if not self._heard:  # a probe
            self._ended = True
            return b""
        found: list[bytes] = []
        try:
            rest = memoryview(data)
            for start in range(0, len(data), _SLICE):
                self._incoming.write(rest[start : start + _SLICE])
                self._read_into(found)
            if not data:
                self._incoming.write_eof()
                self._read_into(found)
        except ssl.SSLError as error:
            lost = self._fail(error)
            if not found:  # else with the next call
                raise lost from None
        if not data and not self._ended:
            self._cut_off("the stream ended without close_notify")
        if found:
            return found[0] if len(found) == 1 else b"".join(found)
        return b"" if self._ended else None

    def _without_tls(self, data: bytes) -> bytes:
        """Return the first bytes of a peer without TLS, if TLS is optional.  Raises LegLost."""
        if not self._optional:  # as from nats-server: no alert to a peer that would not know it
            self.plain = data
            raise self._lose("TLS handshake: the peer speaks no TLS")
        self._is_plain = True
        if self._early:
            self._send([*self._early])
        return data

    def _read_into(self, found: list[bytes]) -> None:
        if not (self.secured or self._shake_hands()):
            return
        with suppress(ssl.SSLWantReadError):
            while self._incoming.pending or self._ssl.pending():
                data = self._ssl.read(_RECORD)
                if not data:
                    self._ended = True
                    return
                found.append(data)
        if self._outgoing.pending:  # an answer to a change of keys
            self._send_records()

    def _encode(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        if self._is_plain:
            return parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if not self.secured:
            return self._before_tls(bytes(data))
        if self._finished:
            return []
        records: list[bytes | memoryview] = []
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._ssl.write(rest[:_SLICE]) :]
                if self._outgoing.pending >= _SLICE:
                    records.append(self._outgoing.read())
        except ssl.SSLError as error:
            raise self._fail(error) from None
        records.append(self._outgoing.read())
        return records

    def _before_tls(self, data: bytes) -> list[bytes | memoryview]:
        """Return the part of written bytes that goes out as it is, if any, and keep the rest."""
        line = b""
        if self._line_written is not None:
            line, end, data = data.partition(b"\n")
            if not end:
                return [line]
            line += end
            self._line_written.set()
            self._line_written = None
            self._begin()
        if data:
            self._early.append(data)
        return [line] if line else []

    def _send_records(self) -> None:
        if self._outgoing.pending:
            self._send([self._outgoing.read()])

    # -- the end

    def finish(self) -> None:
        """Half-close: the peer sees the end of the stream after the bytes that were sent.

        A client that is turned away before its handshake gets the reason in plain text, as from nats-server.
        """
        if not self.secured and self._early and self._early[0].startswith(b"-ERR"):
            with suppress(LegLost):
                self._send([self._early.pop(0)])
        if self.secured and not self._finished and not self.gone:
            self._finished = True
            with suppress(ssl.SSLError):  # it wants the peer's close_notify, which may never come
                self._ssl.unwrap()
            with suppress(LegLost):
                self._send_records()
        self._inner.finish()

    def close(self) -> None:
        """Close; idempotent."""
        self.finish()
        self._inner.close()

    # -- facts

    @property
    def readable(self) -> bool:
        """True if bytes are waiting to be received."""
        return bool(self._first) or super().readable

    @property
    def agreed(self) -> tuple[str, str]:
        """The version of TLS (`1.3`) and the name of the cipher suite; empty before the handshake."""
        cipher = self._ssl.cipher() if self.secured else None
        return ("", "") if cipher is None else ((self._ssl.version() or "").removeprefix("TLSv"), cipher[0])

    @property
    def peer_expiry(self) -> int | None:
        """When the peer's certificate expires (Unix seconds); None before the handshake, and without one."""
        return expiry(self._ssl.getpeercert(binary_form=True) or b"") if self.secured else None

    @property
    def certificate(self) -> Certificate:
        """The peer's certificate, once it is verified."""
        return certificate_of(self._ssl.getpeercert()) if self.secured else Certificate()


def reason_of(error: ssl.SSLError) -> str:
    """Return the reason of an error as a clause; it holds nothing of certificates or keys."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return _CLOSED
    words = (error.reason or "failed").lower()
    _, alert, name = words.partition("_alert_")
    if alert:
        return f"the peer refused: {name.replace('_', ' ')}"
    return words.replace("_", " ")


def _nothing(_: Certificate) -> None:
    return None
