"""The names in the certificate of a peer, as nats-server reads them for `verify_and_map`.

The subject is text as in RFC 2253: the last name first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from natsproxy.session.identity import Certificate

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
    """Return the names in a certificate, as `ssl.SSLSocket.getpeercert` gives it.

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
