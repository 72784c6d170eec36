"""The page: one HTML file with its style, its script and its data inside, which loads no other file.

Subjects and error texts are untrusted: anyone who may publish chooses them.  They reach the page as JSON in a
data block in which `<`, `>` and `&` are escaped, so that nothing ends the block; the script puts them into
text nodes only, never into markup.  A content security policy allows that one style and that one script (by
their hashes) and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template
from typing import Any, Final

SCRIPTS: Final = ("draw.js", "view.js", "cells.js", "traffic.js", "senders.js", "effects.js", "shell.js")
"""The files of the script, in order; they share one scope."""
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def embedded(data: Any) -> str:
    """Return JSON that is safe in a `<script>` block, whatever texts it has."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def render(data: dict[str, Any]) -> str:
    """Return the page for the data of `natsproxy.spark.report.collect`."""
    style = _part("style.css")
    script = '"use strict";(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "\n})();"
    title = ", ".join(data["captures"]) or "NATS traffic"
    return Template(_part("page.html")).substitute(
        title=html.escape(title),
        style=style,
        script=script,
        data=embedded(data),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
