"""The subject of a certificate as text, written as nats-server writes it: RFC 2253, the last name first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

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


def subject_of(certificate: Mapping[str, Any] | None) -> str:
    """Return the subject of a certificate (see `ssl.SSLSocket.getpeercert`); "" for none.

    A certificate without a subject is named by its first alternative name.
    """
    if not certificate:
        return ""
    parts = ["+".join(map(_part, names)) for names in certificate.get("subject", ())]
    if parts:
        return ",".join(reversed(parts))
    return next((f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())), "")


def _part(part: tuple[str, str]) -> str:
    name, value = part
    return f"{_SHORT.get(name, name)}={_SPECIAL.sub(_escaped, value)}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"
