"""Addresses as they may be shown: URLs and `host:port` without the user, password or token in them."""

from __future__ import annotations

import re
from typing import Final

_HOST: Final = r"(?:\[[^\]@]*\]|[^:@/?#,]*)(?::[0-9]*)?"
_PLAIN: Final = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^:@?#]*)?|[0-9A-Fa-f.]*(?::[0-9A-Fa-f.]*){{2,}}")
_NEXT_URL: Final = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'`<>]*@")
_USER: Final = re.compile(r"[^\s\"'`<>()=]+:[^\s\"'`<>]*@")


def mask_url(url: str) -> str:
    """Return a URL (or several, comma-separated) with password and token hidden, for logs and errors.

    A user name before a colon stays; a lone user part may be a token and goes.  When in doubt more is hidden:
    what stands where a port should and is none may be a password without its host.
    """
    return ",".join(_mask_one(part) for part in _NEXT_URL.split(url))


def _mask_one(url: str) -> str:
    scheme, slashes, rest = url.rpartition("://") if url.count("://") == 1 else url.partition("://")
    if not slashes:
        scheme, rest = "", url
    userinfo, at, host = rest.rpartition("@")
    if at:
        user, colon, _ = userinfo.partition(":")
        return f"{scheme}{slashes}{user}:***@{host}" if colon else f"{scheme}{slashes}***@{host}"
    if _PLAIN.fullmatch(rest):
        return url
    return f"{scheme}{slashes}{re.split('[:?#]', rest)[0]}:***"


def mask_urls(text: str) -> str:
    """Return a text with the passwords and tokens of the URLs in it hidden."""
    return _URL.sub(lambda found: mask_url(found[0]), text) if "@" in text else text


def mask_addresses(text: str) -> str:
    """Return a text with the passwords of URLs and of `user:password@host` hidden."""
    return _USER.sub(lambda found: mask_url(found[0]), mask_urls(text)) if "@" in text else text
